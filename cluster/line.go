package cluster

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Line is the renewals' own way to etcd: one connection to one endpoint at a time, which
// no other traffic can starve and which can be replaced at once.
//
// A connection that was replaced is closed when the last request on it ends, so an idle
// line has exactly one. With several endpoints the line moves on when a request fails in
// a way that another endpoint may cure; with one it stays, and the connection comes back
// by itself.
type Line struct {
	endpoints []endpoint
	opts      []grpc.DialOption
	client    *Client
	log       *slog.Logger
	life      context.Context // ends with Close
	end       context.CancelFunc
	watchers  sync.WaitGroup

	mu      sync.Mutex
	current *link
	next    int           // index of the endpoint for the next connection
	ready   chan struct{} // closed, and replaced, when the current connection becomes ready
	closed  bool
}

// link is one connection of a line. Its counts are guarded by the line's mutex.
type link struct {
	conn     *grpc.ClientConn
	endpoint string
	since    time.Time
	wasReady bool
	users    int // requests in flight
	retired  bool
}

// halfMade is how long a connection that has not been ready yet is left to come up, when
// there is no other endpoint to try: starting over would only throw away what a slow path
// has already answered. By then the kernel has given up on one whose peer is silent.
const halfMade = unackedMost

// OpenLine makes a line. It does not touch the network and reads no file: the first use
// does. Errors are about the configuration. Without a log nothing is logged.
func OpenLine(cfg Config, log *slog.Logger) (*Line, error) {
	endpoints, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Line{
		endpoints: endpoints,
		opts:      dialOptions(cfg, endpoints[0].tls, linePause),
		log:       log,
		next:      rand.IntN(len(endpoints)), // spreads a fleet over the members
		ready:     make(chan struct{}),
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.client = newClient(cfg, (*lineConn)(l), len(endpoints), func() error { return nil }, log)
	return l, nil
}

// KeepAlive renews the lease once, see Client.KeepAlive. fresh says that an earlier
// attempt is still unanswered: then this one uses a new connection, to the next endpoint
// if there are several, while attempts in flight keep theirs until they end. A connection
// to the only endpoint that is itself still new and coming up counts as new.
func (l *Line) KeepAlive(ctx context.Context, id int64, fresh bool) (granted time.Duration, revision int64, err error) {
	if fresh {
		l.refresh()
	}
	return l.client.KeepAlive(ctx, id)
}

// Client is typed access over the line: each request goes over the connection that is
// current when it starts. It is usable until the line is closed, which is all that
// closes it.
func (l *Line) Client(ctx context.Context) (*Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	return l.client, ctx.Err()
}

// AwaitReconnect returns nil at the moment that a connection of the line becomes ready,
// the first one included. It waits for the event, not for the state: while the line is
// connected it blocks. It starts a connection if there is none yet.
func (l *Line) AwaitReconnect(ctx context.Context) error {
	l.mu.Lock()
	ready := l.ready
	err := l.ensure()
	l.mu.Unlock()
	if err != nil {
		return wrap(ctx, "await reconnection", err)
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.life.Done():
		return wrap(ctx, "await reconnection", ErrClosed)
	}
}

// Endpoint is the URL that the line uses now, as configured.
func (l *Line) Endpoint() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return l.endpoints[l.next].url
	}
	return l.current.endpoint
}

// Close ends the line and its connections; requests in flight fail with ErrClosed.
func (l *Line) Close() error {
	l.mu.Lock()
	l.closed = true
	if l.current != nil {
		l.retire()
	}
	l.mu.Unlock()
	l.end()
	l.watchers.Wait()
	return nil
}

// refresh replaces the current connection unless it is as good as new.
func (l *Line) refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.current
	if k == nil || len(l.endpoints) == 1 && !k.wasReady && time.Since(k.since) < halfMade {
		return
	}
	l.retire()
}

// ensure starts a connection if there is none. The caller holds the mutex.
func (l *Line) ensure() error {
	if l.closed {
		return ErrClosed
	}
	if l.current != nil {
		return nil
	}
	e := l.endpoints[l.next]
	l.next = (l.next + 1) % len(l.endpoints)
	conn, err := connect([]endpoint{e}, l.opts)
	if err != nil {
		return err
	}
	l.current = &link{conn: conn, endpoint: e.url, since: time.Now()}
	l.watchers.Add(1)
	go l.keepConnected(l.current)
	return nil
}

// retire makes the current connection close with its last request. The caller holds the
// mutex.
func (l *Line) retire() {
	k := l.current
	l.current = nil
	k.retired = true
	if k.users == 0 {
		k.conn.Close()
	}
}

// keepConnected reconnects one connection for as long as it lives, and tells of each time
// that it becomes ready while it is the current one. It ends when the connection is closed
// or the line is.
func (l *Line) keepConnected(k *link) {
	defer l.watchers.Done()
	defer k.conn.Close() // the line's end closes also those with requests in flight
	for {
		state := k.conn.GetState()
		switch state {
		case connectivity.Shutdown:
			return
		case connectivity.Idle:
			k.conn.Connect()
		case connectivity.Ready:
			l.mu.Lock()
			k.wasReady = true
			if l.current == k {
				l.log.Debug("renewal connection ready", "endpoint", k.endpoint)
				close(l.ready)
				l.ready = make(chan struct{})
			}
			l.mu.Unlock()
		}
		if !k.conn.WaitForStateChange(l.life, state) {
			return
		}
	}
}

// acquire lends the current connection to one request.
func (l *Line) acquire() (*link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ensure(); err != nil {
		return nil, err
	}
	l.current.users++
	return l.current, nil
}

// release takes it back, and moves the line on to the next endpoint if that may cure err.
func (l *Line) release(k *link, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.users--
	if k.retired && k.users == 0 {
		k.conn.Close()
	}
	if len(l.endpoints) > 1 && l.current == k && err != nil && (elsewhere(err) || Classify(err) == ClassTimeout) {
		l.log.Debug("renewal connection moves on", "from", k.endpoint, "class", string(Classify(err)))
		l.retire()
		_ = l.ensure() // the next request would tell
	}
}

// lineConn is the line as generated clients want it.
type lineConn Line

// Invoke implements grpc.ClientConnInterface.
func (c *lineConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	l := (*Line)(c)
	k, err := l.acquire()
	if err != nil {
		return err
	}
	err = k.conn.Invoke(ctx, method, args, reply, opts...)
	l.release(k, err)
	return err
}

// NewStream implements grpc.ClientConnInterface. The connection is taken back when the
// stream fails or its context ends, which every user of this package brings about.
func (c *lineConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	l := (*Line)(c)
	k, err := l.acquire()
	if err != nil {
		return nil, err
	}
	stream, err := k.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		l.release(k, err)
		return nil, err
	}
	s := &lineStream{ClientStream: stream, done: func(err error) { l.release(k, err) }}
	context.AfterFunc(ctx, func() { s.finish(ctx.Err()) })
	return s, nil
}

// lineStream gives its connection back once, at once when it fails.
type lineStream struct {
	grpc.ClientStream
	once sync.Once
	done func(error)
}

// RecvMsg implements grpc.ClientStream.
func (s *lineStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.finish(err)
	}
	return err
}

func (s *lineStream) finish(err error) { s.once.Do(func() { s.done(err) }) }
