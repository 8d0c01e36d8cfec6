package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// How a lost connection comes back. After a cut that drops packets the kernel repeats
// a SYN after 1, 3, 7 … seconds and gRPC waits between its attempts, so either alone
// would sleep through the heal. Here some SYN is never older than dialEvery, and the
// pause between two rounds is shorter than that.
const (
	dialEvery   = 250 * time.Millisecond // between the starts of two TCP connects, jittered
	dialEach    = time.Second            // bound on one TCP connect
	dialRound   = 3 * time.Second        // bound on TCP, TLS and HTTP/2 together
	dialPause   = 100 * time.Millisecond // between two rounds at first, jittered by a fifth
	linePause   = 200 * time.Millisecond // and at most, on a line
	mainPause   = time.Second            // and at most, on the main client, which can wait
	unackedMost = 1500 * time.Millisecond
	bufferBytes = 4 << 10 // a sidecar's messages are small; gRPC's default is 32 KiB each way
	// With windows of its own choice gRPC sends a ping with each answer, to measure the
	// path: one more wake-up each time. These hold any page of a list.
	windowBytes = 1 << 20
)

// dialOptions are what the connections of one client or line have in common, their token
// included; several: there is more than one endpoint. pauseMost bounds the pause between two rounds of dialing.
func dialOptions(cfg Config, tls, several bool, pauseMost time.Duration) []grpc.DialOption {
	tokens := &tokens{user: cfg.User, passwordFile: cfg.PasswordFile}
	var creds credentials.TransportCredentials = insecure.NewCredentials()
	if tls {
		creds = fileCredentials{caCert: cfg.CACert, cert: cfg.Cert, key: cfg.Key}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dialTCP),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: dialPause, Multiplier: 1.3, Jitter: 0.2, MaxDelay: pauseMost},
			MinConnectTimeout: dialRound,
		}),
		grpc.WithChainUnaryInterceptor(requireLeaderUnary, tokens.unary),
		grpc.WithChainStreamInterceptor(requireLeaderStream, tokens.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(windowBytes),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // retries are decided here, where it is known what may be repeated
		grpc.WithIdleTimeout(0), // an idle line must stay connected
		grpc.WithUserAgent("holdfast"),
	}
	if several {
		identity := cmp.Or(cfg.Identity, &Identity{})
		opts = append(opts, grpc.WithChainUnaryInterceptor(identity.unary), grpc.WithChainStreamInterceptor(identity.stream))
	}
	return opts
}

// connect makes a connection to an endpoint without touching the network.
func connect(e endpoint, opts []grpc.DialOption) (*grpc.ClientConn, error) {
	state := resolver.State{Endpoints: []resolver.Endpoint{{Addresses: []resolver.Address{{Addr: e.addr, ServerName: e.server}}}}}
	source := manual.NewBuilderWithScheme("etcd")
	source.InitialState(state)
	// No WithAuthority: it would verify every endpoint under the name of the first.
	conn, err := grpc.NewClient("etcd:///"+e.server, append(slices.Clip(opts), grpc.WithResolvers(source))...)
	if err != nil {
		return nil, fmt.Errorf("prepare connection to etcd at %s: %w", e.url, err)
	}
	return conn, nil
}

// dialTCP is gRPC's dialer: one connection, from a race of connects.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	dialer := net.Dialer{Control: limitUnacked}
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return dialer.DialContext(ctx, "unix", path)
	}
	return dialName(ctx, addr, net.DefaultResolver.LookupIPAddr, dialer.DialContext)
}

// dialName is a race over all addresses that a name stands for: each connect begins with the
// next one. net.Dialer would give all of a connect's time to the first, which may be deaf. An
// address that refuses costs no step.
func dialName(ctx context.Context, addr string, lookup func(context.Context, string) ([]net.IPAddr, error),
	dial func(ctx context.Context, network, addr string) (net.Conn, error)) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ips := []net.IPAddr{{}} // without a host: this machine
	if host != "" {
		if ips, err = lookup(ctx, host); err != nil {
			return nil, err
		}
	}
	return race(ctx, dialEvery, dialEach, func(ctx context.Context, turn int) (conn net.Conn, err error) {
		for i := range ips {
			conn, err = dial(ctx, "tcp", net.JoinHostPort(ips[(turn+i)%len(ips)].String(), port))
			if err == nil || ctx.Err() != nil {
				break
			}
		}
		return conn, err
	})
}

// race starts a dial every so often while earlier ones are still pending, each bounded; turn
// counts them from 0. The first success wins and the others are closed. An error that is an
// answer (refused, unreachable) ends the race at once; a timeout is none.
func race(ctx context.Context, every, each time.Duration, dial func(ctx context.Context, turn int) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	start := func(turn int) {
		go func() { // ends with ctx at the latest, closing what it brought
			one, stop := context.WithTimeout(ctx, each)
			defer stop()
			conn, err := dial(one, turn)
			select {
			case results <- result{conn, err}:
			case <-ctx.Done():
				if conn != nil {
					conn.Close()
				}
			}
		}()
	}
	start(0)
	next := time.NewTimer(jitter(every))
	defer next.Stop()
	var last error
	for turn := 1; ; {
		select {
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			var netErr net.Error
			if !errors.Is(r.err, context.DeadlineExceeded) && (!errors.As(r.err, &netErr) || !netErr.Timeout()) {
				return nil, r.err
			}
			last = r.err
		case <-next.C:
			start(turn)
			turn++
			next.Reset(jitter(every))
		case <-ctx.Done():
			if last != nil {
				return nil, last
			}
			return nil, ctx.Err()
		}
	}
}

// jitter spreads d by a fifth, downwards only: d is a promise.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
