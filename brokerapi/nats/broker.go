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
// flight ends when the connection breaks; nothing is ever deleted but what a move
// has parked; of a stream that exists nothing but its subjects is changed, also if
// its record says otherwise by now; the connection is only ever to the address that
// was given, never to another member of that server's cluster.
//
// Not guaranteed: that a call which ended with an error had no effect (its request
// may have arrived); that a change which somebody else makes to a stream's settings
// between our read and our update of it survives (JetStream has no guarded
// update); that in a server that is a member of a JetStream cluster the listed
// streams are on this very server (JetStream lists the cluster's).
package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/hosts"
	"holdfast/brokerapi/rest"
)

const (
	defaultTimeout = 10 * time.Second       // one request, when Config.Timeout is zero
	dialTimeout    = time.Second            // one attempt to connect, greeting included
	reconnectMin   = 100 * time.Millisecond // jittered between these two
	reconnectMax   = 250 * time.Millisecond
	refusedPause   = time.Second // after a refusal, which the server writes into its log
	adminPort      = "4222"
	monitorPort    = "8222"
	maxAnswer      = 8 << 20 // bytes of the monitoring port; /varz with thousands of routes is well below
)

// Config is what New needs.
type Config struct {
	AdminURL     string        // nats://host:port or tls://host:port, this one server's client port
	MonitorURL   string        // http(s)://host:port of its monitoring
	CredsFile    string        // credentials file (user JWT and seed); empty: none
	User         string        // with PasswordFile; empty: none
	Password     string        // file
	KeyPrefix    string        // what stands in front of every key in etcd, for error messages
	BrokerID     string        // the name the server must have if it has one; empty: any
	Timeout      time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	Logger       *slog.Logger  // nil: silent
	access.Files               // those for TLS hold for both ports
}

// Broker is one NATS server. It is safe for concurrent use.
type Broker struct {
	cfg     Config
	at      string // what errors call it
	admin   string
	host    string // of admin
	log     *slog.Logger
	monitor *rest.Client

	life  context.Context // ends with Close
	end   context.CancelCauseFunc
	tried context.Context // ends when the first attempt to connect is over
	over  context.CancelFunc
	gone  chan struct{} // closed when there will be no connection any more

	answered atomic.Int64            // when JetStream last answered anything, in Unix nanoseconds
	attempt  atomic.Pointer[attempt] // the last one to connect
	known    atomic.Pointer[varz]    // the server that passed sameServer; nil: none did
	leaving  atomic.Value            // string: the id of the server that said so
	changing sync.Map                // by topic: a channel that holds what its one change holds

	restoring, comparing chan struct{} // hold what each that is at work holds

	mu      sync.Mutex
	conn    *client.Conn    // nil until the first attempt is over
	link    context.Context // lives as long as one connection to the server; nil: there is none
	snap    context.CancelCauseFunc
	lastErr error // why there is no connection
}

var errBroke = errors.New("the connection to the broker broke")

var _ brokerapi.Broker = (*Broker)(nil)

// New checks the settings and starts to connect; it does not wait for the server.
// Its errors are settings that cannot work, each with the flag it belongs to.
func New(cfg Config) (*Broker, error) {
	admin, err := access.ParseServer("--broker-admin", cfg.AdminURL, adminPort, "nats", "tls")
	if err != nil {
		return nil, err
	}
	cfg.Timeout, cfg.Logger = cmp.Or(cfg.Timeout, defaultTimeout), cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	b := &Broker{
		cfg:   cfg,
		at:    "--broker-admin " + admin.String(),
		admin: admin.String(),
		host:  admin.Hostname(),
		log:   cfg.Logger.With("broker_admin", admin.String()),
		gone:  make(chan struct{}),

		restoring: make(chan struct{}, 1), comparing: make(chan struct{}, comparisons),
	}
	login, err := b.login(admin.Scheme == "tls")
	if err != nil {
		return nil, err
	}
	opts := client.GetDefaultOptions()
	opts.Url = b.admin
	for _, option := range append(b.options(), login...) {
		if err := option(&opts); err != nil {
			return nil, err
		}
	}
	cfg.TokenFile = "" // it is not for the monitor
	b.monitor, err = rest.New(rest.Config{Setting: "--nats-monitor", URL: cfg.MonitorURL, Timeout: cfg.Timeout, MaxAnswer: maxAnswer, Files: cfg.Files})
	if err != nil {
		return nil, err
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	b.tried, b.over = context.WithCancel(b.life)
	go b.connect(opts)
	return b, nil
}

// login is how we show ourselves to the client port, and how it shows itself to us. Files are
// read anew for each attempt.
func (b *Broker) login(secure bool) (opts []client.Option, err error) {
	cfg := b.cfg
	token, err := cfg.Token()
	if err = cmp.Or(cfg.Check(), err); err != nil {
		return nil, err
	}
	password, err := access.OpenToken("--nats-password-file", cfg.Password)
	if err != nil {
		return nil, err
	}
	if secure {
		opts = append(opts, client.Secure())
	}
	if cfg.CACert != "" {
		opts = append(opts, client.RootCAs(cfg.CACert))
	}
	if cfg.Cert != "" {
		opts = append(opts, client.ClientCert(cfg.Cert, cfg.Key))
	}
	if cfg.CredsFile != "" {
		opts = append(opts, client.UserCredentials(cfg.CredsFile))
	}
	if password != nil {
		opts = append(opts, client.UserInfoHandler(func() (string, string) { return cfg.User, password.Current() }))
	}
	if token != nil {
		opts = append(opts, client.TokenHandler(token.Current))
	}
	return opts, nil
}

func (b *Broker) options() []client.Option {
	return []client.Option{
		client.Name("holdfast"),
		client.Timeout(dialTimeout),
		client.SetCustomDialer(b),
		client.SkipHostLookup(), // the dialer does that
		client.RetryOnFailedConnect(true),
		client.MaxReconnects(-1),
		client.CustomReconnectDelay(func(int) time.Duration { return b.pause() }),
		// Without these two the client would go to another member of the cluster,
		// and give up for good after two refused logins.
		client.IgnoreDiscoveredServers(),
		client.IgnoreAuthErrorAbort(),
		// A request made while disconnected fails at once instead of being sent later.
		client.ReconnectBufSize(-1),
		client.SyncQueueLen(4096), // more than is ever asked for at once; by default each subscription takes half a megabyte
		client.PingInterval(10 * time.Second),
		client.MaxPingsOutstanding(2),
		client.ConnectHandler(b.onUp),
		client.LameDuckModeHandler(func(nc *client.Conn) { b.leaving.Store(nc.ConnectedServerId()) }),
		client.ReconnectHandler(b.onUp),
		client.DisconnectErrHandler(b.onDown),
		client.ReconnectErrHandler(func(_ *client.Conn, err error) { b.noteAttempt(err) }),
		// Without a handler the client library prints asynchronous errors itself.
		client.ErrorHandler(func(_ *client.Conn, _ *client.Subscription, err error) {
			b.log.Debug("broker connection error", "error", err)
		}),
	}
}

// connect holds the connection, which is made again and again by the client library, until Close.
func (b *Broker) connect(opts client.Options) {
	defer close(b.gone)
	nc, err := opts.Connect()
	if err != nil { // settings that cannot be, which New has checked
		b.noteAttempt(err)
		return
	}
	b.mu.Lock()
	b.conn = nc
	b.mu.Unlock()
	<-b.life.Done()
	nc.Close()
}

// pause is how long the next attempt to connect waits. That a server did not take us in again the
// client library tells only if it is asked.
func (b *Broker) pause() time.Duration {
	b.mu.Lock()
	nc := b.conn
	b.mu.Unlock()
	if nc != nil && nc.LastError() != nil {
		b.noteAttempt(nc.LastError())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.lastErr, brokerapi.ErrUnseen) {
		return refusedPause
	}
	return reconnectMin + rand.N(reconnectMax-reconnectMin)
}

func (b *Broker) onUp(nc *client.Conn) {
	b.mu.Lock()
	b.conn, b.lastErr = nc, nil
	b.link, b.snap = context.WithCancelCause(b.life)
	b.mu.Unlock()
	b.over()
	b.attempt.Load().over()
	b.log.Info("broker connected", "server_name", nc.ConnectedServerName(),
		"server_id", nc.ConnectedServerId(), "version", nc.ConnectedServerVersion())
}

func (b *Broker) onDown(_ *client.Conn, err error) {
	if b.life.Err() != nil {
		return // our own Close
	}
	b.mu.Lock()
	b.snap(errBroke)
	b.link, b.lastErr = nil, err
	b.mu.Unlock()
	b.log.Warn("broker connection lost", "error", err)
}

// noteAttempt keeps why an attempt to connect failed.
func (b *Broker) noteAttempt(err error) {
	err = b.attempt.Load().failure(err, b.cfg.Files)
	b.mu.Lock()
	changed := b.lastErr == nil || b.lastErr.Error() != err.Error()
	b.lastErr = err
	b.mu.Unlock()
	b.over()
	if changed {
		b.log.Info("broker cannot be reached", "error", err)
	}
}

// Traits are those of a NATS server.
var Traits = brokerapi.Traits{LocalData: true}

// Close ends calls in flight and closes the connection. It takes at most one
// attempt to connect (1 s) if one is still under way.
func (b *Broker) Close() error {
	b.end(brokerapi.ErrClosed)
	<-b.gone
	if last := b.attempt.Load(); last != nil {
		last.end()
	}
	return b.monitor.Close()
}

// connected returns the connection and its life, waiting for the very first attempt. The
// error of a connection that is down names flag and cause.
func (b *Broker) connected(ctx context.Context) (*client.Conn, context.Context, error) {
	select {
	case <-b.tried.Done():
	case <-ctx.Done():
		if why := hosts.Unknown(b.host); why != nil {
			return nil, nil, brokerapi.Errorf(brokerapi.ErrUnseen, "%s: %v", b.at, why)
		}
		return nil, nil, fmt.Errorf("%s: no answer yet: %w", b.at, ctx.Err())
	}
	if b.life.Err() != nil {
		return nil, nil, brokerapi.ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link != nil {
		return b.conn, b.link, nil
	}
	return nil, nil, fmt.Errorf("%s: %w", b.at, cmp.Or(b.lastErr, errBroke))
}
