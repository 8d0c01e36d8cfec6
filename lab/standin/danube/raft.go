package danube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	nodesPrefix = "/cluster/nodes/" // who ever joined: the voters
	nodeIDFile  = "node_id"
)

// nodeID is the id in the data directory, made at the first start.
func nodeID(dataDir string) (string, error) {
	path := filepath.Join(dataDir, nodeIDFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		id := strconv.FormatUint(rand.Uint64(), 10)
		return id, os.WriteFile(path, []byte(id), 0o644)
	}
	if err != nil {
		return "", fmt.Errorf("read the node id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if _, err := strconv.ParseUint(id, 10, 64); err != nil {
		return "", fmt.Errorf("read the node id in %s: %w", path, err)
	}
	return id, nil
}

// runRaft brings the broker up, in its order: the admin port is open before there is
// anything to tell.
func (b *Broker) runRaft(ctx context.Context) error {
	b.serveMetrics()
	s, err := openMetadata(b.cfg.Metadata)
	if err != nil {
		return err
	}
	b.store = s
	if err := b.serveAdmin(); err != nil {
		return err
	}
	if !pause(ctx, b.cfg.JoinDelay) {
		return ctx.Err()
	}
	for {
		if _, _, err := s.list(ctx, nodesPrefix); err == nil {
			break
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	if err := s.put(ctx, nodesPrefix+b.id, []byte("null")); err != nil {
		return err
	}
	if err := b.readMetadata(ctx, s); err != nil {
		return err
	}
	if !pause(ctx, b.cfg.Times.Register) {
		return ctx.Err()
	}
	if _, err := s.putTTL(ctx, registerKey(b.id), b.registration(), b.cfg.Times.TTL); err != nil {
		return err
	}
	b.all.Go(func() { b.registerForever(ctx) })
	boot := brokerState{modeActive, "boot"}
	switch {
	case b.cfg.Join:
		boot = brokerState{modeDrained, "join"}
	case b.declaredDead(ctx):
		boot = brokerState{modeDrained, "stale_restart"}
	}
	if err := b.writeBoot(ctx, boot); err != nil {
		return err
	}
	after, err := b.reconcile(ctx)
	if err != nil {
		return err
	}
	if err := b.serveClients(); err != nil {
		return err
	}
	return b.takePart(ctx, after)
}

// declaredDead is the broker's own check whether it was away past the TTL. It looks for
// its registration, which it has just written, so it never finds out.
func (b *Broker) declaredDead(ctx context.Context) bool {
	_, found, err := b.store.get(ctx, registerKey(b.id))
	return err == nil && !found
}

// reconcile loads what was assigned before the start, which releases with etcd do not.
func (b *Broker) reconcile(ctx context.Context) (revision int64, err error) {
	keys, revision, err := b.store.list(ctx, assignmentsPrefix(b.id))
	if err != nil {
		return 0, err
	}
	for key := range keys {
		if _, topic, ok := splitAssignment(key); ok {
			if err := b.topics.load(ctx, topic); err != nil {
				b.log.Error("topic not loaded", "err", err)
			}
		}
	}
	return revision, nil
}

// registerForever writes the registration again and again. It goes on after errors, and
// if they lasted longer than the TTL it comes back drained.
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
		case err != nil && ctx.Err() == nil:
			if failing.IsZero() {
				failing = time.Now()
			}
			b.log.Error("registration not renewed", "err", err)
		case err == nil && !failing.IsZero() && time.Since(failing) > b.cfg.Times.TTL:
			failing = time.Time{}
			state := brokerState{modeDrained, "registration_expired"}
			if err := b.store.put(ctx, stateKey(b.id), encode(state)); err != nil {
				b.log.Error("not drained after the registration had expired", "err", err)
			}
		case err == nil:
			failing = time.Time{}
		}
	}
}
