package danube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"holdfast/brokerapi/access"
)

const (
	dialTimeout  = time.Second            // one attempt to connect, handshake included
	dialPatience = 500 * time.Millisecond // what a call waits for one attempt
	redialMin    = 100 * time.Millisecond // jittered between these two, and at once when a
	redialMax    = 500 * time.Millisecond // call needs the connection

	maxMessage = 8 << 20  // bytes; 100,000 topics of one broker are well below
	maxHeaders = 64 << 10 // bytes
)

// link is one gRPC port of the broker and the one connection to it.
type link struct {
	flag, url string // as they show in messages
	conn      *grpc.ClientConn
	life      context.Context // ends with the driver
	timeout   time.Duration   // longest wait for one answer
	token     *access.Token   // nil: none
	log       *slog.Logger

	open   sync.WaitGroup // connections that gRPC has not closed yet
	breaks atomic.Int64   // grows when one breaks

	mu         sync.Mutex
	closed     bool
	generation int       // grows with each connection made, and when it breaks
	broken     bool      // the last one has broken, and gRPC may not have noticed yet
	since      time.Time // when the current one was made
	attempts   int       // begun so far
	lastErr    string    // of the last attempt, to log changes only
	waiting    map[*waiter]bool
}

// waiter is a call that waits for an attempt to connect, one that began after it did: one
// from before says what was.
type waiter struct {
	failed context.CancelCauseFunc
	after  int
}

var (
	errClosed   = errors.New("the driver is closed")
	errPatience = errors.New("no connection yet")
)

// newLink prepares the connection and starts to make it; it does not wait.
func newLink(life context.Context, flag string, u *url.URL, c credential, timeout time.Duration, log *slog.Logger) (*link, error) {
	l := &link{flag: flag, url: u.String(), life: life, timeout: timeout, token: c.token, log: log, waiting: map[*waiter]bool{}}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.transport(u.Scheme, l.failed)),
		grpc.WithContextDialer(l.dial),
		grpc.WithUserAgent("holdfast"),
		grpc.WithDisableRetry(),
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

// dial makes one attempt for gRPC, and tells the outcome to the calls that wait.
func (l *link) dial(ctx context.Context, host string) (net.Conn, error) {
	l.mu.Lock()
	l.attempts++
	attempt := l.attempts
	l.mu.Unlock()
	dialer := net.Dialer{Timeout: dialTimeout}
	raw, err := dialer.DialContext(ctx, "tcp", host)
	if err != nil {
		l.failedAt(attempt, err)
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		raw.Close()
		return nil, errClosed
	}
	l.generation++
	l.since = time.Now()
	l.broken = false
	l.open.Add(1)
	return &heldConn{Conn: raw, link: l, generation: l.generation}, nil
}

// failed tells the calls that wait why the last attempt to connect failed.
func (l *link) failed(err error) {
	l.mu.Lock()
	attempt := l.attempts
	l.mu.Unlock()
	l.failedAt(attempt, err)
}

func (l *link) failedAt(attempt int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.waiting {
		if w.after < attempt {
			w.failed(err)
		}
	}
	if text := err.Error(); text != l.lastErr && l.life.Err() == nil {
		l.lastErr = text
		l.log.Info("broker cannot be reached", "setting", l.flag, "url", l.url, "error", err)
	}
}

// heldConn notices when the broker goes: gRPC reads all the time.
type heldConn struct {
	net.Conn
	link       *link
	generation int
	heard      atomic.Bool // the other side has said something
	told       atomic.Bool
	shut       sync.Once
}

// Read implements net.Conn.
func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.heard.Swap(true) {
		c.link.heard()
	}
	var slow net.Error
	if err != nil && !(errors.As(err, &slow) && slow.Timeout()) {
		c.broke(err)
	}
	return n, err
}

// Close implements net.Conn. gRPC closes the connection itself when the broker says
// that it is about to.
func (c *heldConn) Close() error {
	c.broke(net.ErrClosed)
	err := c.Conn.Close()
	c.shut.Do(c.link.open.Done)
	return err
}

func (c *heldConn) broke(err error) {
	c.link.breaks.Add(1)
	c.link.mu.Lock()
	if c.generation == c.link.generation {
		c.link.broken = true
		c.link.generation++
	}
	c.link.mu.Unlock()
	if !c.heard.Load() || c.link.life.Err() != nil || c.told.Swap(true) {
		return
	}
	c.link.log.Warn("broker connection lost", "setting", c.link.flag, "url", c.link.url, "error", err)
}

// heard has the next failure logged, whatever it is.
func (l *link) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastErr = ""
}

// connection says which connection is in use, and since when it is.
func (l *link) connection() (generation int, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation, l.since
}

// during asks on one connection: again if it was another one afterwards, so that what
// was learnt is not taken for what the process at the end of this one says.
func (l *link) during(ask func() error) (generation int, since time.Time, err error) {
	for range 3 {
		before, _ := l.connection()
		err = ask()
		if generation, since = l.connection(); err != nil || generation == before {
			return generation, since, err
		}
	}
	return 0, time.Time{}, fmt.Errorf("%s %s: the connection keeps breaking: see the broker's log", l.flag, l.url)
}

// call asks for something on the connection, bounded by ctx, by the time for one answer
// and by the driver's life, and asks once more if the connection broke meanwhile. Its
// errors name the setting; see callError.
func (l *link) call(ctx context.Context, method string, do func(context.Context) error) error {
	bounded, slow := context.WithTimeoutCause(ctx, l.timeout, fmt.Errorf("no answer within %v: %w", l.timeout, context.DeadlineExceeded))
	defer slow()
	breaks := l.breaks.Load()
	err := l.order(bounded, method, do)
	if code(err) == codes.Unavailable && l.breaks.Load() != breaks {
		return l.order(bounded, method, do)
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
	if err := l.ready(ctx); errors.Is(err, errClosed) {
		return err
	} else if err != nil {
		return fmt.Errorf("%s %s: not connected: %w: %s", l.flag, l.url, err, l.unreached(err))
	}
	if err := do(ctx); err != nil {
		return l.explain(ctx, method, err)
	}
	return nil
}

// ready waits for the connection, and has it made at once if there is none. It returns
// the error of an attempt that failed meanwhile. When patience is over it returns nil:
// gRPC knows best what is wrong.
func (l *link) ready(ctx context.Context) error {
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	over := time.AfterFunc(dialPatience, func() { failed(errPatience) })
	defer over.Stop()
	l.mu.Lock()
	w := &waiter{failed, l.attempts}
	l.waiting[w] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.waiting, w)
		l.mu.Unlock()
	}()
	for {
		state := l.conn.GetState()
		l.mu.Lock()
		broken := l.broken
		l.mu.Unlock()
		switch state {
		case connectivity.Ready:
			if !broken {
				return nil
			}
		case connectivity.Shutdown:
			return errClosed
		case connectivity.Idle:
			l.conn.Connect()
		case connectivity.TransientFailure:
			l.conn.ResetConnectBackoff()
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			if cause := context.Cause(ctx); !errors.Is(cause, errPatience) {
				return cause
			}
			return nil
		}
	}
}

// close ends the connection and waits until gRPC has let go of it.
func (l *link) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if !closed {
		_ = l.conn.Close() // it fails only when it is closed already
	}
	l.open.Wait()
}
