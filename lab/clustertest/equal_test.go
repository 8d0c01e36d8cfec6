package clustertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"holdfast/cluster/memory"
	"holdfast/internal/testseed"
)

// mostOps is small, so that random transactions exceed it.
const mostOps = 6

// side is one of the two stores that are compared, at the level of the protocol.
type side struct {
	kv     pb.KVClient
	leases pb.LeaseClient
	watch  pb.WatchClient
}

func newSide(conn grpc.ClientConnInterface) side {
	return side{pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn)}
}

// TestRandomRequestsAreAnsweredAlike asks both stores, new ones with equal revisions, the
// same things.
func TestRandomRequestsAreAnsweredAlike(t *testing.T) {
	span := 5 * time.Second
	if testing.Short() {
		span = 1500 * time.Millisecond
	}
	cfg, _ := ownEtcd(t, func(cfg *embed.Config) { cfg.MaxTxnOps = mostOps })
	conn := must[*grpc.ClientConn](t)(grpc.NewClient(cfg.AdvertiseClientUrls[0].Host, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	p := &pair{
		t: t, draw: draw{testseed.New(t), &drawn{revision: 1}}, real: newSide(conn),
		fake: newSide(memory.New(memory.Config{MaxTxnOps: mostOps, MinTTL: time.Second}).Conn(nil)),
	}
	var steps int
	for end := time.Now().Add(span); time.Now().Before(end) && !t.Failed(); steps++ {
		p.step()
	}
	p.settle()
	t.Logf("%d requests, up to revision %d", steps, p.state.revision)
}

// pair asks both sides.
type pair struct {
	draw
	t          *testing.T
	real, fake side
	watches    []*watching
}

func (p *pair) step() {
	switch n := p.IntN(100); {
	case n < 20:
		r := p.put()
		compare(p, "put", r, func(s side) (*pb.PutResponse, error) { return s.kv.Put(bounded(p.t), r) })
	case n < 28:
		r := p.remove()
		compare(p, "delete", r, func(s side) (*pb.DeleteRangeResponse, error) { return s.kv.DeleteRange(bounded(p.t), r) })
	case n < 50:
		r := p.scan()
		compare(p, "range", r, func(s side) (*pb.RangeResponse, error) { return s.kv.Range(bounded(p.t), r) })
	case n < 80:
		r := p.txn(0)
		compare(p, "txn", r, func(s side) (*pb.TxnResponse, error) { return s.kv.Txn(bounded(p.t), r) })
	case n < 84:
		r := p.grant()
		compare(p, "grant", r, func(s side) (*pb.LeaseGrantResponse, error) { return s.leases.LeaseGrant(bounded(p.t), r) })
	case n < 87:
		r := &pb.LeaseRevokeRequest{ID: p.lease()}
		compare(p, "revoke", r, func(s side) (*pb.LeaseRevokeResponse, error) { return s.leases.LeaseRevoke(bounded(p.t), r) })
	case n < 90:
		r := &pb.LeaseTimeToLiveRequest{ID: p.lease(), Keys: true}
		compare(p, "time to live", r, func(s side) (*pb.LeaseTimeToLiveResponse, error) {
			return s.leases.LeaseTimeToLive(bounded(p.t), r)
		})
	case n < 93:
		r := &pb.LeaseKeepAliveRequest{ID: p.lease()}
		compare(p, "keep-alive", r, func(s side) (*pb.LeaseKeepAliveResponse, error) {
			stream, err := s.leases.LeaseKeepAlive(bounded(p.t))
			if err != nil {
				return nil, err
			}
			if err := stream.Send(r); err != nil {
				return nil, err
			}
			return stream.Recv()
		})
	case n < 98:
		if len(p.watches) > 20 {
			p.settle()
		}
		p.startWatch()
	default:
		p.settle() // etcd tells of the past when it gets to it, which may be after this
		r := &pb.CompactionRequest{Revision: p.past()}
		p.state.compacted = r.Revision
		compare(p, "compact", r, func(s side) (*pb.CompactionResponse, error) { return s.kv.Compact(bounded(p.t), r) })
	}
}

// compare has both sides answer and fails the test if they differ.
func compare[M proto.Message](p *pair, what string, request proto.Message, ask func(side) (M, error)) {
	p.t.Helper()
	real, realErr := ask(p.real)
	fake, fakeErr := ask(p.fake)
	switch {
	case fmt.Sprint(realErr) != fmt.Sprint(fakeErr):
		p.t.Fatalf("%s %v\netcd:   %v\nmemory: %v", what, prototext.Format(request), realErr, fakeErr)
	case realErr != nil:
		return
	}
	neutral(real)
	neutral(fake)
	if !proto.Equal(real, fake) {
		p.t.Fatalf("%s %v\netcd:   %v\nmemory: %v", what, prototext.Format(request), prototext.Format(real), prototext.Format(fake))
	}
	if head, ok := any(real).(interface{ GetHeader() *pb.ResponseHeader }); ok {
		p.state.revision = max(p.state.revision, head.GetHeader().GetRevision())
	}
}

// watching is one watch at both sides.
type watching struct {
	request    *pb.WatchCreateRequest
	real, fake pb.Watch_WatchClient
	stop       context.CancelFunc
}

func (p *pair) startWatch() {
	ctx, stop := context.WithCancel(p.t.Context())
	p.t.Cleanup(stop)
	w := &watching{request: &pb.WatchCreateRequest{PrevKv: p.one(2)}, stop: stop}
	w.request.Key, w.request.RangeEnd = p.span()
	if p.one(2) {
		w.request.StartRevision = p.past()
		if p.one(6) {
			w.request.StartRevision = p.state.revision + int64(p.IntN(6))
		}
	}
	if p.one(4) {
		w.request.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_FilterType(p.IntN(2))}
	}
	open := func(s side) pb.Watch_WatchClient {
		stream := must[pb.Watch_WatchClient](p.t)(s.watch.Watch(ctx))
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: w.request}}); err != nil {
			p.t.Fatal(err)
		}
		return stream
	}
	w.real, w.fake = open(p.real), open(p.fake)
	// What follows must come after the watch has begun, at either side.
	real, fake := p.answer(w.real), p.answer(w.fake)
	if !proto.Equal(real, fake) {
		p.t.Fatalf("watch %v\netcd:   %v\nmemory: %v", prototext.Format(w.request), real, fake)
	}
	if real.Canceled {
		stop()
		return
	}
	p.watches = append(p.watches, w)
}

// answer reads one answer of a watch.
func (p *pair) answer(stream pb.Watch_WatchClient) *pb.WatchResponse {
	p.t.Helper()
	type result struct {
		answer *pb.WatchResponse
		err    error
	}
	got := make(chan result, 1)
	go func() { // ends with the stream at the latest
		answer, err := stream.Recv()
		got <- result{answer, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			p.t.Fatal(r.err)
		}
		neutral(r.answer)
		return r.answer
	case <-time.After(wait):
		p.t.Fatal("a watch says nothing")
		return nil
	}
}

// settle ends all watches and compares what they told.
func (p *pair) settle() {
	p.t.Helper()
	for _, w := range p.watches {
		// Writes in the watch's range that it has to tell are behind everything else.
		key := w.request.Key
		if len(key) == 0 {
			key = []byte{0} // what a watch makes of it
		}
		for first := true; first || p.state.revision <= w.request.StartRevision; first = false {
			put, gone := &pb.PutRequest{Key: key, Value: []byte("last")}, &pb.DeleteRangeRequest{Key: key}
			compare(p, "put", put, func(s side) (*pb.PutResponse, error) { return s.kv.Put(bounded(p.t), put) })
			compare(p, "delete", gone, func(s side) (*pb.DeleteRangeResponse, error) { return s.kv.DeleteRange(bounded(p.t), gone) })
		}
		end := p.state.revision
		if slices.Contains(w.request.Filters, pb.WatchCreateRequest_NODELETE) {
			end--
		}
		real, fake := p.told(w.real, end), p.told(w.fake, end)
		if !proto.Equal(real, fake) {
			p.t.Fatalf("watch %v\netcd:   %v\nmemory: %v", prototext.Format(w.request), prototext.Format(real), prototext.Format(fake))
		}
		w.stop()
	}
	p.watches = nil
}

// told reads a watch up to a revision that it must tell of, as one answer: batches may
// differ.
func (p *pair) told(stream pb.Watch_WatchClient, end int64) *pb.WatchResponse {
	p.t.Helper()
	all := &pb.WatchResponse{}
	for {
		answer := p.answer(stream)
		all.Events = append(all.Events, answer.Events...)
		if answer.Canceled {
			all.Canceled, all.CompactRevision, all.CancelReason = true, answer.CompactRevision, answer.CancelReason
			return all
		}
		if n := len(all.Events); n > 0 && all.Events[n-1].Kv.ModRevision >= end {
			return all
		}
	}
}

// neutral takes out what may differ.
func neutral(m proto.Message) {
	if head, ok := m.(interface{ GetHeader() *pb.ResponseHeader }); ok && head.GetHeader() != nil {
		h := head.GetHeader()
		h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	}
	switch m := m.(type) {
	case *pb.LeaseTimeToLiveResponse:
		m.TTL = min(m.TTL, 1) // the seconds left
		sortKeys(m.Keys)
	case *pb.WatchResponse:
		if len(m.Events) > 0 {
			m.Header = nil // of the batch
		}
	}
}
