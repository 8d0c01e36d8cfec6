package danube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"holdfast/brokerapi/access"
	"holdfast/brokerapi/hosts"
)

const (
	dialTimeout  = time.Second            // one attempt to connect, handshake included
	dialPatience = 500 * time.Millisecond // what a call waits for a connection to a broker that was away
	redialMin    = 100 * time.Millisecond // jittered between these two, and at once when a
	redialMax    = 500 * time.Millisecond // call needs the connection

	maxMessage = 8 << 20  // bytes; 100,000 topics of one broker are well below
	maxHeaders = 64 << 10 // bytes
)

// link is one gRPC port of the broker and the one connection to it.
type link struct {
	flag, url string // as they show in messages
	host      string
	conn      *grpc.ClientConn
	life      context.Context // ends with the driver
	timeout   time.Duration   // longest wait for one answer
	token     *access.Token   // nil: none

	made    atomic.Pointer[time.Time] // when the last connection was; nil: never
	failure atomic.Pointer[error]     // of the last attempt to connect; nil: it succeeded
}

var errClosed = errors.New("the driver is closed")

// newLink prepares the connection and starts to make it; it does not wait.
func newLink(life context.Context, flag string, u *url.URL, c credential, timeout time.Duration) (*link, error) {
	l := &link{flag: flag, url: u.String(), host: u.Hostname(), life: life, timeout: timeout, token: c.token}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.transport(u.Scheme, l.failed)),
		grpc.WithContextDialer(l.dial),
		grpc.WithUserAgent("holdfast"),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // held for as long as we run
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMax},
			MinConnectTimeout: dialTimeout,
		}),
	}
	if c.token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearerToken{c.token}))
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, options...)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, l.url, err)
	}
	l.conn = conn
	conn.Connect()
	return l, nil
}

func (l *link) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := hosts.Dial(ctx, address)
	if err != nil {
		l.failed(err)
		return nil, err
	}
	now := time.Now()
	l.made.Store(&now)
	l.failure.Store(nil)
	return conn, nil
}

func (l *link) failed(err error) { l.failure.Store(&err) }

// since is when the connection in use was made; zero: there was none yet.
func (l *link) since() time.Time {
	if at := l.made.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// call asks for something, bounded by ctx, by the time for one answer and by the driver's
// life, and asks once more if the connection broke meanwhile. Its errors name the setting;
// see callError.
func (l *link) call(ctx context.Context, method string, do func(context.Context) error) error {
	ctx, slow := context.WithTimeoutCause(ctx, l.timeout, fmt.Errorf("no answer within %v: %w", l.timeout, context.DeadlineExceeded))
	defer slow()
	err := l.order(ctx, method, do)
	if code(err) == codes.Unavailable && l.conn.GetState() != connectivity.TransientFailure {
		return l.order(ctx, method, do)
	}
	return err
}

// order is call for a request that changes something, and whose answer may come only
// when the work is done: it is made once, and not bounded by the time for one answer.
func (l *link) order(ctx context.Context, method string, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: not asked: %w", l.flag, l.url, err)
	}
	if l.life.Err() != nil {
		return errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(errClosed) })()
	if l.conn.GetState() == connectivity.TransientFailure {
		l.reconnect(ctx)
	}
	if err := do(ctx); err != nil {
		return l.explain(ctx, method, err)
	}
	return nil
}

// reconnect has a connection made at once, without the pause that follows failures, and
// waits a moment for it.
func (l *link) reconnect(ctx context.Context) {
	patience := dialPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for state := connectivity.TransientFailure; state != connectivity.Ready && state != connectivity.Shutdown; state = l.conn.GetState() {
		l.conn.ResetConnectBackoff()
		l.conn.Connect()
		if !l.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func (l *link) close() { _ = l.conn.Close() } // it fails only when it is closed already
