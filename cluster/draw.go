package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MostPeers is how many other brokers are looked at, at most: two keys of each fill a
// transaction, of which etcd takes 128 operations.
const MostPeers = 64

// mostNames is how many names are drawn from, from the start of all and from behind the
// broker's own on each.
const mostNames = 1024

// drawn lists the names below a prefix but for the broker's own key, in an order that the seed
// draws. Brokers whose names are next to each other often share a rack or a zone, and their fate
// with it: a few of them do not stand for the fleet. Of a fleet that is larger than mostNames, not
// all need be in the list.
func (c *Client) drawn(ctx context.Context, prefix, own, seed string) (names []string, err error) {
	opts := []clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithLimit(mostNames)}
	answer, err := c.read(ctx,
		clientv3.OpGet(prefix, append(opts, clientv3.WithRange(own))...),
		clientv3.OpGet(own+"\x00", append(opts, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)))...))
	if err != nil {
		return nil, err
	}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			if name := strings.TrimPrefix(string(kv.Key), prefix); checkBroker(name) == nil {
				names = append(names, name)
			}
		}
	}
	lot := func(name string) uint64 { // of its own for each name: one that comes or goes moves no other
		h := sha256.Sum256([]byte(seed + " " + name))
		return binary.BigEndian.Uint64(h[:])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(lot(a), lot(b)) })
	return names, nil
}

// getsPerTxn is what etcd takes by default.
const getsPerTxn = 128

// gets asks for single keys and returns what there is in their order, nil for what there is not.
// Each getsPerTxn are read at one revision; the header is that of the first.
func (c *Client) gets(ctx context.Context, keys []string, opts ...clientv3.OpOption) (found []*mvccpb.KeyValue, head *etcdserverpb.ResponseHeader, err error) {
	found = make([]*mvccpb.KeyValue, 0, len(keys))
	for batch := range slices.Chunk(keys, getsPerTxn) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpGet(key, opts...)
		}
		answer, err := c.read(ctx, ops...)
		if err != nil {
			return nil, nil, err
		}
		if len(answer.Responses) != len(batch) {
			return nil, nil, fmt.Errorf("etcd answered %d of %d gets", len(answer.Responses), len(batch))
		}
		if head == nil {
			head = answer.Header
		}
		for _, r := range answer.Responses {
			found = append(found, nil)
			for _, kv := range r.GetResponseRange().GetKvs() {
				found[len(found)-1] = kv
			}
		}
	}
	return found, head, nil
}
