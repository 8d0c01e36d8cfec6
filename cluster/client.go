package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// A half-open connection under a watch is noticed within pingEvery + pingWait. etcd
// closes connections that ping more often than every 5 s. With pings, gRPC sets
// TCP_USER_TIMEOUT to pingWait, so here unackedMost does not count.
const (
	pingEvery = 10 * time.Second
	pingWait  = 3 * time.Second
)

// Client is typed access to etcd over one line.
type Client struct {
	keys   Keys
	log    *slog.Logger
	kv     clientv3.KV
	leases etcdserverpb.LeaseClient
	// watches share one stream.
	watches *watches
	// members asks a member about itself, and fellows about all.
	members etcdserverpb.MaintenanceClient
	fellows etcdserverpb.ClusterClient
	// tries is how many endpoints a read may be sent to, and patience the time until the next.
	tries    int
	patience time.Duration
	peer     atomic.Pointer[Peer] // of the last snapshot; nil: none
	close    func() error
}

// Open makes the main client, over a Line of its own. It does not touch the network and
// reads no file: the first request does. Errors are about the configuration. Without a log
// nothing is logged.
func Open(cfg Config, log *slog.Logger) (*Client, error) { return openMain(cfg, log) }

func openMain(cfg Config, log *slog.Logger, opts ...grpc.DialOption) (*Client, error) {
	opts = append(opts, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingWait}))
	l, err := openLine(cfg, log, mainPause, readPatience, opts...)
	if err != nil {
		return nil, err
	}
	l.lenient, l.client.close = true, l.Close
	return l.client, nil
}

// Over is a client over a connection that is there already, for simulations and tests:
// only cfg's key layout and the number of its endpoints count, and nothing is dialed, authenticated or encrypted. Close
// closes the connection if it can be closed.
func Over(cfg Config, conn grpc.ClientConnInterface, log *slog.Logger) *Client {
	closer := func() error { return nil }
	if c, ok := conn.(io.Closer); ok {
		closer = c.Close
	}
	return newClient(cfg, conn, max(1, len(cfg.Endpoints)), closer, log)
}

func newClient(cfg Config, conn grpc.ClientConnInterface, tries int, closer func() error, log *slog.Logger) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		keys:    cfg.Keys(),
		log:     log,
		kv:      clientv3.NewKVFromKVClient(etcdserverpb.NewKVClient(conn), nil),
		leases:  etcdserverpb.NewLeaseClient(conn),
		watches: &watches{client: etcdserverpb.NewWatchClient(conn)},
		members: etcdserverpb.NewMaintenanceClient(conn),
		fellows: etcdserverpb.NewClusterClient(conn),
		tries:   tries, patience: readPatience,
		close: closer,
	}
	c.watches.reach = c.Reach
	return c
}

// Keys is the key layout that this client uses.
func (c *Client) Keys() Keys { return c.keys }

// Close ends the connections; requests in flight fail with ErrClosed. A client that came
// from a Line has none of its own, and closing it does nothing.
func (c *Client) Close() error {
	if err := c.close(); err != nil {
		return fmt.Errorf("close connection to etcd: %w", err)
	}
	return nil
}

// How long a read may be unanswered before another endpoint is asked too, at most: a read
// with little time has half of it for that. A connection into a black hole is given up only
// after pingWait, and one to a member that is frozen after pingEvery + pingWait. On a line
// renewals may wait for the read.
const (
	readPatience = time.Second
	linePatience = 750 * time.Millisecond
)

// read runs gets in one transaction, so at one revision.
func (c *Client) read(ctx context.Context, gets ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return readAnywhere(ctx, c, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return c.kv.Txn(ctx).Then(gets...).Commit()
	})
}

// readAnywhere asks one question that never writes, so it may be repeated: with several
// endpoints, each is asked once at most, the next one when one cannot answer or leaves the
// question unanswered for too long. The first answer wins.
func readAnywhere[A any](ctx context.Context, c *Client, question func(context.Context) (*A, error)) (*A, error) {
	if c.tries == 1 {
		answer, err := question(ctx)
		if err != nil {
			return nil, cause(ctx, err)
		}
		return answer, nil
	}
	type outcome struct {
		answer *A
		err    error
	}
	var asked sync.WaitGroup
	defer asked.Wait()
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome, c.tries)
	way := &trip{tried: make([]bool, c.tries)}
	tries, waiting := 0, 0
	ask := func() {
		other := *way // what was tried is common to all
		other.other = waiting > 0
		tries, waiting = tries+1, waiting+1
		asked.Go(func() {
			answer, err := question(withTrip(all, &other))
			outcomes <- outcome{answer, err}
		})
	}
	ask()
	patience := c.patience
	if end, bounded := ctx.Deadline(); bounded {
		patience = max(1, min(patience, time.Until(end)/2))
	}
	impatient := time.NewTicker(patience)
	defer impatient.Stop()
	for {
		select {
		case <-impatient.C:
			if tries < c.tries {
				c.log.Debug("etcd read goes to another endpoint too", "unanswered_for", patience)
				ask()
			}
		case o := <-outcomes:
			waiting--
			switch {
			case o.err == nil:
				return o.answer, nil
			case ctx.Err() != nil || !elsewhere(o.err):
				return nil, cause(ctx, o.err)
			case tries < c.tries:
				c.log.Debug("etcd read goes to another endpoint", "error", o.err)
				ask()
			case waiting == 0:
				return nil, cause(ctx, o.err)
			}
		}
	}
}

// write commits one guarded transaction, once: whether a write whose answer was lost
// happened is for the caller to find out.
func (c *Client) write(ctx context.Context, guards []clientv3.Cmp, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	answer, err := c.kv.Txn(ctx).If(guards...).Then(ops...).Commit()
	if err != nil {
		return nil, cause(ctx, err)
	}
	if !answer.Succeeded {
		return nil, ErrChanged
	}
	return answer, nil
}
