package memory

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Txn implements etcd's KV service.
func (s *Server) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, s.cfg.MaxTxnOps); err != nil {
		return nil, err
	}
	if err := checkKeys(r); err != nil {
		return nil, err
	}
	if err := s.begin(pb.KV_Txn_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	answer, err := s.txn().run(r)
	if err != nil {
		return nil, err
	}
	s.commit(Change{Cause: ByRequest})
	s.head(answer.Header)
	return answer, nil
}

func (s *Server) txn() *txn { return &txn{store: &s.store, leases: &s.lessor} }

// Range implements etcd's KV service.
func (s *Server) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	if err := s.begin(pb.KV_Range_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	x := s.txn()
	if r.Revision > 0 {
		if err := x.checkRange(r); err != nil {
			return nil, err
		}
	}
	answer := x.scan(r)
	s.head(answer.Header)
	return answer, nil
}

// Put implements etcd's KV service.
func (s *Server) Put(_ context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if err := s.begin(pb.KV_Put_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	x := s.txn()
	if err := x.checkPut(r); err != nil {
		return nil, err
	}
	answer := x.put(r)
	s.commit(Change{Cause: ByRequest})
	s.head(answer.Header)
	return answer, nil
}

// DeleteRange implements etcd's KV service.
func (s *Server) DeleteRange(_ context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	if err := s.begin(pb.KV_DeleteRange_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	answer := s.txn().remove(r)
	s.commit(Change{Cause: ByRequest})
	s.head(answer.Header)
	return answer, nil
}

// Compact implements etcd's KV service. Watches under way go on.
func (s *Server) Compact(_ context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := s.begin(pb.KV_Compact_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	switch {
	case r.Revision <= s.store.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > s.store.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	}
	s.store.compact(r.Revision)
	return &pb.CompactionResponse{Header: s.head(&pb.ResponseHeader{})}, nil
}
