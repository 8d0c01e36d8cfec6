package cluster

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// How long a read may be unanswered before another endpoint is asked too, at most: a read
// with little time has half of it for that. On a line renewals may wait for the read.
const (
	readPatience = time.Second
	linePatience = 750 * time.Millisecond
)

// Client is typed access to etcd. Closing it ends its connections; requests in flight fail with
// ErrClosed.
type Client struct {
	*members
	keys    Keys
	denials *Denials
	peer    atomic.Pointer[Peer] // of the last snapshot; nil: none
}

// Line is a way to etcd of the renewals' own, which no other traffic can starve.
type Line struct{ c *Client }

// Open makes the main client. It does not touch the network and reads no file: the first
// request does. Errors are about the configuration. Without a log nothing is logged.
func Open(cfg Config, log *slog.Logger) (*Client, error) { return open(cfg, log, pingWait, true) }

// OpenLine makes the line of the renewals, as Open does.
func OpenLine(cfg Config, log *slog.Logger) (*Line, error) {
	c, err := open(cfg, log, unackedMost, false)
	return &Line{c}, err
}

func open(cfg Config, log *slog.Logger, silence time.Duration, main bool) (*Client, error) {
	endpoints, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	urls := make([]string, len(endpoints))
	for i, e := range endpoints {
		urls[i] = e.url
	}
	c := newClient(cfg, log, urls, func(i int) (*way, error) { return connect(cfg, endpoints[i], silence) })
	if main {
		c.patience, c.lenient = readPatience, true
	}
	return c, nil
}

// Over is a client over a connection that is there already, for simulations and tests: only
// cfg's key layout and the number of its endpoints count, and nothing is dialed, authenticated
// or encrypted. Close closes the connection if it can be closed.
func Over(cfg Config, conn grpc.ClientConnInterface, log *slog.Logger) *Client {
	if len(cfg.Endpoints) == 0 {
		cfg.Endpoints = []string{"this process"}
	}
	cfg.User = ""
	c := newClient(cfg, log, cfg.Endpoints, func(int) (*way, error) {
		return newWay(conn, clientv3.NewCtxClient(context.Background())), nil
	})
	c.patience = readPatience
	if closer, ok := conn.(io.Closer); ok {
		c.closeWithUs(closer)
	}
	return c
}

func newClient(cfg Config, log *slog.Logger, urls []string, open func(int) (*way, error)) *Client {
	m := &members{open: open, identity: cmp.Or(cfg.Identity, &Identity{}), log: cmp.Or(log, slog.New(slog.DiscardHandler)), patience: linePatience,
		tokens: &tokens{user: cfg.User, passwordFile: cfg.PasswordFile},
		all:    make([]member, len(urls)), at: rand.IntN(len(urls))} // spreads a fleet over the members
	m.life, m.end = context.WithCancel(context.Background())
	for i, url := range urls {
		m.all[i].url = url
	}
	return &Client{members: m, keys: cfg.Keys(), denials: cmp.Or(cfg.Denials, &Denials{})}
}

// Keys is the key layout that this client uses.
func (c *Client) Keys() Keys { return c.keys }

// KeepAlive renews the lease once, see Client.KeepAlive. fresh says that an earlier attempt is
// still unanswered or failed, or that its answer was not proven: then this one takes another
// way, to another endpoint if there are several, else a new connection. Attempts in flight keep
// theirs until they end. With several endpoints one that is silent or cannot answer is no reason
// to fail: the others are asked too, each once.
func (l *Line) KeepAlive(ctx context.Context, id int64, fresh bool) (Renewal, error) {
	if fresh {
		l.c.avoid()
	}
	return l.c.KeepAlive(ctx, id)
}

// Client is typed access over the line. The line's Close is its end.
func (l *Line) Client() *Client { return l.c }

// AwaitReconnect returns nil at the moment that the connection in use becomes ready, the first
// one included. It waits for the event, not for the state: while the line is connected it
// blocks. It starts a connection if there is none yet.
func (l *Line) AwaitReconnect(ctx context.Context) error { return l.c.awaitReady(ctx) }

// EndpointState is one endpoint of a line and what is known of it.
type EndpointState struct {
	URL   string // as configured; it cannot hold a password
	Up    bool   // no request to it failed lately, or was left to another endpoint, that was not followed by an answer
	InUse bool
}

// Endpoints is the state of every endpoint, in the order of the configuration. One that
// accepts connections and has no leader is not up; one that nobody asked is.
func (l *Line) Endpoints() []EndpointState {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	list := make([]EndpointState, len(l.c.all))
	for i, e := range l.c.all {
		list[i] = EndpointState{e.url, e.up(time.Now()), i == l.c.at}
	}
	return list
}

// Close ends the line and its connections; requests in flight fail with ErrClosed.
func (l *Line) Close() error { return l.c.Close() }
