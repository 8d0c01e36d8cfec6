package memory

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// move hands the content of an answer over to the message that the caller has made for
// it. Nobody else has the answer, so nothing is copied.
func move(to, from any) {
	switch from := from.(type) {
	case *pb.TxnResponse:
		to := to.(*pb.TxnResponse)
		to.Header, to.Succeeded, to.Responses = from.Header, from.Succeeded, from.Responses
	case *pb.RangeResponse:
		to := to.(*pb.RangeResponse)
		to.Header, to.Kvs, to.More, to.Count = from.Header, from.Kvs, from.More, from.Count
	case *pb.PutResponse:
		to := to.(*pb.PutResponse)
		to.Header, to.PrevKv = from.Header, from.PrevKv
	case *pb.DeleteRangeResponse:
		to := to.(*pb.DeleteRangeResponse)
		to.Header, to.Deleted, to.PrevKvs = from.Header, from.Deleted, from.PrevKvs
	case *pb.CompactionResponse:
		to.(*pb.CompactionResponse).Header = from.Header
	case *pb.LeaseGrantResponse:
		to := to.(*pb.LeaseGrantResponse)
		to.Header, to.ID, to.TTL, to.Error = from.Header, from.ID, from.TTL, from.Error
	case *pb.LeaseRevokeResponse:
		to.(*pb.LeaseRevokeResponse).Header = from.Header
	case *pb.LeaseTimeToLiveResponse:
		to := to.(*pb.LeaseTimeToLiveResponse)
		to.Header, to.ID, to.TTL, to.GrantedTTL, to.Keys = from.Header, from.ID, from.TTL, from.GrantedTTL, from.Keys
	case *pb.LeaseLeasesResponse:
		to := to.(*pb.LeaseLeasesResponse)
		to.Header, to.Leases = from.Header, from.Leases
	case *pb.LeaseKeepAliveResponse:
		to := to.(*pb.LeaseKeepAliveResponse)
		to.Header, to.ID, to.TTL = from.Header, from.ID, from.TTL
	case *pb.WatchResponse:
		to := to.(*pb.WatchResponse)
		to.Header, to.WatchId, to.Created, to.Canceled = from.Header, from.WatchId, from.Created, from.Canceled
		to.CompactRevision, to.CancelReason, to.Fragment, to.Events = from.CompactRevision, from.CancelReason, from.Fragment, from.Events
	default:
		panic(fmt.Sprintf("no answer: %T", from))
	}
}
