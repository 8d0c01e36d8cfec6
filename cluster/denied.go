package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// denied says which right is missing for what etcd has denied, and how to grant it. etcd does not say:
// it is asked about one half and the other. Of 128 keys that takes seven answers.
func (c *Client) denied(ctx context.Context, err error, guards []clientv3.Cmp, ops ...clientv3.Op) error {
	if !Denied(err) {
		return err
	}
	left := takes(guards, ops)
	for len(left) > 1 {
		half := left[:min(len(left)/2, getsPerTxn)]
		// What stands there for a comparison that failed is never done, and its rights are looked at.
		_, why := once(ctx, c.members, commit(nil, nil, half...))
		if why != nil && !Denied(why) {
			return fmt.Errorf("%w at %s, or at another of its %d keys", err, left[0].KeyBytes(), len(left))
		}
		if left = left[len(half):]; why != nil {
			left = half
		}
	}
	key, kind, grant := string(left[0].KeyBytes()), "write", "readwrite" // what is written is read, too
	if left[0].IsGet() {
		kind, grant = "read", "read"
	}
	if len(left[0].RangeBytes()) > 0 {
		key = key[:strings.LastIndex(key, "/")+1]
	}
	to := c.keys.granted(key, kind == "write")
	if strings.HasSuffix(to, "/") {
		grant = "--prefix=true " + grant
	}
	return fmt.Errorf("%w to %s %s: etcdctl role grant-permission ROLE %s %s", err, kind, key, grant, to)
}

// takes is what etcd looks at the rights for, what is written first: guards are read.
func takes(guards []clientv3.Cmp, ops []clientv3.Op) (all []clientv3.Op) {
	for _, op := range ops {
		if nested, then, orElse := op.Txn(); op.IsTxn() {
			all = append(all, takes(nested, slices.Concat(then, orElse))...)
		} else {
			all = append(all, op)
		}
	}
	for _, g := range guards {
		all = append(all, clientv3.OpGet(string(g.KeyBytes()), clientv3.WithRange(string(g.GetCompare().RangeEnd))))
	}
	return all
}
