package cluster

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Snapshot is what one decision about one broker needs, read at one revision.
type Snapshot struct {
	BrokerID     string
	Revision     int64         // of the store, when this was read
	ClusterID    uint64        // that etcd gives itself
	Registration *Registration // nil: read, and absent
	State        *State        // nil: absent, or malformed
	// StateMalformed is not empty when the state is there and cannot be read; it holds
	// the value, at most 200 bytes of it.
	StateMalformed string
	StateRevision  int64   // mod revision of the state, readable or not; 0: absent
	Member         *Member // nil: absent, or malformed
	// MemberMalformed is to Member what StateMalformed is to State.
	MemberMalformed string
	Era             Era
	AnyRegistered   bool // somebody is registered, this broker included
	// OldestPeerRevision is the smallest create revision among the registrations of
	// others; 0: there are none.
	OldestPeerRevision int64
}

// Snapshot reads everything about one broker in one transaction. An era that cannot be
// read is an error.
func (c *Client) Snapshot(ctx context.Context, brokerID string) (Snapshot, error) {
	if err := checkBroker(brokerID); err != nil {
		return Snapshot{}, err
	}
	s, err := c.snapshot(ctx, brokerID)
	if err != nil {
		return Snapshot{}, fmt.Errorf("read cluster state of broker %s: %w", brokerID, err)
	}
	return s, nil
}

func (c *Client) snapshot(ctx context.Context, brokerID string) (Snapshot, error) {
	answer, err := c.read(ctx,
		clientv3.OpGet(c.keys.Registration(brokerID)),
		clientv3.OpGet(c.keys.State(brokerID)),
		clientv3.OpGet(c.keys.Member(brokerID)),
		clientv3.OpGet(c.keys.Era()),
		// The two oldest: one of them may be this broker's own.
		clientv3.OpGet(c.keys.Registrations(), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(2)),
	)
	if err != nil {
		return Snapshot{}, err
	}
	if len(answer.Responses) != 5 {
		return Snapshot{}, fmt.Errorf("etcd answered %d of 5 gets", len(answer.Responses))
	}
	found := func(i int) *mvccpb.KeyValue {
		if kvs := answer.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
			return kvs[0]
		}
		return nil
	}
	s := Snapshot{BrokerID: brokerID, Revision: answer.Header.Revision, ClusterID: answer.Header.ClusterId}
	if kv := found(0); kv != nil {
		r := registrationOf(brokerID, kv)
		s.Registration = &r
	}
	if kv := found(1); kv != nil {
		s.StateRevision = kv.ModRevision
		s.State, s.StateMalformed = stateOf(kv)
	}
	if kv := found(2); kv != nil {
		s.Member, s.MemberMalformed = memberOf(kv)
	}
	if kv := found(3); kv != nil {
		if s.Era, err = eraOf(kv); err != nil {
			return Snapshot{}, err
		}
	}
	for _, kv := range answer.Responses[4].GetResponseRange().GetKvs() {
		s.AnyRegistered = true
		if string(kv.Key) != c.keys.Registration(brokerID) && s.OldestPeerRevision == 0 {
			s.OldestPeerRevision = kv.CreateRevision
		}
	}
	return s, nil
}
