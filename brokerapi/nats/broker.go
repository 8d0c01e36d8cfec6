// Package nats drives a NATS server with JetStream, from 2.9 on, as a broker:
// a topic is a stream.
//
// The topic /ns/name is the stream "hf+ns+name" (see streamName for the bytes
// that are written differently), with the subject "ns.name" unless the topic's
// record names others. Streams that are not named like this are never listed,
// changed or deleted. Quiescing and unloading are the same here: the stream's
// subjects are replaced by one that nobody publishes to, so that publishers get
// "no responders", which JetStream clients retry, while messages, consumers and
// cursors stay where they are.
//
// Guaranteed: New needs no server; no call outlives its context; a call in
// flight ends when the connection breaks; nothing is ever deleted; of a stream
// that exists nothing but its subjects is changed, also if its record says
// otherwise by now; the connection is only ever to the address that was given,
// never to another member of that server's cluster.
//
// Not guaranteed: that a call which ended with an error had no effect (its request
// may have arrived); that a change which somebody else makes to a stream's settings
// between our read and our update of it survives (JetStream has no guarded
// update); that in a server that is a member of a JetStream cluster the listed
// streams are on this very server (JetStream lists the cluster's).
package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
)

const (
	defaultTimeout = 10 * time.Second       // one request, when Config.Timeout is zero
	dialTimeout    = time.Second            // one attempt to connect, greeting included
	dialPatience   = 500 * time.Millisecond // what a call waits for the first attempt
	reconnectMin   = 100 * time.Millisecond // jittered between these two
	reconnectMax   = 250 * time.Millisecond
)

// Config is what New needs.
type Config struct {
	AdminURL   string        // nats://host:port or tls://host:port, this one server's client port
	MonitorURL string        // http(s)://host:port of its monitoring; empty: port 8222 of AdminURL's host
	CredsFile  string        // credentials file (user JWT and seed); empty: none
	KeyPrefix  string        // what stands in front of every key in etcd, for error messages
	BrokerID   string        // the name the server must have if it has one; empty: any
	Timeout    time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	Logger     *slog.Logger  // nil: silent
}

// Broker is one NATS server. It is safe for concurrent use.
type Broker struct {
	admin, monitor string
	brokerID       string
	keyPrefix      string
	timeout        time.Duration
	log            *slog.Logger
	port           *monitor

	life   context.Context // ends with Close
	end    context.CancelCauseFunc
	dialed chan struct{} // closed when the first attempt to connect is over
	gone   chan struct{} // closed when the connection is closed for good

	answered atomic.Int64 // when JetStream last answered anything, in Unix nanoseconds

	mu       sync.Mutex
	conn     *client.Conn // nil until dialed, or when dialErr says why
	dialErr  error
	link     link
	lastErr  error                    // why the last attempt to connect failed
	verified string                   // id of the server that passed sameServer
	changing map[string]chan struct{} // streams that are being changed; closed when they are not any more
}

// link lives as long as one connection to the server.
type link struct {
	ctx  context.Context
	snap context.CancelCauseFunc
}

var (
	errClosed = errors.New("the driver is closed")
	errBroke  = errors.New("the connection to the broker broke")
)

var (
	_ brokerapi.Broker   = (*Broker)(nil)
	_ brokerapi.Quiescer = (*Broker)(nil)
	_ brokerapi.Unloader = (*Broker)(nil)
)

// New checks the settings and starts to connect; it does not wait for the server.
// Its errors are settings that cannot work, each with the flag it belongs to.
func New(cfg Config) (*Broker, error) {
	admin, monitor, err := parseAddresses(cfg.AdminURL, cfg.MonitorURL)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(monitor)
	if err != nil {
		return nil, err // parseAddresses made it
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("broker timeout %v: must not be negative", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{
		admin:     admin,
		monitor:   monitor,
		brokerID:  cfg.BrokerID,
		keyPrefix: strings.TrimSuffix(cfg.KeyPrefix, "/"),
		timeout:   cfg.Timeout,
		log:       cfg.Logger.With("broker_admin", admin),
		port:      newMonitor(at),
		changing:  map[string]chan struct{}{},
		dialed:    make(chan struct{}),
		gone:      make(chan struct{}),
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	b.link = newLink(b.life)
	opts := b.options()
	if cfg.CredsFile != "" {
		if err := checkCreds(cfg.CredsFile); err != nil {
			return nil, err
		}
		opts = append(opts, client.UserCredentials(cfg.CredsFile))
	}
	go b.dial(opts)
	return b, nil
}

func (b *Broker) options() []client.Option {
	return []client.Option{
		client.Name("holdfast"),
		client.Timeout(dialTimeout),
		client.RetryOnFailedConnect(true),
		client.MaxReconnects(-1),
		client.CustomReconnectDelay(func(int) time.Duration {
			return reconnectMin + rand.N(reconnectMax-reconnectMin)
		}),
		// Without these two the client would go to another member of the cluster,
		// and give up for good after two refused logins.
		client.IgnoreDiscoveredServers(),
		client.IgnoreAuthErrorAbort(),
		// A request made while disconnected fails at once instead of being sent later.
		client.ReconnectBufSize(-1),
		client.PingInterval(10 * time.Second),
		client.MaxPingsOutstanding(2),
		client.ConnectHandler(b.onUp),
		client.ReconnectHandler(b.onUp),
		client.DisconnectErrHandler(b.onDown),
		client.ReconnectErrHandler(func(_ *client.Conn, err error) { b.noteAttempt(err) }),
		client.ClosedHandler(func(*client.Conn) { close(b.gone) }),
		// Without a handler the client library prints asynchronous errors itself.
		client.ErrorHandler(func(_ *client.Conn, _ *client.Subscription, err error) {
			b.log.Debug("broker connection error", "error", err)
		}),
	}
}

// dial makes the first attempt, which the client library does in the caller.
func (b *Broker) dial(opts []client.Option) {
	nc, err := client.Connect(b.admin, opts...)
	b.mu.Lock()
	b.conn, b.dialErr = nc, err
	b.mu.Unlock()
	close(b.dialed)
}

func newLink(life context.Context) link {
	ctx, cancel := context.WithCancelCause(life)
	return link{ctx: ctx, snap: cancel}
}

func (b *Broker) onUp(nc *client.Conn) {
	b.mu.Lock()
	b.lastErr = nil
	b.mu.Unlock()
	b.log.Info("broker connected", "server_name", nc.ConnectedServerName(),
		"server_id", nc.ConnectedServerId(), "version", nc.ConnectedServerVersion())
}

func (b *Broker) onDown(_ *client.Conn, err error) {
	if b.life.Err() != nil {
		return // our own Close
	}
	b.mu.Lock()
	broken := b.link
	b.link = newLink(b.life)
	b.lastErr = err
	b.mu.Unlock()
	broken.snap(errBroke)
	b.log.Warn("broker connection lost", "error", err)
}

func (b *Broker) noteAttempt(err error) {
	b.mu.Lock()
	changed := b.lastErr == nil || b.lastErr.Error() != err.Error()
	b.lastErr = err
	b.mu.Unlock()
	if changed {
		b.log.Info("broker cannot be reached", "error", err)
	}
}

// Capabilities implements brokerapi.Broker.
func (b *Broker) Capabilities() brokerapi.Capabilities {
	return brokerapi.Capabilities{Quiesce: true, Unload: true, StableName: true, LocalData: true}
}

// Close ends calls in flight and closes the connection. It takes at most one
// attempt to connect (1 s) if the first one is still under way.
func (b *Broker) Close() error {
	if b.life.Err() == nil {
		b.end(errClosed)
	}
	<-b.dialed
	if b.conn != nil {
		b.conn.Close()
		<-b.gone
	}
	b.port.close()
	return nil
}

// connected returns the connection and its life, waiting a little for the very
// first one. The error of a connection that is down names flag and cause.
func (b *Broker) connected(ctx context.Context) (*client.Conn, context.Context, error) {
	select {
	case <-b.dialed:
	default:
		patience := time.NewTimer(dialPatience)
		defer patience.Stop()
		select {
		case <-b.dialed:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("--broker-admin %s: not asked: %w", b.admin, err)
	}
	if b.life.Err() != nil {
		return nil, nil, errClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.IsConnected() {
		return b.conn, b.link.ctx, nil
	}
	return nil, nil, b.unreachable()
}

// errUnreachable is wrapped when there is no connection to the server.
var errUnreachable = errors.New("not connected")

// unreachable says why there is no connection. b.mu is held.
func (b *Broker) unreachable() error {
	cause := b.dialErr
	if cause == nil {
		cause = b.lastErr
	}
	switch {
	case cause == nil:
		return fmt.Errorf("--broker-admin %s: %w: no answer yet: is nats-server running there?", b.admin, errUnreachable)
	case isLoginError(cause):
		return &loginError{fmt.Errorf("--broker-admin %s: %w: %w: set --nats-creds-file to credentials that this server accepts", b.admin, errUnreachable, cause)}
	default:
		return fmt.Errorf("--broker-admin %s: %w: %w: is nats-server running there?", b.admin, errUnreachable, shown(cause))
	}
}

// shown is an error whose text is fit for a terminal: the client quotes what it could
// not parse as it came.
func shown(err error) error {
	text := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, excerptOf(err.Error(), 200))
	if text == err.Error() {
		return err
	}
	return &shownError{text, err}
}

type shownError struct {
	text string
	err  error
}

func (e *shownError) Error() string { return e.text }
func (e *shownError) Unwrap() error { return e.err }

// loginError says that the server refuses who we say we are.
type loginError struct{ error }

func (e *loginError) Unwrap() error { return e.error }

// CredentialsRefused tells a setting that is wrong from a server that is away.
func (*loginError) CredentialsRefused() bool { return true }

func isLoginError(err error) bool {
	return errors.Is(err, client.ErrAuthorization) || errors.Is(err, client.ErrAuthExpired) ||
		errors.Is(err, client.ErrAuthRevoked) || errors.Is(err, client.ErrAccountAuthExpired)
}

// unanswered is that a question was not answered within this time. It is put into words
// only where somebody wants them.
type unanswered time.Duration

func (u unanswered) Error() string {
	return fmt.Sprintf("no answer within %v: %v", time.Duration(u), context.DeadlineExceeded)
}
func (unanswered) Unwrap() error { return context.DeadlineExceeded }

// within bounds ctx by the time for one answer and by the life of what is asked.
func (b *Broker) within(ctx, life context.Context) (context.Context, func()) {
	ctx, slow := context.WithTimeoutCause(ctx, b.timeout, unanswered(b.timeout))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		slow()
	}
}
