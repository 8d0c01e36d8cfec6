package cluster

import (
	"cmp"
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Process is one of a broker's, by the id that it is registered under.
type Process struct {
	BrokerID     string        // of the registration and the state
	Registration *Registration // nil: read, and absent
	State        *State        // nil: absent, or malformed
	// StateMalformed is not empty when the state is there and cannot be read; it holds
	// the value, at most 200 bytes of it.
	StateMalformed string
	StateRevision  int64 // mod revision of the state, readable or not; 0: absent
}

func processOf(id string, registration, state []KV) Process {
	s, malformed := stateOf(first(state))
	return Process{id, registrationOf(id, first(registration)), s, malformed, first(state).revision()}
}

// Snapshot is what one decision about one broker needs, read at one revision.
type Snapshot struct {
	Process
	Name           string  // of the member record
	Revision       int64   // of the store, when this was read
	ClusterID      uint64  // that etcd gives itself
	Member         *Member // nil: absent, or malformed
	MemberRevision int64   // mod revision of the member record, readable or not; 0: absent
	// MemberMalformed says what stands there instead, and at which key, if it cannot be read.
	MemberMalformed string
	Era             Era
	AnyRegistered   bool // somebody is registered, this broker included
	// Peer is one of the registrations of others, whichever is cheapest to find; zero: there
	// are none.
	Peer Peer
	// OldestPeerRevision is the smallest create revision among the registrations of
	// others; 0: there are none, or it was not asked for.
	OldestPeerRevision int64
	// Former is the broker's process before this one, where that had an id of its own;
	// its BrokerID is empty if none was asked for.
	Former Process
}

// name is that of the member record.
func (s Snapshot) name() string { return cmp.Or(s.Name, s.BrokerID) }

// Who says under which ids one broker is to be looked up.
type Who struct {
	Name       string // of the member record
	Registered string // of the registration and the state
	Former     string // of an earlier process's; empty: none
	// Oldest asks for Snapshot.OldestPeerRevision: etcd reads and sorts all registrations.
	Oldest bool
}

// Peer is another broker's registration as far as a guard needs it.
type Peer struct {
	Key            string
	CreateRevision int64
}

// Reach returns nil when etcd answers and lets us in. It reads one key that whoever has a
// right here may read; a right on another broker's keys is not asked for.
func (c *Client) Reach(ctx context.Context) (err error) {
	defer during(&err, "read the era")
	_, _, err = c.get(ctx, c.keys.Era(), clientv3.WithKeysOnly())
	return err
}

// Snapshot reads everything about one broker, which has one id, in one transaction.
func (c *Client) Snapshot(ctx context.Context, brokerID string) (Snapshot, error) {
	return c.SnapshotOf(ctx, Who{Name: brokerID, Registered: brokerID})
}

// SnapshotOf is Snapshot for a broker whose registration has another id at each start. No
// registration of its own is a peer's.
func (c *Client) SnapshotOf(ctx context.Context, who Who) (s Snapshot, err error) {
	defer during(&err, "read cluster state of broker %s", who.Name)
	if err := errors.Join(checkBroker(who.Name), checkBroker(who.Registered), checkBroker(cmp.Or(who.Former, who.Name))); err != nil {
		return s, err
	}
	gets := []clientv3.Op{c.getPeer(who)}
	for _, key := range []string{c.keys.Registration(who.Registered), c.keys.State(who.Registered), c.keys.Member(who.Name), c.keys.Era(),
		c.keys.Registration(who.Former), c.keys.State(who.Former)} {
		gets = append(gets, clientv3.OpGet(key))
	}
	if who.Former == "" {
		gets = gets[:5]
	}
	found, head, err := c.read(ctx, gets...)
	if err != nil {
		return s, err
	}
	member := first(found[3])
	s = Snapshot{Process: processOf(who.Registered, found[1], found[2]), Name: who.Name, Revision: head.Revision, ClusterID: head.ClusterId,
		MemberRevision: member.revision()}
	m, malformed := memberOf(member)
	s.Member, s.MemberMalformed = m, at(malformed, c.keys.Member(who.Name))
	if who.Former != "" {
		s.Former = processOf(who.Former, found[5], found[6])
	}
	if s.Era = eraOf(first(found[4])); s.Member != nil {
		s.Era.N = max(s.Era.N, s.Member.Era)
	}
	if len(found[0]) == 0 && string(gets[0].KeyBytes()) != c.keys.Registrations() { // the one that was asked for has gone
		if found, _, err = c.read(ctx, c.someRegistrations(clientv3.WithRev(s.Revision))); err != nil {
			return Snapshot{}, err
		}
	}
	s.AnyRegistered = s.Registration != nil || len(found[0]) > 0
	s.Peer = c.peerAmong(found[0], who)
	if who.Oldest {
		s.OldestPeerRevision = s.Peer.CreateRevision
	}
	return s, nil
}

// someRegistrations are enough of them to have a peer's among them, if there is one: two may
// be this broker's own, of the process that runs now and of the former one.
func (c *Client) someRegistrations(opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(c.keys.Registrations(), append(opts, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(3))...)
}

// getPeer reads a peer's registration. Whatever its limit, a range costs etcd a look at each
// key in it, and a sorted one much more. So the peer of the last snapshot is asked for by
// its key; when it has gone, the answer is empty and another is looked for.
func (c *Client) getPeer(who Who) clientv3.Op {
	if who.Oldest {
		return c.someRegistrations(clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	}
	if last := c.peer.Load(); last != nil && !c.own(who, last.Key) {
		return clientv3.OpGet(last.Key, clientv3.WithRange(last.Key+"\x00"), clientv3.WithKeysOnly()) // of a range of one
	}
	return c.someRegistrations()
}

// peerAmong is the first registration that is not the broker's own; zero: there is none.
func (c *Client) peerAmong(some []KV, who Who) (p Peer) {
	for _, kv := range some {
		if !c.own(who, kv.Key) {
			p = Peer{Key: kv.Key, CreateRevision: kv.CreateRevision}
			c.peer.Store(&p)
			return p
		}
	}
	c.peer.Store(nil)
	return p
}

// own reports whether the key is the registration of one of the broker's processes.
func (c *Client) own(who Who, key string) bool {
	return key == c.keys.Registration(who.Registered) || who.Former != "" && key == c.keys.Registration(who.Former)
}

// company guards whether somebody was registered. It proves that nobody was and nobody is,
// or that the peer that was seen has been registered ever since; of other peers it proves
// nothing. To compare a prefix, etcd reads all that is below it while it applies a write: so
// that is done only where it was seen to hold nobody, or nobody but this broker.
func (c *Client) company(seen Snapshot) clientv3.Cmp {
	anybody := there(c.keys.Registrations()).WithPrefix()
	switch {
	case seen.Peer.CreateRevision != 0:
		return created(seen.Peer.Key, seen.Peer.CreateRevision)
	case seen.AnyRegistered:
		return anybody
	}
	return created(c.keys.Registrations(), 0).WithPrefix()
}
