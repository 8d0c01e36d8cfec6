package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	// errNoLease guards against a registration that would never run out.
	errNoLease  = errors.New("a registration needs a lease")
	errNoMember = errors.New("there is no member record to note it in")
)

// RegisterRequest says what to register and what it was decided on.
type RegisterRequest struct {
	LeaseID int64
	Value   []byte
	// Seen guards the transaction: the registration is absent, and era, state and member record
	// are still as seen; so is the peer or, if nobody was registered, that nobody is. It names
	// the broker.
	Seen Snapshot
	// State is written in the same revision; nil leaves the state key alone.
	State *StateWrite
	// Member has what else the record is to say: Incarnation, Data, Instance, Health, At.
	Member
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
func (c *Client) Register(ctx context.Context, req RegisterRequest) (done Registered, err error) {
	seen, id := req.Seen, req.Seen.BrokerID
	defer during(&err, "register broker %s", id)
	if err := errors.Join(checkBroker(id), checkBroker(seen.name())); err != nil {
		return done, err
	}
	switch {
	case req.LeaseID == 0:
		return done, errNoLease
	case seen.eraUnasked:
		return done, fmt.Errorf("what it registers %w", ErrChanged)
	}
	era, eraWritten := req.eraAfter()
	ops := []clientv3.Op{putUnder(c.keys.Registration(id), string(req.Value), req.LeaseID)}
	if eraWritten {
		ops = append(ops, putJSON(c.keys.Era(), era))
	}
	m := req.Member
	m.Name, m.Era, m.Revision, m.Planned = seen.Name, era.Era, seen.Revision, seen.Member.plannedEpoch()
	ops = append(ops, c.putMember(id, m))
	if req.State != nil {
		ops = append(ops, c.putState(id, *req.State))
	}
	_, revision, err := c.write(ctx, []clientv3.Cmp{
		created(c.keys.Registration(id), 0),
		written(c.keys.Era(), seen.Era.ModRevision),
		written(c.keys.State(id), seen.StateRevision),
		written(c.keys.Member(seen.name()), seen.MemberRevision),
		c.company(seen),
	}, ops...)
	if err != nil {
		return done, err
	}
	return Registered{Revision: revision, Era: era.Era}, nil
}

// Registered is one linearizable read of a registration, nil if there is none, and the
// raft term of the answer. If that is the term of a renewal that was answered before the
// read was sent, then the leader who renewed was no other one than the leader then.
func (c *Client) Registered(ctx context.Context, brokerID string) (reg *Registration, term uint64, err error) {
	defer during(&err, "read registration of broker %s", brokerID)
	kv, head, err := c.get(ctx, c.keys.Registration(brokerID))
	return registrationOf(brokerID, kv), head.GetRaftTerm(), err
}

// RegisteredAt reports whether the broker was registered at that revision of the store. A
// revision that was compacted is an error.
func (c *Client) RegisteredAt(ctx context.Context, brokerID string, revision int64) (was bool, err error) {
	defer during(&err, "read registration of broker %s at revision %d", brokerID, revision)
	kv, _, err := c.get(ctx, c.keys.Registration(brokerID), clientv3.WithRev(revision), clientv3.WithKeysOnly())
	return kv != nil, err
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

// Rebind puts a registration under leaseID. Its bytes and its create revision stay, the
// era too; who stands by it is written in the same transaction. It returns ErrChanged
// when the registration, the member record or the state is not as seen any more.
func (c *Client) Rebind(ctx context.Context, seen Registration, leaseID int64, m Standing) (Registration, error) {
	return c.bind(ctx, "rebind", seen, leaseID, m, putUnder(c.keys.Registration(seen.BrokerID), "", leaseID, clientv3.WithIgnoreValue()))
}

// Rewrite is Rebind with new bytes, because the advertised addresses changed.
func (c *Client) Rewrite(ctx context.Context, seen Registration, value []byte, leaseID int64, m Standing) (Registration, error) {
	put := putUnder(c.keys.Registration(seen.BrokerID), string(value), leaseID)
	bound, err := c.bind(ctx, "rewrite", seen, leaseID, m, put)
	if err == nil {
		bound.Value = value
	}
	return bound, err
}

// Join writes who stands by a registration that is kept under the lease that it has,
// whoever granted that; the registration itself is not touched. It returns the revision, and
// ErrChanged when the registration, the member record or the state is not as seen any more.
func (c *Client) Join(ctx context.Context, seen Registration, m Standing) (int64, error) {
	bound, err := c.bind(ctx, "join", seen, seen.LeaseID, m)
	return bound.ModRevision, err
}

// bind commits the put of a registration that is still as seen, and who stands by it.
func (c *Client) bind(ctx context.Context, verb string, seen Registration, leaseID int64, m Standing, puts ...clientv3.Op) (bound Registration, err error) {
	id, name := seen.BrokerID, cmp.Or(m.Name, seen.BrokerID)
	defer during(&err, "%s registration of broker %s", verb, id)
	if err := errors.Join(checkBroker(id), checkBroker(name)); err != nil {
		return bound, err
	}
	if leaseID == 0 {
		return bound, errNoLease
	}
	puts = append(puts, c.putMember(id, m.Member))
	guards := []clientv3.Cmp{
		there(c.keys.Registration(id)),
		written(c.keys.Registration(id), seen.ModRevision),
		written(c.keys.Member(name), m.MemberRevision),
	}
	if m.State != nil {
		guards = append(guards, written(c.keys.State(id), m.StateRevision))
		puts = append(puts, c.putState(id, *m.State))
	}
	_, revision, err := c.write(ctx, guards, puts...)
	if err != nil {
		return bound, err
	}
	bound = seen
	bound.LeaseID, bound.ModRevision = leaseID, revision
	return bound, nil
}

// PutState writes a broker's state if its mod revision is still the guard; 0 means that
// it must be absent. It returns the new mod revision, or ErrChanged.
func (c *Client) PutState(ctx context.Context, brokerID string, w StateWrite, guard int64) (revision int64, err error) {
	defer during(&err, "write state of broker %s", brokerID)
	_, revision, err = c.write(ctx, []clientv3.Cmp{written(c.keys.State(brokerID), guard)}, c.putState(brokerID, w))
	return revision, err
}

func (c *Client) putState(brokerID string, w StateWrite) clientv3.Op {
	w.At = w.At.UTC()
	return putJSON(c.keys.State(brokerID), w)
}

// putMember writes the record of a broker that is registered under the id.
func (c *Client) putMember(id string, m Member) clientv3.Op {
	name := cmp.Or(m.Name, id)
	m.At, m.Cut = m.At.UTC(), m.Cut.kept()
	if m.RegisteredAs = ""; name != id {
		m.RegisteredAs = id
	}
	return putJSON(c.keys.Member(name), m)
}

// LeaveRequest says which registration is about to be given up on purpose.
type LeaveRequest struct {
	// Seen guards the note: the state and the member record are still as seen. It names the
	// broker.
	Seen    Snapshot
	Epoch   int64 // create revision of the registration that we hold
	LeaseID int64 // that it is under
	Left    Left
}

// Leave notes in the member record that the broker leaves on purpose. The lease is still to
// be revoked: until then the broker is registered. It returns the revision, and ErrChanged
// when the registration is not that one under that lease any more, or the
// state or the member record is not as seen.
func (c *Client) Leave(ctx context.Context, req LeaveRequest) (revision int64, err error) {
	id, name := req.Seen.BrokerID, req.Seen.name()
	defer during(&err, "note that broker %s leaves", id)
	if req.Seen.Member == nil {
		return 0, errNoMember
	}
	m := *req.Seen.Member
	m.Name, m.Left = name, &req.Left
	m.Left.At = m.Left.At.UTC()
	_, revision, err = c.write(ctx, []clientv3.Cmp{
		created(c.keys.Registration(id), req.Epoch),
		under(c.keys.Registration(id), req.LeaseID),
		written(c.keys.State(id), req.Seen.StateRevision),
		written(c.keys.Member(name), req.Seen.MemberRevision),
	}, c.putMember(id, m))
	return revision, err
}

// HealthNote says of which registration the broker is well or ill.
type HealthNote struct {
	Who         Who
	Epoch       int64 // create revision of the registration that we hold
	LeaseID     int64 // that it is under
	Incarnation string
	Health      Health
}

// NoteHealth has the member record say how the broker is, and reports whether that was news. It
// returns ErrChanged when the registration is not that one under that lease any more, or the
// record is not ours, cannot be read, says that the broker leaves, or was written meanwhile.
func (c *Client) NoteHealth(ctx context.Context, n HealthNote) (news bool, err error) {
	defer during(&err, "note the health of broker %s", n.Who.Name)
	registration, record := c.keys.Registration(n.Who.Registered), c.keys.Member(n.Who.Name)
	found, _, err := c.gets(ctx, []string{registration, record})
	if err != nil {
		return false, err
	}
	reg := found[0]
	m, _ := memberOf(found[1])
	switch {
	case reg == nil || reg.CreateRevision != n.Epoch || reg.Lease != n.LeaseID,
		m == nil || m.Incarnation != n.Incarnation || m.Left != nil || m.Cut != nil && m.Cut.Malformed != "":
		return false, ErrChanged
	case m.Health == n.Health:
		return false, nil
	}
	if m.Name, m.Health = n.Who.Name, n.Health; m.ModRevision == reg.ModRevision {
		m.Bound = m.ModRevision
	}
	_, _, err = c.write(ctx, []clientv3.Cmp{written(registration, reg.ModRevision), written(record, m.ModRevision)},
		c.putMember(n.Who.Registered, *m))
	return err == nil, err
}
