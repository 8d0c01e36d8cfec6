package memory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// noWatch is the id in the answer to a watch that did not come about, and to a progress
// request.
const noWatch = -1

// watchStream is one stream's watches, and what they have still to tell. Its fields are
// guarded by the server's mutex.
type watchStream struct {
	s       *Server
	watches []*watch // in the order of their creation
	nextID  int64
	queue   []told
	more    chan struct{} // holds one when the queue is not empty or ended is set
	ended   error
}

type watch struct {
	id     int64
	span   span
	start  int64 // the revision asked for; 0: from now on
	from   int64 // the first revision to tell
	prevKV bool
	noPut  bool
	noDel  bool
	late   []told // what it is late with, see Server.SetLag
}

// told is an answer not built yet: its owner gets a message of its own.
type told struct {
	answer *pb.WatchResponse
	events []Event
	prevKV bool
}

func (s *Server) newWatchStream() *watchStream {
	w := &watchStream{s: s, more: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, w)
	return w
}

func (w *watchStream) close() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.streams = slices.DeleteFunc(w.s.streams, func(other *watchStream) bool { return other == w })
}

// end and push are called with the server locked.
func (w *watchStream) end(err error) {
	if w.ended == nil {
		w.ended = err
	}
	w.signal()
}

func (w *watchStream) push(t told) {
	w.queue = append(w.queue, t)
	w.signal()
}

func (w *watchStream) signal() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// notify tells the watches of a revision. The server is locked.
func (w *watchStream) notify(revision int64, events []Event) {
	for _, each := range w.watches {
		if revision >= each.from {
			w.tell(each, revision, each.filter(nil, events))
		}
	}
}

func (w *watchStream) tell(of *watch, revision int64, events []Event) {
	if len(events) == 0 {
		return
	}
	t := told{answer: &pb.WatchResponse{Header: w.s.head(&pb.ResponseHeader{Revision: revision}), WatchId: of.id}, events: events, prevKV: of.prevKV}
	late := time.Duration(0)
	if w.s.lag != nil && len(of.late) == 0 {
		late = w.s.lag()
	}
	if late == 0 && len(of.late) == 0 {
		w.push(t)
		return
	}
	if of.late = append(of.late, t); late > 0 {
		time.AfterFunc(late, func() { w.catchUp(of) })
	}
}

// catchUp tells what a watch was late with.
func (w *watchStream) catchUp(of *watch) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if slices.Contains(w.watches, of) {
		w.queue = append(w.queue, of.late...)
		w.signal()
	}
	of.late = nil
}

// filter appends the events that the watch is for.
func (w *watch) filter(to, events []Event) []Event {
	for _, e := range events {
		if w.span.contains(e.KV.Key) && !(e.Deleted && w.noDel) && !(!e.Deleted && w.noPut) {
			to = append(to, e)
		}
	}
	return to
}

// take carries out one request of the stream.
func (w *watchStream) take(r *pb.WatchRequest) {
	if err := w.s.begin(pb.Watch_Watch_FullMethodName); err != nil {
		w.s.mu.Lock()
		w.end(err)
		w.s.mu.Unlock()
		return
	}
	defer w.s.mu.Unlock()
	switch r := r.GetRequestUnion().(type) {
	case *pb.WatchRequest_CreateRequest:
		if r.CreateRequest != nil {
			w.create(r.CreateRequest)
		}
	case *pb.WatchRequest_CancelRequest:
		if r.CancelRequest != nil {
			w.cancel(r.CancelRequest.WatchId)
		}
	case *pb.WatchRequest_ProgressRequest:
		if r.ProgressRequest != nil {
			w.progress()
		}
	}
}

// progress tells how far all watches of the stream are. As etcd does, it says nothing while
// there is none, or one that begins at a revision to come.
func (w *watchStream) progress() {
	now := w.s.store.revision
	if len(w.watches) > 0 && !slices.ContainsFunc(w.watches, func(each *watch) bool { return each.start > now }) {
		w.push(told{answer: &pb.WatchResponse{Header: w.s.head(&pb.ResponseHeader{}), WatchId: noWatch}})
	}
}

func (w *watchStream) create(r *pb.WatchCreateRequest) {
	refuse := func(why string) {
		w.push(told{answer: &pb.WatchResponse{
			Header: w.s.head(&pb.ResponseHeader{}), WatchId: noWatch, Created: true, Canceled: true, CancelReason: why,
		}})
	}
	key, end := bytes.Clone(r.Key), bytes.Clone(r.RangeEnd)
	if len(key) == 0 {
		key = []byte{0}
	}
	openEnd := len(end) == 1 && end[0] == 0
	taken := slices.ContainsFunc(w.watches, func(other *watch) bool { return other.id == r.WatchId && r.WatchId != 0 })
	switch {
	case r.StartRevision < 0:
		refuse(rpctypes.ErrCompacted.Error())
		return
	case len(end) > 0 && !openEnd && bytes.Compare(key, end) >= 0:
		refuse("mvcc: watcher range is empty")
		return
	case taken:
		refuse("mvcc: duplicate watch ID provided on the WatchStream")
		return
	}
	now := w.s.store.revision
	made := &watch{id: r.WatchId, span: span{key, end}, start: r.StartRevision, from: max(now+1, r.StartRevision), prevKV: r.PrevKv}
	made.noPut = slices.Contains(r.Filters, pb.WatchCreateRequest_NOPUT)
	made.noDel = slices.Contains(r.Filters, pb.WatchCreateRequest_NODELETE)
	if made.id == 0 {
		for slices.ContainsFunc(w.watches, func(other *watch) bool { return other.id == w.nextID }) {
			w.nextID++
		}
		made.id = w.nextID
		w.nextID++
	}
	w.push(told{answer: &pb.WatchResponse{Header: w.s.head(&pb.ResponseHeader{}), WatchId: made.id, Created: true}})
	if r.StartRevision > 0 && r.StartRevision <= now {
		if r.StartRevision < w.s.store.compacted {
			head := w.s.head(&pb.ResponseHeader{})
			head.Revision = 0 // as etcd has it
			w.push(told{answer: &pb.WatchResponse{
				Header: head, WatchId: made.id, Canceled: true, CompactRevision: w.s.store.compacted,
			}})
			return
		}
		var missed []Event
		w.s.store.since(r.StartRevision, func(_ int64, events []Event) { missed = made.filter(missed, events) })
		for i := range missed {
			if missed[i].KV.ModRevision <= w.s.store.compacted {
				missed[i].Prev = nil // forgotten
			}
		}
		w.tell(made, now, missed)
	}
	w.watches = append(w.watches, made)
}

func (w *watchStream) cancel(id int64) {
	before := len(w.watches)
	w.watches = slices.DeleteFunc(w.watches, func(other *watch) bool { return other.id == id })
	if len(w.watches) < before {
		w.push(told{answer: &pb.WatchResponse{Header: w.s.head(&pb.ResponseHeader{}), WatchId: id, Canceled: true}})
	}
}

// next waits for the next answer. The error is of the stream's end, or of ctx.
func (w *watchStream) next(ctx context.Context) (*pb.WatchResponse, error) {
	for {
		w.s.mu.Lock()
		switch {
		case w.ended != nil:
			w.s.mu.Unlock()
			return nil, w.ended
		case len(w.queue) > 0:
			t := w.queue[0]
			w.queue[0] = told{}
			w.queue = w.queue[1:]
			w.s.mu.Unlock()
			return t.build(), nil
		}
		w.s.mu.Unlock()
		select {
		case <-w.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (t told) build() *pb.WatchResponse {
	for _, e := range t.events {
		m := &mvccpb.Event{Kv: message(&e.KV)}
		if e.Deleted {
			m.Type = mvccpb.Event_DELETE
		}
		if t.prevKV && e.Prev != nil && (e.Deleted || e.KV.CreateRevision != e.KV.ModRevision) {
			m.PrevKv = message(e.Prev)
		}
		t.answer.Events = append(t.answer.Events, m)
	}
	return t.answer
}

// Watch implements etcd's Watch service.
func (s *Server) Watch(stream pb.Watch_WatchServer) error {
	w := s.newWatchStream()
	defer w.close()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { // ends with the stream, which ends when this handler returns
		for {
			r, err := stream.Recv()
			if err != nil {
				cancel(err)
				return
			}
			w.take(r)
		}
	}()
	for {
		answer, err := w.next(ctx)
		if err != nil {
			if errors.Is(context.Cause(ctx), io.EOF) {
				return nil
			}
			if ctx.Err() != nil {
				return rpctypes.ErrGRPCWatchCanceled
			}
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}
