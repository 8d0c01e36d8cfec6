package registration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
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

const (
	// presenceID stands for the lease: there is one, or none.
	presenceID = 1
	// unwatchedMost is how late the loop may be and still have watched.
	unwatchedMost = 5 * time.Second
)

// None is the lease.Registrar and lease.Line of a sidecar without an etcd.
type None struct {
	*Registrar // the facts, and what they mean
	clocks     func() lease.Clocks
	probe      func(context.Context) (brokerapi.Report, error)
	would      func(act, about string) // counts what is only supposed; nil: it is done

	mu       sync.Mutex
	until    lease.Instant // from then on the broker was away for too long
	watched  time.Duration // when the loop last ran, by the clock that stands while the host is suspended
	gap      bool          // it did not run all the time since the last renewal; so it is at first
	lost     bool          // so the last renewal found
	revision int64         // of the last renewal
}

// NewNone is one whose registrar is to come.
func NewNone(clocks func() lease.Clocks, probe func(context.Context) (brokerapi.Report, error), would func(act, about string)) *None {
	return &None{clocks: clocks, probe: probe, would: would, gap: true}
}

// Watch says that the loop runs, and reports whether the broker was away for too long by now.
func (p *None) Watch() (over bool) {
	now := p.clocks()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap = p.gap || now.Mono-p.watched > unwatchedMost
	p.watched = now.Mono
	return !p.gap && now.Boot > p.until
}

// Well says that the broker was well at that moment.
func (p *None) Well(at lease.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until, p.gap, p.lost = at.Add(p.Config.LeaseTTL), false, false
}

// away reports whether the broker was away for longer than the TTL.
func (p *None) away(ctx context.Context, now Life) (bool, error) {
	m, read := now.Past, p.clocks()
	p.mu.Lock()
	gap, over := p.gap || read.Mono-p.watched > unwatchedMost, read.Boot > p.until
	p.mu.Unlock()
	if m.LeaseID == 0 || !gap {
		return m.LeaseID == 0 || over, nil
	}
	switch who, err := p.probe(ctx); { // the loop may know only who answered before
	case err != nil:
		return false, fmt.Errorf("%w: which process of the broker answers is not known: %w", lease.ErrDeferred, err)
	case who.Instance != now.Instance:
		return false, fmt.Errorf("%w: another process of the broker answers", lease.ErrDeferred)
	case who.Instance == m.Instance:
		return false, nil
	}
	started := now.Boot.BrokerStartedAt
	setBack := read.Wall.Before(m.Deadline.Add(-p.Config.LeaseTTL))
	return started.IsZero() || started.After(m.Deadline) || setBack, nil
}

// company asks the broker whether others of its cluster are active. It is not guessed.
func (p *None) company(ctx context.Context) (bool, error) {
	said, err := p.probe(ctx)
	if err == nil && said.Others == nil {
		err = errors.New("the broker does not tell")
	}
	if err != nil {
		return false, fmt.Errorf("%w: whether other brokers are active is not known: %w", lease.ErrDeferred, err)
	}
	return *said.Others > 0, nil
}

// shown is what is known of the broker, in the form of what an etcd would show.
func shown(now Life, away bool) cluster.Snapshot {
	m := now.Past
	seen := cluster.Snapshot{Process: cluster.Process{BrokerID: now.Name, StateRevision: now.ModeRev}, Name: now.Name, Revision: max(m.highest(), now.ModeRev)}
	if had := now.had(); had.Mode.Known() {
		seen.State = &cluster.State{Mode: string(had.Mode), Reason: string(had.Reason), By: had.By}
	}
	if m.FirstBootDone {
		seen.Member = &cluster.Member{Incarnation: m.Incarnation, ModRevision: m.Epoch}
		if !away {
			seen.Registration = &cluster.Registration{BrokerID: seen.BrokerID, Value: now.Value, LeaseID: presenceID, CreateRevision: m.Epoch}
		}
	}
	return seen
}

// Establish implements lease.Registrar: it looks, decides, and has the loop take that up. What an operator
// changes meanwhile is looked at anew.
func (p *None) Establish(ctx context.Context, _ int64, _ bool) (lease.Grant, error) {
	for range Tries {
		if g, err := p.once(ctx); !errors.Is(err, cluster.ErrChanged) {
			return g, err
		}
	}
	return lease.Grant{}, fmt.Errorf("%w: the mode is being changed", lease.ErrDeferred)
}

func (p *None) once(ctx context.Context) (g lease.Grant, err error) {
	now, sent := p.Life(), p.Clock()
	away, err := p.away(ctx, now)
	if err != nil {
		return g, err
	}
	seen, others := shown(now, away), false
	if seen.Registration == nil {
		if others, err = p.company(ctx); err != nil {
			return g, err
		}
	}
	now.others, now.PauseEnds = &others, p.Life().PauseEnds
	out := p.decide(seen, now)
	if err := p.deferred(&out, now); err != nil {
		return g, err
	}
	if err := outdated(out, p.Life()); err != nil {
		return g, err
	}
	if out.Decision.Step == recovery.Shutdown {
		if p.would != nil {
			return g, fmt.Errorf("%w: %s", ErrShadowShutdown, out.Decision.Detail)
		}
		return g, &SessionEnd{recovery.ReasonSessionExpired, out.Decision.Detail}
	}
	g = lease.Grant{LeaseID: presenceID, SentAt: sent, TTL: p.Config.LeaseTTL, Epoch: now.Past.Epoch, Revision: seen.Revision + 1, ID: seen.BrokerID}
	if out.Decision.Step == recovery.Register || g.Epoch == 0 {
		g.Epoch = g.Revision
		p.supposes(ActRegister, seen.BrokerID)
	}
	if out.Decision.Write {
		out.StateRevision = g.Revision
		p.supposes(ActSetMode, string(out.Decision.Mode.Mode)+" ("+string(out.Decision.Mode.Reason)+")")
	}
	out.Grant, out.Value = g, now.Value
	if err := p.Deliver(ctx, out); err != nil {
		return g, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision = g.Revision
	return g, nil
}

func (p *None) supposes(act, about string) {
	if p.would != nil {
		p.would(act, about)
	}
}

// Prove implements lease.Registrar.
func (p *None) Prove(context.Context, lease.Grant) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return 0, lease.ErrLost
	}
	return 0, nil
}

// KeepAlive implements lease.Line. The Keeper calls it while the broker is well.
func (p *None) KeepAlive(ctx context.Context, _ int64, _ bool) (lease.Renewal, error) {
	sent := p.Clock()
	away, err := p.away(ctx, p.Life())
	switch {
	case err != nil:
		return lease.Renewal{}, err
	case away:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.lost = true
		return lease.Renewal{}, lease.ErrLost
	}
	p.Well(sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision++
	return lease.Renewal{Granted: p.Config.LeaseTTL, Revision: p.revision}, nil
}

// AwaitReconnect implements lease.Line: no connection is ever lost.
func (p *None) AwaitReconnect(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Revoke implements lease.Line.
func (p *None) Revoke(context.Context, int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = 0
	return nil
}
