package cluster

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
)

// request is one request on one connection of a line.
type request struct {
	line     *Line
	link     *link
	sent     time.Time
	warm     bool // the connection stood when it was sent
	answered bool
}

// acquire lends a connection to one request: that of the trip if the context has one, or
// the current one.
func (l *Line) acquire(ctx context.Context) (*request, error) {
	t, _ := ctx.Value(tripKey{}).(*trip)
	l.mu.Lock()
	defer l.mu.Unlock()
	k, err := l.way(t)
	if err != nil {
		return nil, err
	}
	r := &request{line: l, link: k, sent: time.Now(), warm: k.conn.GetState() == connectivity.Ready}
	k.users++
	if k.waiting == 0 {
		k.waitsSince = r.sent
	}
	k.waiting++
	l.busy[k.index]++
	l.scores[k.index].asked = r.sent
	if t != nil {
		t.tried[k.index] = true
	}
	return r, nil
}

// way returns the connection for a request. The caller holds the mutex.
func (l *Line) way(t *trip) (*link, error) {
	if l.closed {
		return nil, ErrClosed
	}
	if t != nil && t.link != nil {
		return t.link, nil
	}
	if err := l.ensure(t); err != nil {
		return nil, err
	}
	if t != nil && t.other && l.current.waiting > 0 && len(l.endpoints) > 1 {
		return l.open(l.choose(t))
	}
	return l.current, nil
}

// answer notes what came of the request, once: nil is an answer.
func (r *request) answer(err error) {
	l, k := r.line, r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.answered {
		return
	}
	r.answered = true
	k.waiting--
	l.busy[k.index]--
	now := time.Now()
	err = rpctypes.Error(err) // as a value, where it is one of etcd's
	switch judge(err) {
	case succeeded:
		l.succeeded(r, now)
	case failed:
		l.failed(k, err, now)
	case nothing:
		l.scores[k.index].open = true
		l.lookAgain()
	}
	if k != l.current {
		k.retired = true // it served one request
	}
}

// done gives the connection back.
func (r *request) done() { r.line.giveBack(r.link) }

// succeeded scores a good answer. The connection that brought it becomes the current one
// if that has kept an older request waiting. The caller holds the mutex.
func (l *Line) succeeded(r *request, now time.Time) {
	took := now.Sub(r.sent)
	if !r.warm {
		took = 0
	}
	first := !anyUp(l.scores, now)
	was := l.scores[r.link.index].failures
	l.scores[r.link.index].succeed(now, took)
	if len(l.endpoints) == 1 {
		return // the renewals tell
	}
	if was > 0 {
		l.log.Info("etcd endpoint answers again", "endpoint", l.endpoints[r.link.index].url, "after_failures", was)
	}
	old := l.current
	switch {
	case r.link == old || r.link.retired || l.closed:
	case old == nil:
		l.current = r.link
	case old.waiting > 0 && old.waitsSince.Before(r.sent):
		l.log.Debug("renewal connection moves on", "from", l.endpoints[old.index].url, "to", l.endpoints[r.link.index].url, "class", "overtaken")
		l.scores[old.index].overtaken = old.index != r.link.index
		l.retire(old)
		l.current = r.link
		l.lookAgain()
	}
	if first {
		l.tellReady() // after an outage that no connection may have noticed
		l.lookAgain()
	}
}

// failed scores a failure, and moves the line on if another endpoint may do better. The
// caller holds the mutex.
func (l *Line) failed(k *link, err error, now time.Time) {
	class := Classify(err)
	l.scores[k.index].fail(now, class == ClassNoLeader)
	if len(l.endpoints) == 1 {
		return
	}
	if l.scores[k.index].failures == 1 {
		l.log.Warn("etcd endpoint does not answer", "endpoint", l.endpoints[k.index].url, "class", string(class), "err", err)
	}
	l.lookAgain()
	if k == l.current && (elsewhere(err) || class == ClassTimeout) {
		l.log.Debug("renewal connection moves on", "from", l.endpoints[k.index].url, "class", string(class))
		l.retire(k)
		_ = l.ensure(nil) // the next request would tell
	}
}

// lookAgain has the probes of all endpoints look when they are due. The caller holds the
// mutex.
func (l *Line) lookAgain() {
	for _, c := range l.kick {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// lend gives a probe the connection to an endpoint: the current one if it leads there, or
// a new one.
func (l *Line) lend(i int) (k *link, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if k = l.current; k == nil || k.index != i {
		if k, err = l.open(i); err != nil {
			return nil, err
		}
		k.quiet = true
	}
	k.users++
	return k, nil
}

// giveBack takes a connection back, and closes it if it is not the current one and this
// was its last request.
func (l *Line) giveBack(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.users--
	if k.users == 0 && k != l.current {
		k.conn.Close()
	}
}

// judgement is what the outcome of a request says about its endpoint.
type judgement int

const (
	nothing   judgement = iota // it was given up here, or never sent
	succeeded                  // a member with a leader answered, whatever it said
	failed
)

// judge looks at an error of a request.
func judge(err error) judgement {
	if err == nil {
		return succeeded
	}
	s, ok := grpcStatus(err)
	switch {
	case Classify(err) == ClassTimeout:
		return failed
	case !ok || s.Code() == codes.Canceled:
		return nothing
	case s.Code() == codes.Unavailable, elsewhere(err): // also without a leader, or as a learner
		return failed
	}
	return succeeded
}

// lineConn is the line as generated clients want it.
type lineConn Line

// Invoke implements grpc.ClientConnInterface.
func (c *lineConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	r, err := (*Line)(c).acquire(ctx)
	if err != nil {
		return err
	}
	defer r.done()
	err = r.link.conn.Invoke(ctx, method, args, reply, opts...)
	r.answer(err)
	return err
}

// NewStream implements grpc.ClientConnInterface. The connection is taken back when the
// stream fails or its context ends, which every user of this package brings about.
func (c *lineConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	r, err := (*Line)(c).acquire(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := r.link.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		r.answer(err)
		r.done()
		return nil, err
	}
	s := &lineStream{ClientStream: stream, request: r}
	context.AfterFunc(ctx, func() { s.finish(ctx.Err()) })
	return s, nil
}

// lineStream gives its connection back once, at once when it fails.
type lineStream struct {
	grpc.ClientStream
	once    sync.Once
	request *request
}

// RecvMsg implements grpc.ClientStream.
func (s *lineStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.finish(err)
	} else {
		s.request.answer(nil)
	}
	return err
}

func (s *lineStream) finish(err error) {
	s.once.Do(func() {
		s.request.answer(err)
		s.request.done()
	})
}
