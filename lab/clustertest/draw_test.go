package clustertest

import (
	"bytes"
	"math/rand/v2"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// draw makes random requests. There are few keys, values and leases, so that they meet;
// fewer keys than twelve, because etcd sorts more than that by an algorithm that leaves
// the order of equals open.
type draw struct {
	*rand.Rand
	state *drawn
}

// drawn is what later requests depend on.
type drawn struct {
	revision  int64 // the newest that an answer had
	compacted int64 // asked for last
}

func (d draw) one(in int) bool { return d.IntN(in) == 0 }

func (d draw) key() []byte {
	if d.one(100) {
		return nil
	}
	keys := []string{"a", "b", "b/1", "b/2", "b/3", "c", "c/1", "c/2", "d"}
	return []byte(keys[d.IntN(len(keys))])
}

func (d draw) value() []byte {
	return []byte([]string{"", "1", "2", "3"}[d.IntN(4)])
}

func (d draw) span() (key, end []byte) {
	key = d.key()
	switch d.IntN(5) {
	case 0:
		end = d.key() // may lie before it
	case 1:
		end = []byte{0}
	case 2:
		if len(key) > 0 {
			end = []byte(clientv3.GetPrefixRangeEnd(string(key)))
		}
	}
	return key, end
}

// lease is one that may be granted, or none.
func (d draw) lease() int64 { return int64(d.IntN(5)) }

// grant is of a lease that outlives the test, or of one that nothing is bound to, with a
// TTL that is raised or refused.
func (d draw) grant() *pb.LeaseGrantRequest {
	if d.one(3) {
		return &pb.LeaseGrantRequest{ID: 100 + d.Int64N(1<<62), TTL: []int64{-1, 0, 1, 9_000_000_001}[d.IntN(4)]}
	}
	return &pb.LeaseGrantRequest{ID: 1 + d.lease(), TTL: 1000 * (1 + int64(d.IntN(2)))}
}

// past is a revision, mostly of the past.
func (d draw) past() int64 {
	if d.one(6) {
		return d.state.compacted + int64(d.IntN(3)) - 1
	}
	return max(d.state.revision-int64(d.IntN(20))+1, 1)
}

func (d draw) put() *pb.PutRequest {
	r := &pb.PutRequest{Key: d.key(), Value: d.value(), Lease: d.lease(), PrevKv: d.one(4)}
	if d.one(6) {
		r.IgnoreValue = true
		if !d.one(6) {
			r.Value = nil
		}
	}
	if d.one(6) {
		r.IgnoreLease = true
		if !d.one(6) {
			r.Lease = 0
		}
	}
	return r
}

func (d draw) remove() *pb.DeleteRangeRequest {
	r := &pb.DeleteRangeRequest{PrevKv: d.one(3)}
	r.Key, r.RangeEnd = d.span()
	return r
}

func (d draw) scan() *pb.RangeRequest {
	r := &pb.RangeRequest{KeysOnly: d.one(4), CountOnly: d.one(8)}
	r.Key, r.RangeEnd = d.span()
	if d.one(2) {
		r.Limit = int64(d.IntN(4))
	}
	if d.one(3) {
		r.SortOrder, r.SortTarget = pb.RangeRequest_SortOrder(d.IntN(3)), pb.RangeRequest_SortTarget(d.IntN(5))
	}
	if d.one(50) {
		r.SortTarget = 9
	}
	if d.one(3) {
		r.Revision = d.past()
	}
	for _, bound := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if d.one(10) {
			*bound = d.past()
		}
	}
	return r
}

func (d draw) guard() *pb.Compare {
	c := &pb.Compare{Result: pb.Compare_CompareResult(d.IntN(4)), Target: pb.Compare_CompareTarget(d.IntN(5))}
	c.Key, c.RangeEnd = d.span()
	number := int64(0)
	if d.one(2) {
		number = d.past()
	}
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: int64(d.IntN(4))}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: number}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: number}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: d.value()}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: d.lease()}
	}
	return c
}

func (d draw) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range d.IntN(3) {
		r.Compare = append(r.Compare, d.guard())
	}
	r.Success, r.Failure = d.ops(depth), d.ops(depth)
	return r
}

func (d draw) ops(depth int) (ops []*pb.RequestOp) {
	n := d.IntN(4)
	if d.one(40) {
		n = mostOps + d.IntN(2)
	}
	for range n {
		op := &pb.RequestOp{}
		switch k := d.IntN(10); {
		case k < 4:
			op.Request = &pb.RequestOp_RequestPut{RequestPut: d.put()}
		case k < 6:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: d.scan()}
		case k < 7:
			r := d.remove()
			if string(r.RangeEnd) == "\x00" {
				// etcd 3.7.3 does not see that such a delete overlaps a put of the same
				// transaction, and panics if that put keeps the value or the lease.
				r.RangeEnd = nil
			}
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}
		case depth < 3:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: d.txn(depth + 1)}
		default:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: d.scan()}
		}
		ops = append(ops, op)
	}
	return ops
}

func sortKeys(keys [][]byte) { slices.SortFunc(keys, bytes.Compare) }
