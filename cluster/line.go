package cluster

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Line is a way to etcd: one connection to one endpoint at a time, which can be replaced at
// once. The renewals have one of their own, which no other traffic can starve.
//
// A connection that was replaced is closed when the last request on it ends, and does not
// wait for a watch, so an idle line has exactly one. With several endpoints the line moves
// on when a request fails in a way that another endpoint may cure, is not answered in its
// time, or is answered by another endpoint first; with one it stays, and the connection
// comes back by itself. The next connection goes to the next endpoint in turn that did not
// fail lately. Endpoints that are not in use are not asked: nothing is known of them.
type Line struct {
	endpoints []endpoint
	opts      []grpc.DialOption
	client    *Client
	log       *slog.Logger
	life      context.Context // ends with Close
	end       context.CancelFunc
	watchers  sync.WaitGroup
	start     int // the first endpoint: spreads a fleet over the members
	// lenient: one answer that is late says nothing of the endpoint while others come.
	lenient bool

	mu      sync.Mutex
	current *link
	known   []known       // of the endpoints
	busy    []int         // requests without an answer, of each endpoint
	ready   chan struct{} // closed, and replaced, when a connection becomes ready
	closed  bool
}

// link is one connection of a line. Its fields are guarded by the line's mutex.
type link struct {
	conn       *grpc.ClientConn
	index      int // of the endpoint
	since      time.Time
	wasReady   bool
	users      int       // requests in flight that keep it open
	waiting    int       // those without an answer
	waitsSince time.Time // when waiting left 0
	heard      time.Time // last answer
	renewed    bool      // a renewal was answered
	retired    bool      // close it with its last request
}

// halfMade is how long a connection that has not been ready yet is left to come up, when
// there is no other endpoint to try: starting over would only throw away what a slow path
// has already answered. By then the kernel has given up on one whose peer is silent.
const halfMade = unackedMost

// OpenLine makes the line of the renewals. It does not touch the network and reads no file:
// the first use does. Errors are about the configuration. Without a log nothing is logged.
func OpenLine(cfg Config, log *slog.Logger) (*Line, error) {
	return openLine(cfg, log, linePause, linePatience)
}

func openLine(cfg Config, log *slog.Logger, pauseMost, patience time.Duration, opts ...grpc.DialOption) (*Line, error) {
	endpoints, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Line{
		endpoints: endpoints,
		opts:      append(dialOptions(cfg, endpoints[0].tls, len(endpoints) > 1, pauseMost), opts...),
		log:       log,
		start:     rand.IntN(len(endpoints)),
		known:     make([]known, len(endpoints)),
		busy:      make([]int, len(endpoints)),
		ready:     make(chan struct{}),
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.client = newClient(cfg, (*lineConn)(l), len(endpoints), func() error { return nil }, log)
	l.client.patience = patience
	return l, nil
}

// KeepAlive renews the lease once, see Client.KeepAlive. fresh says that an earlier
// attempt is still unanswered: then this one uses a new connection, while attempts in
// flight keep theirs until they end. A connection that is itself still new and coming up
// counts as new.
//
// With several endpoints the line knows by itself when an attempt is unanswered, and the
// next one goes to another endpoint. So does a fresh one after a renewal that was answered:
// it was not proven, so that endpoint is behind. An endpoint that cannot answer, and says
// so, is no reason to fail: the others are asked at once, each once. If none can, the error
// is that of one without a leader if there was one, because that is what is wrong with the
// others too.
func (l *Line) KeepAlive(ctx context.Context, id int64, fresh bool) (renewal Renewal, err error) {
	if len(l.endpoints) == 1 {
		if fresh {
			l.refresh()
		}
		return l.client.KeepAlive(ctx, id)
	}
	way := &trip{other: true, tried: make([]bool, len(l.endpoints))}
	if fresh {
		l.leave(way)
	}
	ctx = withTrip(ctx, way)
	var said error
	for range l.endpoints {
		renewal, err = l.client.KeepAlive(ctx, id)
		if said == nil || Classify(said) != ClassNoLeader {
			said = err
		}
		if err == nil || errors.Is(err, ErrLeaseNotFound) {
			return renewal, err
		}
		if ctx.Err() != nil || !elsewhere(err) {
			break
		}
	}
	return Renewal{}, said
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
	err := l.ensure(nil)
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
		return l.endpoints[l.choose(nil)].url
	}
	return l.endpoints[l.current.index].url
}

// EndpointState is one endpoint of a line and what is known of it.
type EndpointState struct {
	URL string // as configured; it cannot hold a password
	Up  bool   // no request to it failed lately that was not followed by an answer
}

// Endpoints is the state of every endpoint, in the order of the configuration. One that
// accepts connections and has no leader is not up; one that nobody asked is.
func (l *Line) Endpoints() []EndpointState {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]EndpointState, len(l.endpoints))
	for i := range list {
		list[i] = EndpointState{URL: l.endpoints[i].url, Up: l.known[i].up(time.Now())}
	}
	return list
}

// Close ends the line and its connections; requests in flight fail with ErrClosed.
func (l *Line) Close() error {
	l.mu.Lock()
	l.closed = true
	l.end() // first: requests tell by it whether their connection was replaced
	if l.current != nil {
		l.retire(l.current)
	}
	l.mu.Unlock()
	l.watchers.Wait()
	return nil
}

// refresh replaces the connection to the only endpoint unless it is as good as new.
func (l *Line) refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.current
	if k == nil || !k.wasReady && time.Since(k.since) < halfMade {
		return
	}
	l.retire(k)
}

// leave has a trip go to another endpoint than the one whose answers are not proven.
func (l *Line) leave(t *trip) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.current; k != nil && k.renewed && k.waiting == 0 {
		l.log.Debug("etcd connection moves on", "from", l.endpoints[k.index].url, "class", "behind")
		t.tried[k.index] = true
		l.retire(k)
	}
}

// trip is one call's way through the endpoints. Its fields are guarded by the line's mutex.
type trip struct {
	other bool   // not the connection on which another request waits
	tried []bool // endpoints that had their chance
}

type tripKey struct{}

func withTrip(ctx context.Context, t *trip) context.Context {
	return context.WithValue(ctx, tripKey{}, t)
}

// choose returns the endpoint for a new connection: if it can, one that had no chance on
// this trip and, where the trip wants another way, one that nobody waits for. The caller
// holds the mutex.
func (l *Line) choose(t *trip) int {
	return choose(l.known, func(i int) bool {
		return t != nil && (t.tried[i] || t.other && l.busy[i] > 0)
	}, l.start, time.Now())
}

// ensure starts a connection if there is none. The caller holds the mutex.
func (l *Line) ensure(t *trip) error {
	if l.closed {
		return ErrClosed
	}
	if l.current != nil {
		return nil
	}
	k, err := l.open(l.choose(t))
	l.current = k
	return err
}

// open starts a connection to an endpoint. The caller holds the mutex.
func (l *Line) open(i int) (*link, error) {
	conn, err := connect(l.endpoints[i], l.opts)
	if err != nil {
		return nil, err
	}
	k := &link{conn: conn, index: i, since: time.Now()}
	l.watchers.Add(1)
	go l.keepConnected(k)
	return k, nil
}

// retire makes a connection close with its last request. The caller holds the mutex.
func (l *Line) retire(k *link) {
	if l.current == k {
		l.current = nil
	}
	k.retired = true
	if k.users == 0 {
		k.conn.Close()
	}
}

// keepConnected reconnects one connection for as long as it lives, and tells of each time
// that it becomes ready while it is in use. It ends when the connection is closed or the
// line is.
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
			// Of several, one without a leader is connected to again and again: no news.
			if !k.retired && (len(l.endpoints) == 1 || !l.known[k.index].orphaned) {
				l.log.Debug("etcd connection ready", "endpoint", l.endpoints[k.index].url)
				l.tellReady()
			}
			l.mu.Unlock()
		}
		if !k.conn.WaitForStateChange(l.life, state) {
			return
		}
	}
}

// tellReady wakes those who wait for a connection. The caller holds the mutex.
func (l *Line) tellReady() {
	close(l.ready)
	l.ready = make(chan struct{})
}
