package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// How a lost connection comes back. After a cut that drops packets the kernel repeats a SYN
// after 1, 3, 7 … seconds and gRPC waits between its attempts, so either alone would sleep
// through the heal. Here some SYN is never older than dialEvery.
const (
	dialEvery = 200 * time.Millisecond // between the starts of two TCP connects, jittered
	dialEach  = time.Second            // bound on one TCP connect
	dialRound = 3 * time.Second        // bound on TCP, TLS and HTTP/2 together
	dialPause = 100 * time.Millisecond // between two rounds, jittered by a fifth
	// gRPC gives a connection up when data stays unacknowledged for as long as it waits for an
	// answer to a ping (TCP_USER_TIMEOUT), which it sends while a watch stands. etcd closes
	// connections that ping more often than every 5 s.
	pingEvery   = 10 * time.Second
	pingWait    = 3 * time.Second
	unackedMost = 1500 * time.Millisecond // of a line, which has no watches
	bufferBytes = 4 << 10                 // a sidecar's messages are small; gRPC's default is 32 KiB each way
	// With windows of its own choice gRPC sends a ping with each answer, to measure the
	// path: one more wake-up each time. These hold any page of a list.
	windowBytes = 1 << 20
)

// connect makes the etcd client of one endpoint, without touching the network. What is asked
// does not wait for a connection that is refused: it fails, and is asked elsewhere or again.
func connect(cfg Config, e endpoint, silence time.Duration) (*way, error) {
	opts := []grpc.DialOption{
		grpc.WithContextDialer(hosts.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: dialPause, Multiplier: 1.2, Jitter: 0.2, MaxDelay: 2 * dialPause},
			MinConnectTimeout: dialRound,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(windowBytes),
		grpc.WithIdleTimeout(0), // an idle line must stay connected
		grpc.WithUserAgent("holdfast"),
	}
	if e.tls {
		opts = append(opts, grpc.WithTransportCredentials(newFileCredentials(cfg, e.server)))
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{e.url},
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: silence,
		MaxUnaryRetries: 1, // in all: whatever it is that may be asked again, it is asked by who knows that
		DialOptions:     opts,
		Logger:          zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("prepare connection to etcd at %s: %w", e.url, err)
	}
	return newWay(c.ActiveConnection(), c, func() { _ = c.Close() }), nil
}

// dial connects to one address, or to whichever of those answers first that its name stands
// for: a connect begins each dialEvery, to the next one in turn, until one stands. An address
// that refuses costs no step; when each has, that is the answer.
func (n *names) dial(ctx context.Context, addr string) (net.Conn, error) {
	var dialer net.Dialer
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return dialer.DialContext(ctx, "unix", path)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ips, err := n.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	return race(ctx, len(ips), func(ctx context.Context, address int) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort(ips[address], port))
	})
}

func race(ctx context.Context, addresses int, dial func(ctx context.Context, address int) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialRound)
	defer cancel()
	type result struct {
		address int
		conn    net.Conn
		err     error
	}
	results, refused := make(chan result), make([]bool, addresses)
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	for turn := 0; ; {
		select {
		case <-next.C:
			address := turn % addresses
			go func() { // ends with ctx at the latest, closing what it brought
				one, done := context.WithTimeout(ctx, dialEach)
				defer done()
				conn, err := dial(one, address)
				select {
				case results <- result{address, conn, err}:
				case <-ctx.Done():
					if conn != nil {
						conn.Close()
					}
				}
			}()
			turn++
			next.Reset(jitter(dialEvery))
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if last = r.err; timedOut(r.err) {
				break
			}
			if refused[r.address] = true; !slices.Contains(refused, false) {
				return nil, r.err
			}
			next.Reset(0)
		case <-ctx.Done():
			if last == nil {
				last = ctx.Err()
			}
			return nil, last
		}
	}
}

func timedOut(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout()
}

// jitter spreads d by a fifth, downwards only: d is a promise.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
