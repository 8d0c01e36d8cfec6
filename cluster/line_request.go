package cluster

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// request is one request on one connection of a line.
type request struct {
	line     *Line
	link     *link
	sent     time.Time
	renewal  bool
	holds    bool // it keeps its connection open
	answered bool
}

// acquire lends a connection to one request: that of the trip if the context has one, or
// the current one.
func (l *Line) acquire(ctx context.Context, method string) (*request, error) {
	t, _ := ctx.Value(tripKey{}).(*trip)
	l.mu.Lock()
	defer l.mu.Unlock()
	k, err := l.way(t)
	if err != nil {
		return nil, err
	}
	r := &request{line: l, link: k, sent: time.Now(),
		renewal: method == etcdserverpb.Lease_LeaseKeepAlive_FullMethodName,
		holds:   method != etcdserverpb.Watch_Watch_FullMethodName}
	if r.holds {
		k.users++
	}
	if k.waiting == 0 {
		k.waitsSince = r.sent
	}
	k.waiting++
	l.busy[k.index]++
	l.known[k.index].asked = r.sent
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
	// A connection that is known to be lost would refuse the request: that of a write is
	// not to be wasted, since it is not repeated.
	if k := l.current; k != nil && len(l.endpoints) > 1 && k.conn.GetState() == connectivity.TransientFailure {
		l.known[k.index].fail(time.Now(), false)
		l.retire(k)
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
	now := time.Now()
	if err == nil {
		k.heard = now
	}
	if r.answered {
		return
	}
	r.answered = true
	k.waiting--
	l.busy[k.index]--
	verdict := nothing // of the endpoint, where this side ended the request
	if err != errReplaced {
		err = rpctypes.Error(err) // as a value, where it is one of etcd's
		verdict = judge(err)
	}
	switch verdict {
	case succeeded:
		l.succeeded(r)
	case failed:
		l.failed(r, err, now)
	}
	if k != l.current {
		k.retired = true // it served one request
	}
}

// giveUp leaves the connection of a stream that is given up because nothing comes, even if
// other requests are answered there.
func (r *request) giveUp() {
	l, k := r.line, r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if k != l.current {
		return
	}
	l.silent(k, r.renewal, errUnanswered)
	l.log.Debug("etcd connection moves on", "from", l.endpoints[k.index].url, "class", string(ClassTimeout))
	l.retire(k)
	_ = l.ensure(nil) // the next request would tell
}

// errReplaced ends a watch on a connection that is not used any more.
var errReplaced = status.Error(codes.Unavailable, "another connection has replaced this one")

// replaced tells the end of a connection that was replaced from that of the line, which gRPC may
// call a connection that was lost.
func (r *request) replaced(err error) error {
	switch over := r.line.life.Err() != nil; {
	case isClosing(err) && !over:
		return errReplaced
	case over && status.Code(err) == codes.Unavailable:
		return errClosing
	}
	return err
}

// done gives the connection back, and closes it if it is not the current one and this was
// its last request.
func (r *request) done() {
	if !r.holds {
		return
	}
	l, k := r.line, r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	k.users--
	if k.users == 0 && k != l.current {
		k.conn.Close()
	}
}

// succeeded notes a good answer. The connection that brought it becomes the current one if
// that has kept an older request waiting. The caller holds the mutex.
func (l *Line) succeeded(r *request) {
	r.link.renewed = r.link.renewed || r.renewal
	if news := l.known[r.link.index].answered(); news && len(l.endpoints) > 1 {
		l.log.Info("etcd endpoint answers again", "endpoint", l.endpoints[r.link.index].url)
	}
	if len(l.endpoints) == 1 {
		return // the renewals tell
	}
	old := l.current
	switch {
	case r.link == old || r.link.retired || l.closed:
	case old == nil:
		l.current = r.link
	case old.waiting > 0 && old.waitsSince.Before(r.sent) && !(l.lenient && old.heard.After(old.waitsSince)):
		if old.index != r.link.index {
			l.silent(old, r.renewal, "another endpoint answered first")
		}
		l.retire(old)
		l.current = r.link
	}
}

// failed notes a failure, and moves the line on if another endpoint may do better. The
// caller holds the mutex.
func (l *Line) failed(r *request, err error, now time.Time) {
	k, class := r.link, Classify(err)
	if class == ClassTimeout && l.lenient && k.heard.After(r.sent) {
		return
	}
	if class == ClassTimeout {
		l.silent(k, r.renewal, err)
	} else if news := l.known[k.index].fail(now, class == ClassNoLeader); news && len(l.endpoints) > 1 {
		l.log.Warn("etcd endpoint does not answer", "endpoint", l.endpoints[k.index].url, "class", string(class), "err", err)
	}
	if len(l.endpoints) > 1 && k == l.current && (elsewhere(err) || class == ClassTimeout) {
		l.log.Debug("etcd connection moves on", "from", l.endpoints[k.index].url, "class", string(class))
		l.retire(k)
		_ = l.ensure(nil) // the next request would tell
	}
}

// silent notes that a request was not answered. The caller holds the mutex.
func (l *Line) silent(k *link, renewal bool, why any) {
	if !l.known[k.index].fail(time.Now(), false) || len(l.endpoints) == 1 {
		return
	}
	saying := "etcd endpoint does not answer"
	if k.renewed && !renewal {
		saying = "etcd endpoint confirms renewals and does not answer reads: look at the disk of that member"
	}
	l.log.Warn(saying, "endpoint", l.endpoints[k.index].url, "class", string(ClassTimeout), "err", why)
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
	r, err := (*Line)(c).acquire(ctx, method)
	if err != nil {
		return err
	}
	defer r.done()
	err = r.replaced(r.link.conn.Invoke(ctx, method, args, reply, opts...))
	r.answer(err)
	return err
}

// NewStream implements grpc.ClientConnInterface. The connection is taken back when the
// stream fails or its context ends, which every user of this package brings about.
func (c *lineConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	r, err := (*Line)(c).acquire(ctx, method)
	if err != nil {
		return nil, err
	}
	stream, err := r.link.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		err = r.replaced(err)
		r.end(ctx, err)
		return nil, err
	}
	s := &lineStream{ClientStream: stream, request: r, ctx: ctx}
	context.AfterFunc(ctx, func() { s.finish(ctx.Err()) })
	return s, nil
}

// lineStream gives its connection back once, at once when it fails.
type lineStream struct {
	grpc.ClientStream
	once    sync.Once
	request *request
	ctx     context.Context
}

// RecvMsg implements grpc.ClientStream.
func (s *lineStream) RecvMsg(m any) error {
	err := s.request.replaced(s.ClientStream.RecvMsg(m))
	if err != nil {
		s.finish(err)
	} else {
		s.request.answer(nil)
	}
	return err
}

func (s *lineStream) finish(err error) {
	s.once.Do(func() { s.request.end(s.ctx, err) })
}

// end is the end of a stream.
func (r *request) end(ctx context.Context, err error) {
	if context.Cause(ctx) == errUnanswered {
		r.giveUp()
	}
	r.answer(err)
	r.done()
}
