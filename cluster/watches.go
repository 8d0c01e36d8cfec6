package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// reachEvery is the time between two questions to etcd while something is watched.
	reachEvery = 30 * time.Second
	// signEach is of how many of these questions one is followed by one to the stream itself:
	// each 5 min.
	signEach = 10
)

// errUnanswered is why a stream is given up.
var errUnanswered = fmt.Errorf("etcd does not answer: %w", context.DeadlineExceeded)

// watches are all watches of a client: one stream carries them, as long as there are any.
// It is opened anew when it failed, which ends all of them at once. Nobody waits for
// somebody else's deliveries: what a watcher has not taken is kept for it.
type watches struct {
	client etcdserverpb.WatchClient
	// reach asks what only a member answers that has a leader now.
	reach func(context.Context) error

	mu     sync.Mutex
	stream *watchStream // that takes more watchers; nil: none
}

// watchStream is one stream. Its fields are guarded by the mutex of the watches.
type watchStream struct {
	end     context.CancelCauseFunc
	done    chan struct{} // closed when nothing of it runs any more
	rpc     etcdserverpb.Watch_WatchClient
	opened  bool       // rpc is set
	asked   []*watcher // for each creation without an answer; answers come in this order
	byID    map[int64]*watcher
	members int           // watchers that have not left
	told    chan struct{} // has room for one; a value: etcd has said something
}

// watcher is one caller's watches. Its fields but more are guarded by the mutex of the
// watches.
type watcher struct {
	stream  *watchStream
	creates []*etcdserverpb.WatchCreateRequest
	created int
	updates []Update
	err     error // why it ended
	left    bool
	more    chan struct{} // has room for one; a value: there is something to take
}

func (w *watcher) tell() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	w.tell()
}

// join asks etcd for watches, over the stream that there is. Who joins leaves.
func (s *watches) join(creates []*etcdserverpb.WatchCreateRequest) *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == nil {
		ctx, end := context.WithCancelCause(context.Background())
		s.stream = &watchStream{end: end, done: make(chan struct{}), byID: map[int64]*watcher{}, told: make(chan struct{}, 1)}
		go s.run(ctx, s.stream) // the last to leave waits for it
	}
	t := s.stream
	w := &watcher{stream: t, creates: creates, more: make(chan struct{}, 1)}
	t.members++
	for range creates {
		t.asked = append(t.asked, w)
	}
	if t.opened {
		t.create(w)
	}
	return w
}

// create sends what w asks for. A failed send says only EOF; the reason comes with Recv.
func (t *watchStream) create(w *watcher) {
	for _, c := range w.creates {
		_ = t.rpc.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: c}})
	}
}

// cancel ends one watch at etcd.
func (t *watchStream) cancel(id int64) {
	delete(t.byID, id)
	_ = t.rpc.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CancelRequest{
		CancelRequest: &etcdserverpb.WatchCancelRequest{WatchId: id}}})
}

// leave ends the watches of w, and with the last of them the stream.
func (s *watches) leave(w *watcher) {
	s.mu.Lock()
	t := w.stream
	w.left, w.updates = true, nil
	t.members--
	last := t.members == 0
	if last {
		s.retire(t, context.Canceled)
	} else {
		for id, other := range t.byID {
			if other == w {
				t.cancel(id)
			}
		}
	}
	s.mu.Unlock()
	if last {
		<-t.done
	}
}

// retire ends a stream; who comes next opens another. The caller holds the mutex.
func (s *watches) retire(t *watchStream, why error) {
	if s.stream == t {
		s.stream = nil
	}
	t.end(why)
}

// abandon gives up a stream, for all of its watchers: etcd has not answered.
func (s *watches) abandon(t *watchStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(t, errUnanswered)
}

// take returns what has come for w since the last time; taken says that etcd has taken up
// all of its watches.
func (s *watches) take(w *watcher) (updates []Update, taken bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	updates, w.updates = w.updates, nil
	return updates, w.created == len(w.creates), w.err
}

// run opens a stream and reads it to its end.
func (s *watches) run(ctx context.Context, t *watchStream) {
	defer close(t.done)
	var attending sync.WaitGroup
	defer attending.Wait()
	defer t.end(nil)
	attending.Go(func() { s.attend(ctx, t) })
	rpc, err := s.open(ctx, t)
	for err == nil {
		var answer *etcdserverpb.WatchResponse
		if answer, err = rpc.Recv(); err == nil {
			s.sort(t, answer)
		}
	}
	if why := context.Cause(ctx); why != nil {
		err = why // gRPC says only that it was cancelled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(t, err)
	for _, w := range t.asked {
		w.fail(err)
	}
	for _, w := range t.byID {
		w.fail(err)
	}
}

// attend gives the stream up when etcd does not answer a question. A leader that was deposed
// and hangs in a disk write keeps its streams, answers pings, and has no news to tell. Over
// several endpoints the question itself is answered by another one, and moves the line.
func (s *watches) attend(ctx context.Context, t *watchStream) {
	next := time.NewTicker(jitter(reachEvery))
	defer next.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		bounded, done := context.WithTimeout(ctx, pageTimeout)
		err := s.reach(bounded)
		done()
		if Classify(err) == ClassTimeout { // by our clock or the member's, whichever is first
			s.abandon(t)
		}
		if n%signEach == 0 && !s.sign(ctx, t) {
			s.abandon(t)
		}
	}
}

func (s *watches) open(ctx context.Context, t *watchStream) (etcdserverpb.Watch_WatchClient, error) {
	rpc, err := s.client.Watch(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.rpc, t.opened = rpc, true
	for i, w := range t.asked {
		if i == 0 || t.asked[i-1] != w { // all that one asks for stand together
			t.create(w)
		}
	}
	return rpc, nil
}

// sort gives an answer to the watcher that it is for.
func (s *watches) sort(t *watchStream, answer *etcdserverpb.WatchResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case t.told <- struct{}{}:
	default:
	}
	w := t.byID[answer.WatchId]
	if answer.Created && len(t.asked) > 0 {
		w = t.asked[0]
		t.asked = t.asked[1:]
		if !answer.Canceled {
			w.created++
			t.byID[answer.WatchId] = w
		}
	}
	switch {
	case w == nil: // it has left
	case answer.CompactRevision > 0:
		delete(t.byID, answer.WatchId)
		w.fail(rpctypes.ErrCompacted)
	case answer.Canceled:
		delete(t.byID, answer.WatchId)
		w.fail(canceledWatch(answer.CancelReason))
		if answer.Created && s.stream == t {
			s.stream = nil // its token may be too old: who comes next opens another
		}
	case w.left:
		t.cancel(answer.WatchId)
	case len(answer.Events) > 0:
		w.updates = append(w.updates, collapse(answer.Header.Revision, answer.Events))
		w.tell()
	case w.created == len(w.creates):
		w.tell()
	}
}
