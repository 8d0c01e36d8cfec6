package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// With --registration none there is no etcd. What is decided about the broker rests on how long
// it was away, on the mode in the state file, and on whether its own cluster says that others
// are active. The same tables decide.
//
// Away is the time since the last renewal, which is "sent" while the broker is well and tells
// nobody anything. While this sidecar watches it is measured by the boot clock, which nobody can
// set and which counts the host's suspension. After time that nobody watched (no sidecar ran, or
// it was frozen) the same process was never away, and another one was until it started: by the
// wall clock, and what cannot be known is too long.

// unleased is the value of --registration.
const unleased = "none"

const (
	// presenceID stands for the lease: there is one, or none.
	presenceID = 1
	// unwatchedMost is how late the loop may be and still have watched.
	unwatchedMost = 5 * time.Second
)

// presence is the lease.Registrar and lease.Line of a sidecar without an etcd.
type presence struct {
	*agent
	mu      sync.Mutex
	until   lease.Instant // from then on the broker was away for too long
	watched time.Duration // when the loop last ran, by the clock that stands while the host is suspended
	gap     bool          // it did not run all the time since the last renewal; so it is at first
	lost    bool          // so the last renewal found
}

// watch says that the loop runs. A broker that is away for too long is not registered any more.
func (p *presence) watch() {
	if p == nil {
		return
	}
	now := p.world.Clocks()
	p.mu.Lock()
	p.gap = p.gap || now.Mono-p.watched > unwatchedMost
	p.watched = now.Mono
	over := !p.gap && now.Boot > p.until
	p.mu.Unlock()
	if over && p.grant.LeaseID != 0 {
		p.metrics.present.Store(false)
		p.noteLoss(p.lossCause())
		p.remember(func(m *memory) { m.LeaseID = 0 })
	}
}

// well says that the broker was well at that moment.
func (p *presence) well(at lease.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until, p.gap, p.lost = at.Add(p.cfg.LeaseTTL), false, false
}

// away reports whether the broker was away for longer than the TTL.
func (p *presence) away(ctx context.Context, now life) (bool, error) {
	m, read := now.memory, p.world.Clocks()
	p.mu.Lock()
	gap, over := p.gap || read.Mono-p.watched > unwatchedMost, read.Boot > p.until
	p.mu.Unlock()
	if m.LeaseID == 0 || !gap {
		return m.LeaseID == 0 || over, nil
	}
	switch who, err := p.broker.Probe(ctx); { // the loop may know only who answered before
	case err != nil:
		return false, fmt.Errorf("%w: which process of the broker answers is not known: %w", lease.ErrDeferred, err)
	case who.Instance != now.instance:
		return false, fmt.Errorf("%w: another process of the broker answers", lease.ErrDeferred)
	case who.Instance == m.Instance:
		return false, nil
	}
	started := now.boot.BrokerStartedAt
	setBack := read.Wall.Before(m.Deadline.Add(-p.cfg.LeaseTTL))
	return started.IsZero() || started.After(m.Deadline) || setBack, nil
}

// company asks the broker whether others of its cluster are active. It is not guessed.
func (p *presence) company(ctx context.Context) (bool, error) {
	said, err := p.broker.Probe(ctx)
	if err == nil && said.Others == nil {
		err = errors.New("the broker does not tell")
	}
	if err != nil {
		return false, fmt.Errorf("%w: whether other brokers are active is not known: %w", lease.ErrDeferred, err)
	}
	return *said.Others > 0, nil
}

// shown is what is known of the broker, in the form of what an etcd would show.
func (p *presence) shown(now life, away bool) cluster.Snapshot {
	m := now.memory
	seen := cluster.Snapshot{Process: cluster.Process{BrokerID: p.registrar.brokerID, StateRevision: now.modeRev},
		Name: p.registrar.brokerID, Revision: max(m.highest(), now.modeRev)}
	if had := now.had(); had.Mode.Known() {
		seen.State = &cluster.State{Mode: string(had.Mode), Reason: string(had.Reason), By: had.By}
	}
	if m.FirstBootDone {
		seen.Member = &cluster.Member{Incarnation: m.Incarnation, ModRevision: m.Epoch}
		if !away {
			seen.Registration = &cluster.Registration{BrokerID: seen.BrokerID, Value: now.value, LeaseID: presenceID, CreateRevision: m.Epoch}
		}
	}
	return seen
}

// Establish implements lease.Registrar: it looks, decides, and has the loop take that up.
func (p *presence) Establish(ctx context.Context, _ int64, _ bool) (lease.Grant, error) {
	for range tries {
		if g, changed, err := p.once(ctx); !changed {
			return g, err
		}
	}
	return lease.Grant{}, fmt.Errorf("%w: the mode is being changed", lease.ErrDeferred)
}

// once reports whether the mode was changed meanwhile, by an operator: then nothing was taken up.
func (p *presence) once(ctx context.Context) (g lease.Grant, changed bool, err error) {
	r, now, sent := p.registrar, p.registrar.life(), p.clock()
	away, err := p.away(ctx, now)
	if err != nil {
		return g, false, err
	}
	seen, others := p.shown(now, away), false
	if seen.Registration == nil {
		if others, err = p.company(ctx); err != nil {
			return g, false, err
		}
	}
	r.others = &others
	out := r.decide(seen, now)
	if err := cmp.Or(r.deferred(&out, now), r.doubtful(out)); err != nil {
		return g, false, err
	}
	if out.decision.Step == recovery.Shutdown {
		if p.shadow != nil {
			return g, false, fmt.Errorf("%w: %s", errShadowShutdown, out.decision.Detail)
		}
		return g, false, &sessionEnd{recovery.ReasonSessionExpired, out.decision.Detail}
	}
	g = lease.Grant{LeaseID: presenceID, SentAt: sent, TTL: p.cfg.LeaseTTL, Epoch: now.memory.Epoch, Revision: seen.Revision + 1, ID: seen.BrokerID}
	if out.decision.Step == recovery.Register || g.Epoch == 0 {
		g.Epoch = g.Revision
		p.shadow.would(actRegister, seen.BrokerID)
	}
	if out.decision.Write {
		out.stateRevision = g.Revision
		p.shadow.would(actSetMode, string(out.decision.Mode.Mode)+" ("+string(out.decision.Mode.Reason)+")")
	}
	out.grant, out.value = g, now.value
	err = p.await(ctx, func() {
		if changed = p.modeRev != now.modeRev; changed {
			return
		}
		p.well(sent)
		p.metrics.present.Store(true)
		p.takeUp(out)
		who, _ := p.identity.get()
		p.publishLife(who) // we may be asked again at once
	})
	return g, err == nil && changed, err // on an error the loop may still be writing it
}

// Prove implements lease.Registrar.
func (p *presence) Prove(context.Context, lease.Grant) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return 0, lease.ErrLost
	}
	return 0, nil
}

// KeepAlive implements lease.Line. The Keeper calls it while the broker is well.
func (p *presence) KeepAlive(ctx context.Context, _ int64, _ bool) (lease.Renewal, error) {
	sent := p.clock()
	away, err := p.away(ctx, p.registrar.life())
	switch {
	case err != nil:
		return lease.Renewal{}, err
	case away:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.lost = true
		return lease.Renewal{}, lease.ErrLost
	}
	p.well(sent)
	return lease.Renewal{Granted: p.cfg.LeaseTTL, Revision: p.keeper.View().Grant.Revision + 1}, nil
}

// AwaitReconnect implements lease.Line: no connection is ever lost.
func (p *presence) AwaitReconnect(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Revoke implements lease.Line.
func (p *presence) Revoke(context.Context, int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = 0
	return nil
}

// setModeHere takes up an operator's word, which is in the state file when this returns.
func (a *agent) setModeHere(ctx context.Context, m recovery.ModeRecord) error {
	if err := a.await(ctx, func() { a.setMode(m, a.modeRev+1, "by an operator") }); err != nil {
		return err
	}
	if err := a.saveNow(); err != nil {
		return fmt.Errorf("the broker is %s now, but not saved, so a restart of this sidecar would not know: %w: free space on the disk of --state-dir, then repeat", m.Mode, err)
	}
	return nil
}

// keptHere is that the state file keeps it. Earlier versions wrote "none", see formerStore.
const keptHere = "state"

// keptIn notes where the registration is kept from now on; empty: in an etcd. Elsewhere leases
// and revisions mean nothing here.
func (m *memory) keptIn(store string) {
	if m.Store != store && (m.FirstBootDone || m.Revision != 0) {
		m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt, m.Whole, m.Released = 0, 0, 0, 0, 0, false
	}
	m.Store = store
}

// formerStore is the file in which earlier versions kept the mode, and how long the broker was
// away. It may know a newer mode than the state file.
const formerStore = "store.json"

// takeFormerStore takes up what stands in the file of an earlier version, once: Store says then
// that the state file has it. For what cannot be read, or is gone, the broker is drained.
func (m *memory) takeFormerStore(dir string) error {
	var f struct {
		Store struct {
			At      struct{ Now, Wall time.Time } `json:"at"`
			Content struct {
				Keys   []struct{ Key, Value string }
				Leases []struct{ Deadline time.Time }
			} `json:"content"`
		} `json:"store"`
	}
	path := filepath.Join(dir, formerStore)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.Store != unleased:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--state-dir %s: read %s: %s: make it readable for this user", dir, formerStore, config.Cause(err))
	}
	flaw := cmp.Or(err, json.Unmarshal(raw, &f))
	if flaw == nil && len(f.Store.Content.Keys) == 0 {
		flaw = errors.New("it holds nothing")
	}
	if !m.FirstBootDone && (errors.Is(err, fs.ErrNotExist) || err == nil && len(f.Store.Content.Keys) == 0 && json.Valid(raw)) {
		flaw = nil // nothing was ever kept
	}
	registered, keys := false, cluster.NewKeys("")
	for _, kv := range f.Store.Content.Keys {
		if _, ok := keys.ParseRegistration(kv.Key); ok {
			registered = true
		}
		if _, ok := keys.ParseState(kv.Key); ok {
			var s cluster.State
			if s, err = cluster.ParseState([]byte(kv.Value)); err == nil && *modeOf(&s) != m.mode() {
				m.Mode, m.Reason, m.By, m.Decided = s.Mode, s.Reason, s.By, nil
			}
			flaw = errors.Join(flaw, err)
		}
	}
	if flaw != nil {
		m.Distrust = strings.TrimPrefix(fmt.Sprintf("%s; %s cannot be read (%v)", m.Distrust, path, flaw), "; ")
	}
	for _, l := range f.Store.Content.Leases {
		m.was(note.Confirmed{Deadline: f.Store.At.Wall.Add(l.Deadline.Sub(f.Store.At.Now))})
	}
	if !registered {
		m.LeaseID = 0
	}
	return nil
}

// keepPlace settles where what is known of the broker is kept in this life.
func (a *agent) keepPlace() error {
	if !a.cfg.Unleased() {
		a.memory.keptIn("")
		return nil
	}
	a.presence, a.dir.only = &presence{agent: a, gap: true}, true
	former := a.memory.Store == unleased || !a.memory.FirstBootDone
	if former && a.shadow == nil {
		if err := a.memory.takeFormerStore(a.cfg.StateDir); err != nil {
			return err
		}
		a.memory.Store = keptHere
	}
	a.memory.keptIn(keptHere)
	return nil
}
