package danube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Broker is one life of a broker process. Safe for concurrent use.
type Broker struct {
	id      string
	cfg     Config
	raft    bool
	log     *slog.Logger
	started time.Time

	client, admin, metrics *port
	disasters              *disasters

	// Set while it starts, before what uses them is served.
	store  store
	cache  *cache
	topics *topics
	leads  atomic.Bool

	joined      chan struct{} // closed: the metadata is there
	up          chan struct{} // closed: everything is served
	done        chan struct{} // closed: it has ended, by Close or by an error
	failed      error         // valid after done
	deadRead    atomic.Bool   // a watch has died
	deadRenewal atomic.Bool   // that of the registration
	counts      atomic.Pointer[map[string]int]

	cancel context.CancelFunc
	all    sync.WaitGroup
	ended  sync.Once
}

// Etcd starts a broker of release 0.7 and waits until it is up. Close it.
func Etcd(ctx context.Context, cfg Config) (*Broker, error) { return start(ctx, cfg, LaunchEtcd) }

// Raft starts a broker of release 0.8 or later and waits until it is up. Close it.
func Raft(ctx context.Context, cfg Config) (*Broker, error) { return start(ctx, cfg, LaunchRaft) }

func start(ctx context.Context, cfg Config, launch func(Config) (*Broker, error)) (*Broker, error) {
	b, err := launch(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-b.up:
		return b, nil
	case <-b.done:
		return nil, errors.Join(b.failed, b.Close())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("start broker: %w", ctx.Err()), b.Close())
	}
}

// LaunchEtcd is [Etcd] that does not wait.
func LaunchEtcd(cfg Config) (*Broker, error) {
	return launch(cfg, false, func(Config) (string, error) { return strconv.FormatUint(rand.Uint64(), 10), nil })
}

// LaunchRaft is [Raft] that does not wait.
func LaunchRaft(cfg Config) (*Broker, error) {
	return launch(cfg, true, func(c Config) (string, error) { return nodeID(c.DataDir) })
}

func launch(cfg Config, raft bool, identify func(Config) (string, error)) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	id, err := identify(cfg)
	if err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	b := &Broker{
		id: id, cfg: cfg, raft: raft, started: time.Now(), log: cfg.Log.With("broker", id),
		disasters: &disasters{file: filepath.Join(cfg.DataDir, DisasterFile), broker: id, stderr: cfg.Stderr},
		joined:    make(chan struct{}), up: make(chan struct{}), done: make(chan struct{}),
	}
	for _, p := range []struct {
		is   **port
		addr string
	}{{&b.client, cfg.ClientAddr}, {&b.admin, cfg.AdminAddr}, {&b.metrics, cfg.MetricsAddr}} {
		if *p.is, err = newPort(p.addr); err != nil {
			return nil, errors.Join(fmt.Errorf("start broker: %w", err), b.client.close(), b.admin.close(), b.metrics.close())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.all.Go(func() {
		run := b.runEtcd
		if raft {
			run = b.runRaft
		}
		err := run(ctx)
		if err != nil {
			b.log.Error("cannot start", "err", err)
			b.failed = err
			close(b.done)
			return
		}
		close(b.up)
		<-ctx.Done()
		close(b.done)
	})
	return b, nil
}

// runEtcd brings the broker up, in its order. It returns when all is served.
func (b *Broker) runEtcd(ctx context.Context) error {
	b.serveMetrics()
	s, err := openEtcd(b.cfg.Etcd, b.cfg.Resumes)
	if err != nil {
		return err
	}
	if err := b.readMetadata(ctx, s); err != nil {
		return err
	}
	if !pause(ctx, b.cfg.Times.Register) {
		return ctx.Err()
	}
	if err := b.registerWithEtcd(ctx); err != nil {
		return err
	}
	if err := b.writeBoot(ctx, brokerState{modeActive, "boot"}); err != nil {
		return err
	}
	if err := b.serveClients(); err != nil {
		return err
	}
	if err := b.takePart(ctx, 0); err != nil {
		return err
	}
	return b.serveAdmin()
}

// readMetadata opens the store: from here on it is closed with the broker.
func (b *Broker) readMetadata(ctx context.Context, s store) (err error) {
	b.store = s
	var watches []<-chan event
	if b.cache, watches, err = fillCache(ctx, s); err != nil {
		return err
	}
	for _, w := range watches {
		b.all.Go(func() {
			b.cache.follow(w)
			b.deadRead.Store(true)
		})
	}
	b.topics = &topics{
		id: b.id, dir: filepath.Join(b.cfg.DataDir, "wal"), objects: b.cfg.Objects, metaRoot: b.cfg.StorageRoot,
		limit: b.cfg.SegmentBytes, store: s, cache: b.cache, disasters: b.disasters, log: b.log, loaded: map[string]*topic{},
	}
	close(b.joined)
	return nil
}

// writeBoot writes what every start writes, whatever was there.
func (b *Broker) writeBoot(ctx context.Context, s brokerState) error {
	if err := b.store.put(ctx, stateKey(b.id), encode(s)); err != nil {
		return err
	}
	for _, ns := range append([]string{"default", "system"}, b.cfg.Namespaces...) {
		key := namespacesPrefix + ns + "/policy"
		if _, found, err := b.store.get(ctx, key); err != nil {
			return err
		} else if !found {
			if err := b.store.put(ctx, key, []byte("{}")); err != nil {
				return err
			}
		}
	}
	return nil
}

// takePart starts what the broker does as one of the cluster: leading it if it is
// elected, reporting its load, and following its own assignments, after the revision or from now on.
func (b *Broker) takePart(ctx context.Context, after int64) error {
	lead, err := b.newLeader(ctx)
	if err != nil {
		return err
	}
	b.all.Go(func() { b.electForever(ctx) })
	b.all.Go(func() { lead.run(ctx) })
	b.all.Go(func() { b.reportForever(ctx) })
	mine, err := b.store.watch(ctx, assignmentsPrefix(b.id), after)
	if err != nil {
		return err
	}
	b.all.Go(func() { b.followAssignments(ctx, mine) })
	return nil
}

// Close ends the broker as a kill does: nothing is taken back or told. What runs in it is
// gone when Close returns.
func (b *Broker) Close() (err error) {
	b.ended.Do(func() {
		b.cancel()
		err = errors.Join(b.client.close(), b.admin.close(), b.metrics.close())
		<-b.done
		if b.store != nil {
			err = errors.Join(err, b.store.close())
		}
		b.all.Wait()
		if b.topics != nil {
			b.topics.closeAll()
		}
	})
	return err
}

// ID is the broker's id: of this start, or with Raft for life.
func (b *Broker) ID() string { return b.id }

// Started is when this life began.
func (b *Broker) Started() time.Time { return b.started }

// Up is closed when everything is served.
func (b *Broker) Up() <-chan struct{} { return b.up }

// Done is closed when the broker has ended. Err then says why, nil if by Close.
func (b *Broker) Done() <-chan struct{} { return b.done }

// Err is why the broker ended by itself. Valid after Done.
func (b *Broker) Err() error { return b.failed }

// ClientAddr, AdminAddr and MetricsAddr are where it listens, host:port.
func (b *Broker) ClientAddr() string { return b.client.addr }

// AdminAddr is where the admin API listens.
func (b *Broker) AdminAddr() string { return b.admin.addr }

// MetricsAddr is where Prometheus asks.
func (b *Broker) MetricsAddr() string { return b.metrics.addr }

// Disasters are those of this life; those of all lives are in the data directory.
func (b *Broker) Disasters() []Disaster { return b.disasters.list() }

// Loaded are the topics that are served now. Empty until the broker has its metadata.
func (b *Broker) Loaded() []string {
	select {
	case <-b.joined:
		return b.topics.names()
	default:
		return nil
	}
}

// number is an id as the values in the metadata have it.
func number(id string) uint64 {
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return 0 // ids of this package parse; others are not numbers to anybody
	}
	return n
}

// port is an address that may not be open yet.
type port struct {
	addr string

	mu       sync.Mutex
	listener net.Listener
	stop     func() // of what is served
	closed   bool
}

func newPort(addr string) (*port, error) {
	host, number, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen at %q: %w", addr, err)
	}
	p := &port{addr: addr}
	if number == "0" {
		if p.listener, err = net.Listen("tcp", addr); err != nil {
			return nil, fmt.Errorf("listen at %q: %w", addr, err)
		}
		p.addr = net.JoinHostPort(host, strconv.Itoa(p.listener.Addr().(*net.TCPAddr).Port))
	}
	return p, nil
}

// open listens and serves in a goroutine of all. stop makes serve return.
func (p *port) open(all *sync.WaitGroup, serve func(net.Listener), stop func()) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	if p.listener == nil {
		if p.listener, err = net.Listen("tcp", p.addr); err != nil {
			return fmt.Errorf("listen at %q: %w", p.addr, err)
		}
	}
	p.stop = stop
	l := p.listener
	all.Go(func() { serve(l) })
	return nil
}

func (p *port) close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	stop, listener := p.stop, p.listener
	p.closed, p.stop, p.listener = true, nil, nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	} else if listener != nil {
		return listener.Close()
	}
	return nil
}
