package cluster

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// deniedAsks is how often etcd is asked, at most, which right is missing.
const deniedAsks = 8

// denied says which right is missing for what etcd has denied, and how to grant it. etcd does not say:
// it is asked about one half and the other, and nothing is written.
func (c *Client) denied(ctx context.Context, err error, guards []clientv3.Cmp, ops ...clientv3.Op) error {
	if !Denied(err) {
		return err
	}
	all := takes(guards, ops)
	left := all
	for range deniedAsks {
		half := left[:min(len(left)/2, getsPerTxn)]
		var reads, writes []clientv3.Op
		for _, op := range half {
			if op.IsGet() {
				reads = append(reads, op)
			} else {
				writes = append(writes, op)
			}
		}
		if len(half) == 0 {
			break
		}
		// Nothing is compared: what else would be written is not, and its rights are looked at all the same.
		_, why := once(ctx, c.members, commit(nil, reads, writes...))
		if why != nil && !Denied(why) {
			break
		}
		if left = left[len(half):]; why != nil {
			left = half
		}
	}
	kind, key, command := right(left[0])
	for _, op := range all { // granted for itself, the one kind would replace the other
		if also, same, both := right(op); same == key && also == "write" {
			command = both
		}
	}
	if len(left) > 1 {
		return fmt.Errorf("%w at %s, or at one of %d other keys", err, key, len(left)-1)
	}
	return fmt.Errorf("%w to %s %s: %s", err, kind, key, command)
}

// takes has one operation for each right that a transaction takes: what guards compare is read.
func takes(guards []clientv3.Cmp, ops []clientv3.Op) (all []clientv3.Op) {
	seen := map[string]bool{}
	add := func(op clientv3.Op) {
		if _, _, command := right(op); !seen[command] {
			seen[command], all = true, append(all, op)
		}
	}
	read := func(key, end []byte) {
		add(clientv3.OpGet(string(key), clientv3.WithRange(string(end)), clientv3.WithCountOnly()))
	}
	for _, g := range guards {
		read(g.KeyBytes(), g.GetCompare().RangeEnd)
	}
	for _, op := range ops {
		switch nested, then, orElse := op.Txn(); {
		case op.IsTxn():
			for _, op := range takes(nested, append(then[:len(then):len(then)], orElse...)) {
				add(op)
			}
		case op.IsGet():
			read(op.KeyBytes(), op.RangeBytes())
		default:
			add(op)
		}
	}
	return all
}

// right is the one that an operation takes, and the command for it. What is written is read, too.
func right(op clientv3.Op) (kind, key, command string) {
	kind, key, command = "write", string(op.KeyBytes()), "readwrite "
	if op.IsGet() {
		kind, command = "read", "read "
	}
	if len(op.RangeBytes()) > 0 {
		key, command = key[:strings.LastIndex(key, "/")+1], "--prefix=true "+command
	}
	return kind, key, "etcdctl role grant-permission ROLE " + command + key
}
