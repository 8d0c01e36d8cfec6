package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// stopTimeout bounds the orderly end: fence, revoke, last words.
const stopTimeout = 8 * time.Second

// releaseTimeout bounds the revocation. Without it the lease runs out by itself; but a
// broker that is started while we wait for an etcd that is away has nobody to fence it.
const releaseTimeout = 2 * time.Second

// leave ends in the order that safety asks for: clients away (the probes have stopped
// answering), nothing served, the guard at rest, and only then the registration given
// up. A broker that we started is stopped. For any other the end of a sidecar is no
// reason to stop it if it cannot be quiesced: its registration is left to run out, and
// the guard stays armed. With --leave-registered the broker goes on for as long as the
// lease lasts. A fence ladder that has begun is climbed to its end either way, and a
// broker that may not run without its registration is stopped before that is given up.
// Without an etcd nothing is given up, so a broker that is not our child goes on: nobody
// takes over because this sidecar ends, and how long the broker is away from now on must be
// seen later.
func (a *agent) leave() error {
	ctx, cancel := context.WithTimeout(a.life0, stopTimeout)
	defer cancel()
	defer a.shadow.tell(true)
	v := a.keeper.View()
	holding := v.Grant.LeaseID != 0 && v.Validity.Known()
	stay := a.cfg.LeaveRegistered && !a.childEnded.Load()
	fenced := a.mustFence()
	due := fenced && !a.fencing.reached.Proven()
	if holding && a.memory.Joined && !due && a.child == nil {
		return a.leaveJoined(v.Grant)
	}
	var left recovery.Fence
	if a.child != nil && !stay {
		if err := a.endChild(ctx); err != nil {
			return a.leaveServing(v.Grant, err)
		}
		left = recovery.FenceGone
	} else if a.local == nil && (holding && !stay || fenced && !holding || due) {
		// Also where it was fenced before: a guard that stays would keep the broker down.
		var err error
		if left, err = a.fenceToLeave(ctx, due); err != nil {
			return a.leaveServing(v.Grant, err)
		}
	}
	if left.Proven() && a.guard != nil {
		a.guard.Disarm()
		a.dismissGuard()
	}
	if !holding || stay || a.local != nil {
		a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, v.Grant.Revision) })
		a.log.Info(a.shadow.saying("holdfast ends"+a.leftBehind(left)), "left_registered", holding && a.local == nil)
		a.event(Event{Kind: "agent", To: "stopped", Epoch: v.Grant.Epoch})
		return nil
	}
	ctx, cancel = context.WithTimeout(a.life0, releaseTimeout)
	defer cancel()
	if err := a.keeper.Release(ctx); err != nil {
		a.log.Warn("holdfast ends: the lease is not revoked, and runs out by itself"+a.leftBehind(left), "lease", fmt.Sprintf("%x", v.Grant.LeaseID), "err", err)
		return nil
	}
	a.remember(func(m *memory) { m.LeaseID, m.Released = 0, true })
	a.log.Info(a.shadow.saying("holdfast ends: registration given up; with other brokers alive this one comes back drained (--leave-registered avoids that)" + a.leftBehind(left)))
	a.event(Event{Kind: "agent", To: "stopped", Reason: "released", Epoch: v.Grant.Epoch})
	return nil
}

// leaveJoined leaves the broker as it would be without us: under its own registration,
// which it renews itself.
func (a *agent) leaveJoined(g lease.Grant) error {
	if a.guard != nil {
		a.guard.Disarm()
		a.dismissGuard()
	}
	a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, g.Revision) })
	a.log.Info(a.shadow.saying("holdfast ends: the broker goes on under its own registration"))
	a.event(Event{Kind: "agent", To: "stopped", Epoch: g.Epoch})
	return nil
}

// leftBehind is the end of the last line: what acts on the broker, or keeps clients from
// it, until a sidecar runs again.
func (a *agent) leftBehind(left recovery.Fence) string {
	const next = "start 'holdfast run' again"
	if stands := a.guardLeft(); stands != "" {
		return "; " + next + ": " + stands
	}
	if left == recovery.FenceQuiesced {
		return "; its topics stay quiesced until a sidecar runs here: " + next
	}
	return ""
}

// guardLeft is the guard that goes on without us; empty: none does.
func (a *agent) guardLeft() string {
	if p, ok := a.guard.(guardProcess); ok {
		if s, stands := p.Standing(); stands && !s.At.IsZero() {
			return s.String() + "; " + s.Hint()
		}
	}
	return ""
}

var errRunsUnregistered = errors.New("it was quiesced, but " + mustStopWhy)

// fenceToLeave returns an error when the broker may serve, whatever --fence says: a
// registration is not given up then. A broker that does not answer and of which no
// process is seen is taken for ended; that is no proof, and does not let the guard go.
// due: it may not serve any more, so it is stopped if it cannot be quiesced.
// The result is proven, or empty.
func (a *agent) fenceToLeave(ctx context.Context, due bool) (left recovery.Fence, err error) {
	// In a pod we are ended right after the broker: its process tells of that at once, its
	// health only after several failures. Whoever answers now is the next process, or was
	// never that one.
	if a.brokerHasLeft(ctx) {
		return recovery.FenceGone, nil
	}
	left, err = a.quiesceToLeave(ctx)
	if err != nil && a.brokerHasLeft(ctx) { // both were stopped at once, and it was faster
		return recovery.FenceGone, nil
	}
	if err == nil && a.can.MustStop && a.health.Snapshot().At(time.Now()) != probes.Down {
		left, err, due = "", errRunsUnregistered, true
	}
	if err == nil || !due || a.stopper == nil || !a.fences(recovery.StepStop) {
		return left, err
	}
	a.recognizeNow(ctx)
	how, stopErr := a.stopper.Stop(ctx)
	if stopErr != nil {
		return "", errors.Join(err, stopErr)
	}
	a.log.Warn("broker stopped before its registration is given up", "by", how, "why", err)
	a.event(Event{Kind: "fence", To: "stopped", Epoch: a.memory.Epoch, Detail: "process stopped: " + how})
	return recovery.FenceGone, nil
}

// brokerHasLeft reports whether the broker's process has ended and no other one is there.
// Nobody watches processes any more: what was seen last is looked at again.
func (a *agent) brokerHasLeft(ctx context.Context) bool {
	if t := a.brokerTarget(); t.Pid != 0 && !t.Gone() || !a.brokerGone() {
		return false
	}
	if l, ok := a.stopper.(looker); ok {
		if _, runs := l.Target(); runs {
			return false
		}
	}
	return !a.brokerAnswers(ctx)
}

func (a *agent) brokerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(a.settings().HealthTimeout, stopTimeout/8))
	defer cancel()
	return a.broker.Health(ctx) == nil
}

func (a *agent) quiesceToLeave(ctx context.Context) (left recovery.Fence, err error) {
	if a.health.Snapshot().At(time.Now()) == probes.Down {
		switch reached, runs := a.fencing.reached, a.brokerTarget().Pid != 0; {
		case provesIdle(reached, runs):
			return reached, nil
		case runs:
			return "", errors.New("the broker runs and does not answer")
		case a.processEnded():
			return recovery.FenceGone, nil
		}
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
	defer cancel()
	n, err := a.reconciler.Fence(ctx)
	if err != nil {
		return "", fmt.Errorf("%s quiesced: %w", plural(n, "topic"), err)
	}
	return recovery.FenceQuiesced, nil
}

// provesIdle: what a ladder has reached for a process that has ended says nothing of another
// one that runs. It has not answered yet, and may serve already.
func provesIdle(reached recovery.Fence, runs bool) bool {
	return reached.Proven() && !(reached == recovery.FenceGone && runs)
}

// leaveServing ends without giving anything up: nobody may take over from a broker
// that may still serve.
func (a *agent) leaveServing(g lease.Grant, err error) error {
	a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, g.Revision) })
	a.event(Event{Kind: "agent", To: "stopped", Reason: "not_quiesced", Epoch: g.Epoch, Detail: err.Error()})
	next := "stop the broker"
	if stands := a.guardLeft(); stands != "" {
		next += ", or start 'holdfast run' again: " + stands
	}
	if g.LeaseID == 0 {
		return &ExitError{ExitFailed, fmt.Errorf("the broker may serve without a registration: %w: %s", err, next)}
	}
	return &ExitError{ExitFailed, fmt.Errorf("the registration is left to run out by itself, because the broker may still serve: %w: %s", err, next)}
}
