package cluster

import (
	"cmp"
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	// errNoLease guards against a registration that would never run out.
	errNoLease  = errors.New("a registration needs a lease")
	errNoMember = errors.New("there is no member record to note it in")
)

// RegisterRequest says what to register, or to keep, and what it was decided on.
type RegisterRequest struct {
	LeaseID int64
	Value   []byte
	// Seen guards the transaction. What is registered is absent, and era, state and member record
	// are still as seen; so is the peer or, if nobody was registered, that nobody is. It names
	// the broker.
	Seen Snapshot
	// State is written in the same revision; nil leaves the state key alone.
	State *State
	// Member has what else the record is to say: Incarnation, Data, Instance, Health, At, Since, Away,
	// Cut, Suspect.
	Member
	// Begins has a registration that is kept write an era: nobody else is registered.
	Begins bool
}

// Registered is the outcome of Register.
type Registered struct {
	Revision int64 // create revision of the registration: the epoch
	Era      int64 // the era that the broker registered in
}

// Register writes the registration, the member record, the state if one is given, and the era
// if it begins one, in one transaction. It returns ErrChanged when a guard does not hold and
// ErrLeaseNotFound when the lease is gone.
func (c *Client) Register(ctx context.Context, req RegisterRequest) (done Registered, err error) {
	seen, id := req.Seen, req.Seen.BrokerID
	defer during(&err, "register broker %s", id)
	if req.LeaseID == 0 {
		return done, errNoLease
	}
	req.Begins = !seen.AnyRegistered
	ops := append(c.stand(req), putUnder(c.keys.Registration(id), string(req.Value), req.LeaseID))
	_, revision, err := c.write(ctx, []clientv3.Cmp{
		created(c.keys.Registration(id), 0),
		written(c.keys.Era(), seen.Era.ModRevision),
		written(c.keys.State(id), seen.StateRevision),
		written(c.keys.Member(seen.name()), seen.MemberRevision),
		c.company(seen),
	}, ops...)
	return Registered{Revision: revision, Era: req.era()}, err
}

// MayRegister asks whether etcd lets our user write what a registration writes. Nothing is written.
func (c *Client) MayRegister(ctx context.Context, seen Snapshot) (err error) {
	defer during(&err, "ask for the rights to register broker %s", seen.BrokerID)
	var ops []clientv3.Op
	for _, key := range []string{c.keys.Registration(seen.BrokerID), c.keys.State(seen.BrokerID), c.keys.Member(seen.name()), c.keys.Era()} {
		ops = append(ops, clientv3.OpDelete(key))
	}
	_, err = once(ctx, c.members, commit(nil, nil, ops...)) // nothing is compared: what else would be done is not
	return c.denied(ctx, err, nil, ops...)
}

// era is the one that the registration is in.
func (req RegisterRequest) era() int64 {
	if req.Begins {
		return req.Seen.Era.N + 1
	}
	return req.Seen.Era.N
}

// stand writes who stands by a registration, the state if one is given, and the era if one begins.
func (c *Client) stand(req RegisterRequest) []clientv3.Op {
	m := req.Member
	m.Name, m.Era, m.Revision = req.Seen.name(), req.era(), req.Seen.Revision
	ops := []clientv3.Op{c.putMember(req.Seen.BrokerID, m)}
	if req.Begins {
		ops = append(ops, putJSON(c.keys.Era(), eraValue{m.Era}))
	}
	if req.State != nil {
		ops = append(ops, c.putState(req.Seen.BrokerID, *req.State))
	}
	return ops
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

// Keep stands by the registration that was seen, and writes that and the state if one is given in
// one transaction: once the member record is there the registration is no news, so what was decided
// about it must stand by then. With a LeaseID it is put under that lease, with the bytes of Value or,
// without, as it is; else it is not touched. Its create revision stays. What is written
// in place of the member record takes a note of a planned stop away, once. It returns the revision,
// and ErrChanged when the registration, the member record or the state is not as seen any more.
func (c *Client) Keep(ctx context.Context, req RegisterRequest) (revision int64, err error) {
	seen, key := req.Seen, c.keys.Registration(req.Seen.BrokerID)
	defer during(&err, "keep registration of broker %s", seen.BrokerID)
	guards := []clientv3.Cmp{
		there(key),
		written(key, seen.Registration.ModRevision),
		written(c.keys.Member(seen.name()), seen.MemberRevision),
	}
	if req.State != nil {
		guards = append(guards, written(c.keys.State(seen.BrokerID), seen.StateRevision))
	}
	if req.Begins {
		guards = append(guards, written(c.keys.Era(), seen.Era.ModRevision))
	}
	if m := seen.Member; req.LeaseID == 0 && m != nil && m.WrittenWith(*seen.Registration) { // it goes on saying who bound it
		req.Member.Bound = seen.Registration.ModRevision
	}
	ops := c.stand(req)
	switch {
	case req.LeaseID == 0:
	case req.Value == nil:
		ops = append(ops, putUnder(key, "", req.LeaseID, clientv3.WithIgnoreValue()))
	default:
		ops = append(ops, putUnder(key, string(req.Value), req.LeaseID))
	}
	_, revision, err = c.write(ctx, guards, ops...)
	return revision, err
}

// PutState writes a broker's state if its mod revision is still the guard; 0 means that
// it must be absent. It returns the new mod revision, or ErrChanged.
func (c *Client) PutState(ctx context.Context, brokerID string, w State, guard int64) (revision int64, err error) {
	defer during(&err, "write state of broker %s", brokerID)
	_, revision, err = c.write(ctx, []clientv3.Cmp{written(c.keys.State(brokerID), guard)}, c.putState(brokerID, w))
	return revision, err
}

func (c *Client) putState(brokerID string, w State) clientv3.Op {
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
