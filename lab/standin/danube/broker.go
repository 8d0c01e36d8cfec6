package danube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Broker is one life of a broker process. It ends with the process.
type Broker struct {
	id      string
	cfg     Config
	log     *slog.Logger
	started time.Time

	disasters disasters

	// Set while it starts, before joined is closed.
	store  *store
	cache  *cache
	topics *topics

	joined   chan struct{} // closed: the metadata is there
	leads    atomic.Bool
	deadRead atomic.Bool // a watch has died
}

// Start starts a broker and returns when everything is served. What it does goes on until ctx ends.
func Start(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	id := strconv.FormatUint(rand.Uint64(), 10)
	var err error
	if cfg.Raft {
		if id, err = nodeID(cfg.DataDir, id); err != nil {
			return err
		}
	}
	b := &Broker{id: id, cfg: cfg, started: time.Now(), log: log.With("broker", id), joined: make(chan struct{}),
		disasters: disasters{file: filepath.Join(cfg.DataDir, DisasterFile), broker: id}}
	if err := b.serveMetrics(); err != nil {
		return err
	}
	if b.store, err = openStore(cfg.Etcd, cfg.Raft); err != nil {
		return err
	}
	if cfg.Raft {
		return b.runRaft(ctx)
	}
	return b.runEtcd(ctx)
}

// runEtcd brings a broker of release 0.7 up, in its order.
func (b *Broker) runEtcd(ctx context.Context) error {
	if err := b.readMetadata(ctx); err != nil {
		return err
	}
	lease, err := b.store.putTTL(ctx, registerKey(b.id), b.registration(), b.cfg.Times.TTL)
	if err != nil {
		return err
	}
	go b.renewForever(ctx, "registration", lease, b.cfg.Times.Renew)
	if err := b.writeBoot(ctx); err != nil {
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

// runRaft brings a later one up, in its order: the admin port is open before there is
// anything to tell, and what was assigned before the start is loaded.
func (b *Broker) runRaft(ctx context.Context) error {
	if err := b.serveAdmin(); err != nil {
		return err
	}
	for b.store.put(ctx, nodesPrefix+b.id, []byte("null")) != nil {
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	if err := b.readMetadata(ctx); err != nil {
		return err
	}
	if _, err := b.store.putTTL(ctx, registerKey(b.id), b.registration(), b.cfg.Times.TTL); err != nil {
		return err
	}
	go b.registerForever(ctx)
	if err := b.writeBoot(ctx); err != nil {
		return err
	}
	keys, revision, err := b.store.list(ctx, assignmentsPrefix(b.id))
	if err != nil {
		return err
	}
	for key := range keys {
		if _, topic, ok := splitAssignment(key); ok {
			if err := b.topics.load(ctx, topic); err != nil {
				b.log.Error("topic not loaded", "err", err)
			}
		}
	}
	if err := b.serveClients(); err != nil {
		return err
	}
	return b.takePart(ctx, revision)
}

// readMetadata fills the cache and follows it.
func (b *Broker) readMetadata(ctx context.Context) (err error) {
	var watches []<-chan event
	if b.cache, watches, err = fillCache(ctx, b.store); err != nil {
		return err
	}
	for _, w := range watches {
		go func() {
			b.cache.follow(w)
			b.deadRead.Store(true)
		}()
	}
	b.topics = &topics{id: b.id, dir: filepath.Join(b.cfg.DataDir, "wal"), objects: b.cfg.Objects,
		store: b.store, disasters: &b.disasters, log: b.log, loaded: map[string]*topic{}}
	close(b.joined)
	return nil
}

// writeBoot writes what every start writes, whatever was there.
func (b *Broker) writeBoot(ctx context.Context) error {
	return b.store.put(ctx, stateKey(b.id), encode(brokerState{modeActive, "boot"}))
}

// takePart starts what the broker does as one of the cluster: leading it if it is
// elected, reporting its load, and following its own assignments, after the revision or from now on.
func (b *Broker) takePart(ctx context.Context, after int64) error {
	lead, err := b.newLeader(ctx)
	if err != nil {
		return err
	}
	mine, err := b.store.watch(ctx, assignmentsPrefix(b.id), after)
	if err != nil {
		return err
	}
	go b.electForever(ctx)
	go lead.run(ctx)
	go b.reportForever(ctx)
	go b.followAssignments(ctx, mine)
	return nil
}

func (b *Broker) registration() []byte {
	client := "http://" + b.cfg.ClientAddr
	return encode(registration{BrokerURL: client, ConnectURL: client, AdminAddr: "http://" + b.cfg.AdminAddr, PromExporter: b.cfg.MetricsAddr})
}

// renewForever keeps a lease alive. With 0.7 the first time that etcd cannot be reached ends that
// for good. A lease that has gone is not noticed.
func (b *Broker) renewForever(ctx context.Context, of string, lease int64, every time.Duration) {
	for {
		if err := b.store.keepAlive(ctx, lease); err != nil && ctx.Err() == nil {
			b.log.Error("lease not renewed", "of", of, "err", err)
			if !b.cfg.Raft {
				return
			}
		}
		if !pause(ctx, every) {
			return
		}
	}
}

// registerForever writes the registration of a broker with Raft again and again. It goes on after
// errors, and if they lasted longer than the TTL it comes back drained.
func (b *Broker) registerForever(ctx context.Context) {
	var failing time.Time
	for {
		wait := b.cfg.Times.Renew
		if !failing.IsZero() {
			wait = min(wait, b.cfg.Times.TTL/32)
		}
		if !pause(ctx, wait) {
			return
		}
		_, err := b.store.putTTL(ctx, registerKey(b.id), b.registration(), b.cfg.Times.TTL)
		switch {
		case err != nil && failing.IsZero():
			failing = time.Now()
		case err == nil && !failing.IsZero() && time.Since(failing) > b.cfg.Times.TTL:
			if err := b.store.put(ctx, stateKey(b.id), encode(brokerState{modeDrained, "registration_expired"})); err != nil {
				b.log.Error("not drained after the registration had expired", "err", err)
			}
		}
		if err == nil {
			failing = time.Time{}
		}
	}
}

// reportForever writes what is loaded, at once and then every period, until the broker
// ends: nothing stops it in a broker that nobody takes for alive.
func (b *Broker) reportForever(ctx context.Context) {
	for {
		if err := b.store.put(ctx, loadKey(b.id), encode(loadReport{Topics: b.topics.names()})); err != nil && ctx.Err() == nil {
			b.log.Warn("load not reported", "err", err)
		}
		if !pause(ctx, b.cfg.Times.Report) {
			return
		}
	}
}

// loadedNow are the topics that are served. Empty until the broker has its metadata.
func (b *Broker) loadedNow() []string {
	select {
	case <-b.joined:
		return b.topics.names()
	default:
		return nil
	}
}

// nodeID is the id in the data directory, made at the first start.
func nodeID(dataDir, fresh string) (string, error) {
	path := filepath.Join(dataDir, "node_id")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return fresh, os.WriteFile(path, []byte(fresh), 0o644)
	}
	if err != nil {
		return "", fmt.Errorf("read the node id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// number is an id as the values in the metadata have it.
func number(id string) uint64 {
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return 0 // ids of this package parse; others are not numbers to anybody
	}
	return n
}
