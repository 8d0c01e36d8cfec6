package memory

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// binder is what a transaction asks the lessor, and tells it.
type binder interface {
	known(lease int64) bool
	// bind moves the key from one lease to another; 0 is none.
	bind(key string, from, to int64)
}

// txn is one transaction under way. etcd decides all guards, the nested ones too, and
// refuses what cannot be done, before it writes anything; so does this. path holds the
// decisions in the order in which the transactions are met; next is the one to take.
type txn struct {
	store  *store
	leases binder
	path   []bool
	next   int
}

func (x *txn) decision() bool {
	d := x.path[x.next]
	x.next++
	return d
}

func branch(r *pb.TxnRequest, succeeded bool) []*pb.RequestOp {
	if succeeded {
		return r.GetSuccess()
	}
	return r.GetFailure()
}

// run decides, checks and executes. After an error nothing has changed. The caller
// commits.
func (x *txn) run(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	x.decide(r)
	if err := x.check(r); err != nil {
		return nil, err
	}
	x.next = 0
	answer := x.execute(r)
	answer.Header = &pb.ResponseHeader{Revision: x.store.reading()}
	return answer, nil
}

func (x *txn) decide(r *pb.TxnRequest) {
	succeeded := true
	for _, c := range r.GetCompare() {
		if succeeded = x.holds(c); !succeeded {
			break
		}
	}
	x.path = append(x.path, succeeded)
	for _, op := range branch(r, succeeded) {
		if nested, ok := op.Request.(*pb.RequestOp_RequestTxn); ok {
			x.decide(nested.RequestTxn)
		}
	}
}

// holds evaluates one guard. It must hold for every key of a range. What is absent counts
// as zeros, but has no value to compare.
func (x *txn) holds(c *pb.Compare) bool {
	found, all := false, true
	x.store.each(span{c.Key, c.RangeEnd}, x.store.revision, func(kv *KV) bool {
		found, all = true, compare(c, kv)
		return all
	})
	if !found {
		return c.Target != pb.Compare_VALUE && compare(c, &KV{})
	}
	return all
}

func compare(c *pb.Compare, kv *KV) bool {
	var order int
	switch c.Target {
	case pb.Compare_VALUE:
		order = bytes.Compare([]byte(kv.Value), c.GetValue())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	case pb.Compare_LESS:
		return order < 0
	}
	return true
}

// check refuses what the store's state forbids on the branches taken.
func (x *txn) check(r *pb.TxnRequest) error {
	for _, op := range branch(r, x.decision()) {
		var err error
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = x.checkRange(op.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = x.checkPut(op.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = x.check(op.RequestTxn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *txn) checkRange(r *pb.RangeRequest) error {
	switch {
	case r.Revision > x.store.revision:
		return rpctypes.ErrGRPCFutureRev
	case r.Revision != 0 && r.Revision < x.store.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

func (x *txn) checkPut(r *pb.PutRequest) error {
	if r.Lease != 0 && !x.leases.known(r.Lease) {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	if r.IgnoreValue || r.IgnoreLease {
		if _, ok := x.store.get(r.Key); !ok {
			return rpctypes.ErrGRPCKeyNotFound
		}
	}
	return nil
}

func (x *txn) execute(r *pb.TxnRequest) *pb.TxnResponse {
	answer := &pb.TxnResponse{Succeeded: x.decision()}
	answer.Header = &pb.ResponseHeader{} // stays empty in a nested one
	ops := branch(r, answer.Succeeded)
	answer.Responses = make([]*pb.ResponseOp, len(ops))
	for i, op := range ops {
		done := &pb.ResponseOp{}
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			done.Response = &pb.ResponseOp_ResponseRange{ResponseRange: x.scan(op.RequestRange)}
		case *pb.RequestOp_RequestPut:
			done.Response = &pb.ResponseOp_ResponsePut{ResponsePut: x.put(op.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			done.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: x.remove(op.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			done.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: x.execute(op.RequestTxn)}
		}
		answer.Responses[i] = done
	}
	return answer
}

func (x *txn) put(r *pb.PutRequest) *pb.PutResponse {
	before, existed := x.store.get(r.Key)
	lease, oldLease := r.Lease, int64(0)
	var value string
	switch {
	case r.IgnoreValue && existed:
		value = before.Value
	default:
		value = string(r.Value)
	}
	if existed {
		oldLease = before.Lease
		if r.IgnoreLease {
			lease = oldLease
		}
	}
	key := string(r.Key)
	x.store.put(key, value, lease)
	x.leases.bind(key, oldLease, lease)
	answer := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: x.store.reading()}}
	if r.PrevKv && existed {
		answer.PrevKv = message(before)
	}
	return answer
}

func (x *txn) remove(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	var gone []*KV
	x.store.each(span{r.Key, r.RangeEnd}, x.store.reading(), func(kv *KV) bool {
		gone = append(gone, kv)
		return true
	})
	answer := &pb.DeleteRangeResponse{Deleted: int64(len(gone))}
	for _, kv := range gone {
		x.store.remove(kv.Key)
		x.leases.bind(kv.Key, kv.Lease, 0)
		if r.PrevKv {
			answer.PrevKvs = append(answer.PrevKvs, message(kv))
		}
	}
	answer.Header = &pb.ResponseHeader{Revision: x.store.reading()}
	return answer
}

// scan answers a range that checkRange has let through.
func (x *txn) scan(r *pb.RangeRequest) *pb.RangeResponse {
	now := x.store.reading()
	answer := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: now}}
	revision := r.Revision
	if revision <= 0 {
		revision = now
	}
	filtered := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	// Without an order etcd cuts by key and sorts afterwards.
	byKey := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
	most := int64(0) // 0: no bound
	if r.Limit > 0 && byKey && !filtered {
		most = r.Limit + 1
	}
	var found []*KV
	x.store.each(span{r.Key, r.RangeEnd}, revision, func(kv *KV) bool {
		answer.Count++
		if !r.CountOnly && (most == 0 || int64(len(found)) < most) && passes(r, kv) {
			found = append(found, kv)
		}
		return true
	})
	order(found, r)
	if r.Limit > 0 && int64(len(found)) > r.Limit {
		found, answer.More = found[:r.Limit], true
	}
	answer.Kvs = make([]*mvccpb.KeyValue, len(found))
	for i, kv := range found {
		answer.Kvs[i] = message(kv)
		if r.KeysOnly {
			answer.Kvs[i].Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE { // read from etcd's index, which has no leases
				answer.Kvs[i].Lease = 0
			}
		}
	}
	return answer
}

func passes(r *pb.RangeRequest, kv *KV) bool {
	return (r.MaxModRevision == 0 || kv.ModRevision <= r.MaxModRevision) &&
		(r.MinModRevision == 0 || kv.ModRevision >= r.MinModRevision) &&
		(r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) &&
		(r.MinCreateRevision == 0 || kv.CreateRevision >= r.MinCreateRevision)
}

// order sorts what is in the order of keys already. Where etcd's order of equals is up to
// its sort, here it is that of the keys.
func order(kvs []*KV, r *pb.RangeRequest) {
	var by func(a, b *KV) int
	switch r.SortTarget {
	case pb.RangeRequest_KEY:
		if r.SortOrder != pb.RangeRequest_DESCEND {
			return
		}
		by = func(a, b *KV) int { return cmp.Compare(a.Key, b.Key) }
	case pb.RangeRequest_VERSION:
		by = func(a, b *KV) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		by = func(a, b *KV) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		by = func(a, b *KV) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		by = func(a, b *KV) int { return cmp.Compare(a.Value, b.Value) }
	}
	if r.SortOrder == pb.RangeRequest_DESCEND {
		up := by
		by = func(a, b *KV) int { return up(b, a) }
	}
	slices.SortStableFunc(kvs, by)
}

// message is the key for an answer, which owns it.
func message(kv *KV) *mvccpb.KeyValue {
	m := &mvccpb.KeyValue{
		Key: []byte(kv.Key), Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version,
	}
	if kv.Value != "" {
		m.Value = []byte(kv.Value)
	}
	return m
}
