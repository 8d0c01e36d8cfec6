package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// deniedLately is for how long a right that nobody asks for again is told of: what it was for may be
// over. What a sidecar cannot do without is asked for every few seconds.
const deniedLately = 2 * time.Minute

// Denial is a right that was asked for and denied, and not granted since.
type Denial struct {
	For   string    `json:"for"`   // one of Purposes
	Right string    `json:"right"` // "read" or "write"
	Key   string    `json:"key"`   // the last that was denied; one that ends in a slash: all below it
	Error string    `json:"error"` // what etcd says, with the command that grants it
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
}

// Denials are the rights that etcd denies, whoever asks: of all clients that share them. One ends when
// the right was asked for and granted, or was not asked for lately. The zero value is ready to use, and
// safe for concurrent use.
type Denials struct {
	mu    sync.Mutex
	open  map[string]Denial // by right and what is to be granted: that of many topics is one
	count map[string]int    // by purpose
}

// Look returns those that have not ended, the youngest first, and how many requests were denied so far, by
// what they were for.
func (d *Denials) Look(now time.Time) (open []Denial, count map[string]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.open, func(_ string, o Denial) bool { return now.Sub(o.Last) > deniedLately })
	return slices.SortedFunc(maps.Values(d.open), func(a, b Denial) int { return b.Since.Compare(a.Since) }), maps.Clone(d.count)
}

func (d *Denials) deny(granted string, n Denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		d.open, d.count = map[string]Denial{}, map[string]int{}
	}
	if was, open := d.open[n.Right+granted]; open {
		n.Since = was.Since
	}
	d.open[n.Right+granted] = n
	d.count[n.For]++
}

// grant takes up that etcd lets us do all this. Who may read below a key may read each key there.
func (d *Denials) grant(guards []clientv3.Cmp, ops []clientv3.Op) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range takes(guards, ops) {
		right, key := rightOf(op)
		maps.DeleteFunc(d.open, func(_ string, o Denial) bool {
			return o.Right == right && (o.Key == key || strings.HasSuffix(key, "/") && strings.HasPrefix(o.Key, key))
		})
	}
}

// denied takes up what came of a request. Of one that etcd denied it says which right is missing, and how
// to grant it. etcd does not say: it is asked about one half and the other. Of 128 keys that takes seven
// answers.
func (c *Client) denied(ctx context.Context, err error, guards []clientv3.Cmp, ops ...clientv3.Op) error {
	if err == nil || errors.Is(err, ErrChanged) {
		c.denials.grant(guards, ops)
	}
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
	right, key := rightOf(left[0])
	to, grant := c.keys.granted(key, right == "write"), "read"
	if right == "write" || key == c.keys.Era() { // and what is written is read, too; who finds nobody registered writes the era
		grant = "readwrite"
	}
	if strings.HasSuffix(to, "/") {
		grant = "--prefix=true " + grant
	}
	err = fmt.Errorf("%w to %s %s: etcdctl role grant-permission ROLE %s %s", err, right, key, grant, to)
	now := time.Now().UTC()
	c.denials.deny(to, Denial{c.keys.purpose(key), right, key, err.Error(), now, now})
	return err
}

// rightOf is the right that an operation of etcd takes. Of a range it is that on the prefix.
func rightOf(op clientv3.Op) (right, key string) {
	if right, key = "write", string(op.KeyBytes()); op.IsGet() {
		right = "read"
	}
	if len(op.RangeBytes()) > 0 {
		key = key[:strings.LastIndex(key, "/")+1]
	}
	return right, key
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
