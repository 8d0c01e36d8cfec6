package cluster

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/brokerapi/hosts"
)

// How a lost connection comes back: gRPC waits between its attempts, and either it or the kernel
// alone would sleep through the heal; see hosts.Dial.
const (
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
	shake := insecure.NewCredentials()
	if e.tls {
		shake = credentials.NewTLS(nil)
	}
	opts := []grpc.DialOption{
		grpc.WithContextDialer(hosts.Dial),
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
		grpc.WithTransportCredentials(fileCredentials{shake, cfg.files(), e}),
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
	return newWay(c.ActiveConnection(), c), nil
}

// Resolve looks up the names of all endpoints, and waits for as long as that takes: what is asked
// of etcd afterwards has its time for etcd. What was not resolved is told by the next request.
func Resolve(ctx context.Context, cfg Config) {
	endpoints, _ := cfg.parse()
	var all sync.WaitGroup
	for _, e := range endpoints {
		all.Go(func() { _, _ = hosts.Lookup(ctx, e.server) })
	}
	all.Wait()
}

// Unresolved reports whether a name was not resolved: that says nothing of etcd.
func Unresolved(err error) bool {
	return err != nil && strings.Contains(err.Error(), hosts.NotResolved)
}
