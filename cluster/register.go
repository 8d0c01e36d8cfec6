package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errNoLease guards against a registration that would never run out.
var errNoLease = errors.New("a registration needs a lease")

// StateWrite is a state to be written.
type StateWrite struct {
	Mode   string    `json:"mode"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

// RegisterRequest says what to register and what it was decided on.
type RegisterRequest struct {
	LeaseID int64
	Value   []byte
	// Seen guards the transaction: the registration is absent, and era, state and member record
	// are still as seen; so is the peer or, if nobody was registered, that nobody is. It names
	// the broker.
	Seen Snapshot
	// State is written in the same revision; nil leaves the state key alone.
	State       *StateWrite
	Incarnation string
	Data        string // see Member
	Instance    string // see Member
	Health      Health // see Member
	At          time.Time
	// Alive is what is noted anew of the fleet before the era; nil: it stays as it is.
	Alive *Alive
}

// Registered is the outcome of Register.
type Registered struct {
	Revision int64 // create revision of the registration: the epoch
	Era      int64 // the era that the broker registered in
}

// Register writes the registration, the member record, the state if one is given, and the era
// if it begins one, its key was deleted, or it knows of a longer life of the fleet before, in one
// transaction. An era that cannot be read stays, unless one begins. It returns ErrChanged
// when a guard does not hold and ErrLeaseNotFound when the lease is gone.
func (c *Client) Register(ctx context.Context, req RegisterRequest) (Registered, error) {
	id := req.Seen.BrokerID
	if err := checkBroker(id); err != nil {
		return Registered{}, err
	}
	if req.LeaseID == 0 {
		return Registered{}, fmt.Errorf("register broker %s: %w", id, errNoLease)
	}
	if req.Seen.eraUnasked {
		return Registered{}, fmt.Errorf("register broker %s: what it registers %w", id, ErrChanged)
	}
	era, eraWritten := req.eraAfter()
	ops := []clientv3.Op{
		clientv3.OpPut(c.keys.Registration(id), string(req.Value), clientv3.WithLease(clientv3.LeaseID(req.LeaseID))),
	}
	if eraWritten {
		put, err := putJSON(c.keys.Era(), era)
		if err != nil {
			return Registered{}, err
		}
		ops = append(ops, put)
	}
	member, err := c.putMember(id, Member{
		Name: req.Seen.Name, Era: era.Era, Revision: req.Seen.Revision, Incarnation: req.Incarnation, Data: req.Data, Instance: req.Instance, Health: req.Health, At: req.At,
		Planned: req.Seen.Member.plannedEpoch(),
	})
	if err != nil {
		return Registered{}, err
	}
	ops = append(ops, member)
	if req.State != nil {
		put, err := c.putState(id, *req.State)
		if err != nil {
			return Registered{}, err
		}
		ops = append(ops, put)
	}
	guards := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(id)), "=", 0),
		clientv3.Compare(clientv3.ModRevision(c.keys.Era()), "=", req.Seen.Era.ModRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.State(id)), "=", req.Seen.StateRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.Member(cmp.Or(req.Seen.Name, id))), "=", req.Seen.MemberRevision),
		c.company(req.Seen),
	}
	answer, err := c.write(ctx, guards, ops)
	if err != nil {
		return Registered{}, fmt.Errorf("register broker %s: %w", id, err)
	}
	return Registered{Revision: answer.Header.Revision, Era: era.Era}, nil
}

// Standing is what is written with a registration that is kept, in one transaction. Once
// the member record is there the registration is no news, so what was decided about it must
// stand by then.
type Standing struct {
	Member
	State         *StateWrite // nil: the mode stays as it is
	StateRevision int64       // of the state as it was seen; 0: there was none
	// MemberRevision is of the member record as it was seen; 0: there was none. What is
	// written in its place takes a note of a planned stop away, once.
	MemberRevision int64
}

// Registered is one linearizable read of a registration, nil if there is none, and the
// raft term of the answer. If that is the term of a renewal that was answered before the
// read was sent, then the leader who renewed was no other one than the leader then.
func (c *Client) Registered(ctx context.Context, brokerID string) (reg *Registration, term uint64, err error) {
	if err := checkBroker(brokerID); err != nil {
		return nil, 0, err
	}
	answer, err := ask(ctx, c.members, false, func(ctx context.Context, w *way) (*etcdserverpb.RangeResponse, error) {
		said, err := w.kv.Get(ctx, c.keys.Registration(brokerID))
		return (*etcdserverpb.RangeResponse)(said), err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read registration of broker %s: %w", brokerID, err)
	}
	if len(answer.Kvs) > 0 {
		r := registrationOf(brokerID, answer.Kvs[0])
		reg = &r
	}
	return reg, answer.Header.RaftTerm, nil
}

// Rebind puts a registration under leaseID. Its bytes and its create revision stay, the
// era too; who stands by it is written in the same transaction. It returns ErrChanged
// when the registration, the member record or the state is not as seen any more.
func (c *Client) Rebind(ctx context.Context, seen Registration, leaseID int64, m Standing) (Registration, error) {
	return c.bind(ctx, "rebind", seen, leaseID, m, clientv3.OpPut(c.keys.Registration(seen.BrokerID), "",
		clientv3.WithLease(clientv3.LeaseID(leaseID)), clientv3.WithIgnoreValue()))
}

// Rewrite is Rebind with new bytes, because the advertised addresses changed.
func (c *Client) Rewrite(ctx context.Context, seen Registration, value []byte, leaseID int64, m Standing) (Registration, error) {
	written, err := c.bind(ctx, "rewrite", seen, leaseID, m, clientv3.OpPut(c.keys.Registration(seen.BrokerID), string(value),
		clientv3.WithLease(clientv3.LeaseID(leaseID))))
	if err != nil {
		return Registration{}, err
	}
	written.Value = value
	return written, nil
}

// bind commits the put of a registration that is still as seen.
func (c *Client) bind(ctx context.Context, verb string, seen Registration, leaseID int64, m Standing, put clientv3.Op) (Registration, error) {
	if err := checkBroker(seen.BrokerID); err != nil {
		return Registration{}, err
	}
	if leaseID == 0 {
		return Registration{}, fmt.Errorf("%s registration of broker %s: %w", verb, seen.BrokerID, errNoLease)
	}
	revision, err := c.stand(ctx, verb, seen, m, put)
	if err != nil {
		return Registration{}, err
	}
	bound := seen
	bound.LeaseID, bound.ModRevision = leaseID, revision
	return bound, nil
}

// stand writes who stands by a registration that is still as seen.
func (c *Client) stand(ctx context.Context, verb string, seen Registration, m Standing, puts ...clientv3.Op) (revision int64, err error) {
	member, err := c.putMember(seen.BrokerID, m.Member)
	if err != nil {
		return 0, err
	}
	puts = append(puts, member)
	key := c.keys.Registration(seen.BrokerID)
	guards := []clientv3.Cmp{
		// An absent key has mod revision 0, and so might a caller's empty view of it.
		clientv3.Compare(clientv3.CreateRevision(key), ">", 0),
		clientv3.Compare(clientv3.ModRevision(key), "=", seen.ModRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.Member(cmp.Or(m.Name, seen.BrokerID))), "=", m.MemberRevision),
	}
	if m.State != nil {
		put, err := c.putState(seen.BrokerID, *m.State)
		if err != nil {
			return 0, err
		}
		guards = append(guards, clientv3.Compare(clientv3.ModRevision(c.keys.State(seen.BrokerID)), "=", m.StateRevision))
		puts = append(puts, put)
	}
	answer, err := c.write(ctx, guards, puts)
	if err != nil {
		return 0, fmt.Errorf("%s registration of broker %s: %w", verb, seen.BrokerID, err)
	}
	return answer.Header.Revision, nil
}

// PutState writes a broker's state if its mod revision is still the guard; 0 means that
// it must be absent. It returns the new mod revision, or ErrChanged.
func (c *Client) PutState(ctx context.Context, brokerID string, w StateWrite, guardModRevision int64) (int64, error) {
	if err := checkBroker(brokerID); err != nil {
		return 0, err
	}
	put, err := c.putState(brokerID, w)
	if err != nil {
		return 0, err
	}
	guard := clientv3.Compare(clientv3.ModRevision(c.keys.State(brokerID)), "=", guardModRevision)
	answer, err := c.write(ctx, []clientv3.Cmp{guard}, []clientv3.Op{put})
	if err != nil {
		return 0, fmt.Errorf("write state of broker %s: %w", brokerID, err)
	}
	return answer.Header.Revision, nil
}

func (c *Client) putState(brokerID string, w StateWrite) (clientv3.Op, error) {
	w.At = w.At.UTC()
	return putJSON(c.keys.State(brokerID), w)
}

// putMember writes the record of a broker that is registered under the id.
func (c *Client) putMember(id string, m Member) (clientv3.Op, error) {
	name := cmp.Or(m.Name, id)
	if err := checkBroker(name); err != nil {
		return clientv3.Op{}, err
	}
	m.At = m.At.UTC()
	m.Cut = m.Cut.kept()
	if m.RegisteredAs = ""; name != id {
		m.RegisteredAs = id
	}
	return putJSON(c.keys.Member(name), m)
}

func putJSON(key string, value any) (clientv3.Op, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("encode value of %s: %w", key, err)
	}
	return clientv3.OpPut(key, string(encoded)), nil
}

// Join writes who stands by a registration that is kept under the lease that it has,
// whoever granted that; the registration itself is not touched. It returns the revision, and
// ErrChanged when the registration, the member record or the state is not as seen any more.
func (c *Client) Join(ctx context.Context, seen Registration, m Standing) (int64, error) {
	if err := checkBroker(seen.BrokerID); err != nil {
		return 0, err
	}
	if seen.LeaseID == 0 {
		return 0, fmt.Errorf("join registration of broker %s: %w", seen.BrokerID, errNoLease)
	}
	return c.stand(ctx, "join", seen, m)
}
