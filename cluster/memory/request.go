package memory

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// What etcd refuses by the look of a request alone.

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if r.SortOrder < pb.RangeRequest_NONE || r.SortOrder > pb.RangeRequest_DESCEND ||
		r.SortTarget < pb.RangeRequest_KEY || r.SortTarget > pb.RangeRequest_VALUE {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn bounds the operations: the longest list of a transaction counts, and what a
// nested one may have is what its parent's leaves over.
func checkTxn(r *pb.TxnRequest, most int) error {
	longest := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if longest > most {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range ops {
			if err := checkOp(op, most-longest); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, most int) error {
	switch op := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(op.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(op.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDelete(op.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(op.RequestTxn, most)
	}
	return rpctypes.ErrGRPCKeyNotFound // etcd's answer to an empty operation
}

// checkKeys refuses a transaction that writes a key twice, as far as etcd sees it. It does
// not see a put by one nested transaction and a delete by a later one, nor that a delete
// with the end "\x00" goes on for ever.
func checkKeys(r *pb.TxnRequest) error {
	for _, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		if _, _, err := writes(ops); err != nil {
			return err
		}
	}
	return nil
}

func writes(ops []*pb.RequestOp) (puts map[string]bool, deletes []span, err error) {
	puts = make(map[string]bool, len(ops))
	deleted := func(key string) bool {
		for _, d := range deletes {
			if d.contains(key) {
				return true
			}
		}
		return false
	}
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil && string(d.RangeEnd) != "\x00" {
			deletes = append(deletes, span{d.Key, d.RangeEnd})
		}
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		then, thenDeletes, err := writes(nested.Success)
		if err != nil {
			return nil, nil, err
		}
		otherwise, otherwiseDeletes, err := writes(nested.Failure)
		if err != nil {
			return nil, nil, err
		}
		for key := range then {
			if puts[key] || deleted(key) {
				return nil, nil, rpctypes.ErrGRPCDuplicateKey
			}
		}
		for key := range otherwise {
			if puts[key] || deleted(key) { // both branches may put a key: one is taken
				return nil, nil, rpctypes.ErrGRPCDuplicateKey
			}
		}
		for _, keys := range []map[string]bool{then, otherwise} {
			for key := range keys {
				puts[key] = true
			}
		}
		deletes = append(append(deletes, thenDeletes...), otherwiseDeletes...)
	}
	for _, op := range ops {
		put := op.GetRequestPut()
		if put == nil {
			continue
		}
		if key := string(put.Key); puts[key] || deleted(key) {
			return nil, nil, rpctypes.ErrGRPCDuplicateKey
		} else {
			puts[key] = true
		}
	}
	return puts, deletes, nil
}
