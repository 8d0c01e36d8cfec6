package cluster

import (
	"cmp"
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Snapshot is what one decision about one broker needs, read at one revision.
type Snapshot struct {
	BrokerID     string        // of the registration and the state
	Name         string        // of the member record
	Revision     int64         // of the store, when this was read
	ClusterID    uint64        // that etcd gives itself
	Registration *Registration // nil: read, and absent
	State        *State        // nil: absent, or malformed
	// StateMalformed is not empty when the state is there and cannot be read; it holds
	// the value, at most 200 bytes of it.
	StateMalformed string
	StateRevision  int64   // mod revision of the state, readable or not; 0: absent
	Member         *Member // nil: absent, or malformed
	MemberRevision int64   // mod revision of the member record, readable or not; 0: absent
	// MemberMalformed says what stands there instead, and at which key, if it cannot be read.
	MemberMalformed string
	Era             Era
	// EraUnsure says why an era that cannot be read may be a later one than Era.N; empty: it is that.
	EraUnsure     string
	AnyRegistered bool // somebody is registered, this broker included
	// Peer is one of the registrations of others, whichever is cheapest to find; zero: there
	// are none.
	Peer Peer
	// OldestPeerRevision is the smallest create revision among the registrations of
	// others; 0: there are none, or it was not asked for.
	OldestPeerRevision int64
	eraUnasked         bool // see Who.Waits
	// Former is the broker's process before this one, where that had an id of its own;
	// its BrokerID is empty if none was asked for.
	Former Former
}

// Former is a broker's earlier process, which was registered under an id of its own.
type Former struct {
	BrokerID       string
	Registration   *Registration // nil: read, and absent
	State          *State        // nil: absent, or malformed
	StateMalformed string        // see Snapshot
	StateRevision  int64         // mod revision of the state, readable or not; 0: absent
}

// Who says under which ids one broker is to be looked up.
type Who struct {
	Name       string // of the member record
	Registered string // of the registration and the state
	Former     string // of an earlier process's; empty: none
	// Oldest asks for Snapshot.OldestPeerRevision: etcd reads and sorts all registrations.
	Oldest bool
	// Waits: it registers itself, and what it registers is not known yet. While it is not
	// registered, an era that its key does not tell is not looked for among all member records: it
	// is taken for the one that the broker remembers, and Register refuses what rests on that.
	Waits bool
}

// Snapshot reads everything about one broker, which has one id, in one transaction.
func (c *Client) Snapshot(ctx context.Context, brokerID string) (Snapshot, error) {
	return c.SnapshotOf(ctx, Who{Name: brokerID, Registered: brokerID})
}

// SnapshotOf is Snapshot for a broker whose registration has another id at each start. No
// registration of its own is a peer's.
func (c *Client) SnapshotOf(ctx context.Context, who Who) (Snapshot, error) {
	for _, id := range []string{who.Name, who.Registered, cmp.Or(who.Former, who.Name)} {
		if err := checkBroker(id); err != nil {
			return Snapshot{}, err
		}
	}
	s, err := c.snapshot(ctx, who)
	if err != nil {
		return Snapshot{}, fmt.Errorf("read cluster state of broker %s: %w", who.Name, err)
	}
	return s, nil
}

// Reach returns nil when etcd answers and lets us in. It reads one key that whoever has a
// right here may read; a right on another broker's keys is not asked for.
func (c *Client) Reach(ctx context.Context) error {
	if _, err := c.read(ctx, clientv3.OpGet(c.keys.Era(), clientv3.WithKeysOnly())); err != nil {
		return fmt.Errorf("read the era: %w", err)
	}
	return nil
}

func (c *Client) snapshot(ctx context.Context, who Who) (Snapshot, error) {
	brokerID, former := who.Registered, cmp.Or(who.Former, who.Registered)
	gets := []clientv3.Op{
		clientv3.OpGet(c.keys.Registration(brokerID)),
		clientv3.OpGet(c.keys.State(brokerID)),
		clientv3.OpGet(c.keys.Member(who.Name)),
		clientv3.OpGet(c.keys.Era()),
		c.getPeer(who),
	}
	if who.Former != "" {
		gets = append(gets, clientv3.OpGet(c.keys.Registration(former)), clientv3.OpGet(c.keys.State(former)))
	}
	answer, err := c.read(ctx, gets...)
	if err != nil {
		return Snapshot{}, err
	}
	if len(answer.Responses) != len(gets) {
		return Snapshot{}, fmt.Errorf("etcd answered %d of %d gets", len(answer.Responses), len(gets))
	}
	found := func(i int) *mvccpb.KeyValue {
		if kvs := answer.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	s := Snapshot{BrokerID: brokerID, Name: who.Name, Revision: answer.Header.Revision, ClusterID: answer.Header.ClusterId}
	if kv := found(0); kv != nil {
		r := registrationOf(brokerID, kv)
		s.Registration = &r
	}
	if kv := found(1); kv != nil {
		s.StateRevision = kv.ModRevision
		s.State, s.StateMalformed = stateOf(kv)
	}
	if kv := found(2); kv != nil {
		s.MemberRevision = kv.ModRevision
		if s.Member, s.MemberMalformed = memberOf(kv); s.Member == nil {
			s.MemberMalformed = fmt.Sprintf("%q at key %s", s.MemberMalformed, kv.Key)
		}
	}
	if who.Former != "" {
		s.Former.BrokerID = who.Former
		if kv := found(5); kv != nil {
			r := registrationOf(who.Former, kv)
			s.Former.Registration = &r
		}
		if kv := found(6); kv != nil {
			s.Former.StateRevision = kv.ModRevision
			s.Former.State, s.Former.StateMalformed = stateOf(kv)
		}
	}
	counted := false
	if kv := found(3); kv != nil {
		s.Era, counted = eraOf(kv)
	}
	if !counted {
		if err := c.recallEra(ctx, &s, who.Waits); err != nil {
			return Snapshot{}, err
		}
	} else if s.Member != nil {
		s.Era.N = max(s.Era.N, s.Member.Era)
	}
	some := answer.Responses[4].GetResponseRange().GetKvs()
	if len(some) == 0 && len(gets[4].RangeBytes()) == 0 { // the one that was asked for has gone
		if some, err = c.registrationsAt(ctx, s.Revision); err != nil {
			return Snapshot{}, err
		}
	}
	s.AnyRegistered = s.Registration != nil || len(some) > 0
	s.Peer = c.peerAmong(some, who)
	if who.Oldest {
		s.OldestPeerRevision = s.Peer.CreateRevision
	}
	return s, nil
}
