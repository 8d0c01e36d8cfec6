package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// How long a read may be unanswered before another endpoint is asked too, at most: a read
// with little time has half of it for that. On a line renewals may wait for the read.
const (
	readPatience = time.Second
	linePatience = 750 * time.Millisecond
)

// Client is typed access to etcd.
type Client struct {
	*members
	keys     Keys
	peer     atomic.Pointer[Peer] // of the last snapshot; nil: none
	borrowed bool                 // from a Line
}

// Line is a way to etcd of the renewals' own, which no other traffic can starve.
type Line struct{ c *Client }

// Open makes the main client. It does not touch the network and reads no file: the first
// request does. Errors are about the configuration. Without a log nothing is logged.
func Open(cfg Config, log *slog.Logger) (*Client, error) {
	c, err := open(cfg, log, pingWait)
	if err != nil {
		return nil, err
	}
	c.patience, c.lenient = readPatience, true
	return c, nil
}

// OpenLine makes the line of the renewals, as Open does.
func OpenLine(cfg Config, log *slog.Logger) (*Line, error) {
	c, err := open(cfg, log, unackedMost)
	if err != nil {
		return nil, err
	}
	c.borrowed = true
	return &Line{c}, nil
}

func open(cfg Config, log *slog.Logger, silence time.Duration) (*Client, error) {
	endpoints, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	urls := make([]string, len(endpoints))
	for i, e := range endpoints {
		urls[i] = e.url
	}
	return newClient(cfg, log, urls, func(i int) (*way, error) { return connect(cfg, endpoints[i], silence) }), nil
}

// Over is a client over a connection that is there already, for simulations and tests: only
// cfg's key layout and the number of its endpoints count, and nothing is dialed, authenticated
// or encrypted. Close closes the connection if it can be closed.
func Over(cfg Config, conn grpc.ClientConnInterface, log *slog.Logger) *Client {
	urls := cfg.Endpoints
	if len(urls) == 0 {
		urls = []string{"this process"}
	}
	cfg.User = ""
	c := newClient(cfg, log, urls, func(int) (*way, error) {
		life, end := context.WithCancel(context.Background())
		return newWay(conn, clientv3.NewCtxClient(life), end), nil
	})
	c.patience = readPatience
	if closer, ok := conn.(io.Closer); ok {
		c.after = closer.Close
	}
	return c
}

func newClient(cfg Config, log *slog.Logger, urls []string, open func(int) (*way, error)) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &members{open: open, identity: cfg.Identity, log: log, patience: linePatience,
		tokens: &tokens{user: cfg.User, passwordFile: cfg.PasswordFile}}
	if m.identity == nil {
		m.identity = &Identity{}
	}
	m.all, m.at = randomly(urls)
	return &Client{members: m, keys: cfg.Keys()}
}

// Keys is the key layout that this client uses.
func (c *Client) Keys() Keys { return c.keys }

// Close ends the connections; requests in flight fail with ErrClosed. A client that came from
// a Line has none of its own, and closing it does nothing.
func (c *Client) Close() error {
	if c.borrowed {
		return nil
	}
	if err := c.members.Close(); err != nil {
		return fmt.Errorf("close connection to etcd: %w", err)
	}
	return nil
}

// read runs gets in one transaction, so at one revision.
func (c *Client) read(ctx context.Context, gets ...clientv3.Op) (*etcdserverpb.TxnResponse, error) {
	return ask(ctx, c.members, false, commit(nil, gets))
}

func commit(guards []clientv3.Cmp, ops []clientv3.Op) question[*etcdserverpb.TxnResponse] {
	return func(ctx context.Context, w *way) (*etcdserverpb.TxnResponse, error) {
		said, err := w.kv.Txn(ctx).If(guards...).Then(ops...).Commit()
		return (*etcdserverpb.TxnResponse)(said), err
	}
}

// write commits one guarded transaction, once: whether a write whose answer was lost
// happened is for the caller to find out.
func (c *Client) write(ctx context.Context, guards []clientv3.Cmp, ops []clientv3.Op) (*etcdserverpb.TxnResponse, error) {
	answer, err := once(ctx, c.members, commit(guards, ops))
	if err != nil {
		return nil, err
	}
	if !answer.Succeeded {
		return nil, ErrChanged
	}
	return answer, nil
}

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

// Client is typed access over the line. It is usable until the line is closed, which is all
// that closes it.
func (l *Line) Client(ctx context.Context) (*Client, error) {
	if l.c.isClosed() {
		return nil, ErrClosed
	}
	return l.c, ctx.Err()
}

// AwaitReconnect returns nil at the moment that the connection in use becomes ready, the first
// one included. It waits for the event, not for the state: while the line is connected it
// blocks. It starts a connection if there is none yet.
func (l *Line) AwaitReconnect(ctx context.Context) error {
	return wrap(ctx, "await reconnection", l.c.awaitReady(ctx))
}

// Endpoint is the URL that the line uses now, as configured.
func (l *Line) Endpoint() string {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.c.all[l.c.at].url
}

// EndpointState is one endpoint of a line and what is known of it.
type EndpointState struct {
	URL string // as configured; it cannot hold a password
	Up  bool   // no request to it failed lately that was not followed by an answer
}

// Endpoints is the state of every endpoint, in the order of the configuration. One that
// accepts connections and has no leader is not up; one that nobody asked is.
func (l *Line) Endpoints() []EndpointState {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	list := make([]EndpointState, len(l.c.all))
	for i, e := range l.c.all {
		list[i] = EndpointState{URL: e.url, Up: e.up(time.Now())}
	}
	return list
}

// Close ends the line and its connections; requests in flight fail with ErrClosed.
func (l *Line) Close() error { return l.c.members.Close() }
