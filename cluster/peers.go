package cluster

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// PeerIDs lists who is registered but for own, of which the first is the broker's id now, in
// an order that the seed draws; see drawn.
func (c *Client) PeerIDs(ctx context.Context, seed string, own ...string) (ids []string, err error) {
	if err := checkBroker(own[0]); err != nil {
		return nil, err
	}
	ids, err = c.drawn(ctx, c.keys.Registrations(), c.keys.Registration(own[0]), seed)
	if err != nil {
		return nil, fmt.Errorf("read registrations of other brokers: %w", err)
	}
	return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(own, id) }), nil
}

// Peers is one linearizable read of the registrations of these brokers, MostPeers at most, and
// the raft term of its answer. What is bound to no lease never runs out, so it says nothing
// of anybody's life and is left out, as what is absent is.
func (c *Client) Peers(ctx context.Context, ids []string) (peers []Registration, term uint64, err error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		if err := checkBroker(id); err != nil {
			return nil, 0, err
		}
		keys[i] = c.keys.Registration(id)
	}
	found, head, err := c.gets(ctx, keys)
	if err != nil {
		return nil, 0, fmt.Errorf("read registrations of other brokers: %w", err)
	}
	for i, kv := range found {
		if kv != nil && kv.Lease != 0 {
			peers = append(peers, registrationOf(ids[i], kv))
		}
	}
	return peers, head.GetRaftTerm(), nil
}

// Members reads the member records of up to MostPeers brokers at one revision; 0: now. What is
// absent is not in the answer; what cannot be read is nil.
func (c *Client) Members(ctx context.Context, names []string, revision int64) (map[string]*Member, error) {
	if len(names) == 0 {
		return nil, nil
	}
	keys := make([]string, len(names))
	for i, name := range names {
		if err := checkBroker(name); err != nil {
			return nil, err
		}
		keys[i] = c.keys.Member(name)
	}
	found, _, err := c.gets(ctx, keys, clientv3.WithRev(revision))
	if err != nil {
		return nil, fmt.Errorf("read member records: %w", err)
	}
	members := map[string]*Member{}
	for i, kv := range found {
		if kv != nil {
			members[names[i]], _ = memberOf(kv)
		}
	}
	return members, nil
}
