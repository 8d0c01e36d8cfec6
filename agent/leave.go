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
	proven := a.child != nil && !stay
	if proven {
		if err := a.endChild(ctx); err != nil {
			return a.leaveServing(v.Grant, err)
		}
	} else if a.local == nil && (holding && !stay || fenced && !holding || due) {
		// Also where it was fenced before: a guard that stays would keep the broker down.
		var err error
		if proven, err = a.fenceToLeave(ctx, due); err != nil {
			return a.leaveServing(v.Grant, err)
		}
	}
	if proven && a.guard != nil {
		a.guard.Disarm()
		a.dismissGuard()
	}
	if !holding || stay || a.local != nil {
		a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, v.Grant.Revision) })
		a.log.Info("holdfast ends", "left_registered", holding && a.local == nil)
		a.event(Event{Kind: "agent", To: "stopped", Epoch: v.Grant.Epoch})
		return nil
	}
	ctx, cancel = context.WithTimeout(a.life0, releaseTimeout)
	defer cancel()
	if err := a.keeper.Release(ctx); err != nil {
		a.log.Warn("lease not revoked: it runs out by itself", "lease", fmt.Sprintf("%x", v.Grant.LeaseID), "err", err)
		return nil
	}
	a.remember(func(m *memory) { m.LeaseID, m.Released = 0, true })
	a.log.Info(a.shadow.saying("holdfast ends: registration given up; with other brokers alive this one comes back drained (--leave-registered avoids that)"))
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

var errRunsUnregistered = errors.New("it was quiesced, but " + mustStopWhy)

// fenceToLeave returns an error when the broker may serve, whatever --fence says: a
// registration is not given up then. A broker that does not answer and of which no
// process is seen is taken for ended; that is no proof, and does not let the guard go.
// due: it may not serve any more, so it is stopped if it cannot be quiesced.
func (a *agent) fenceToLeave(ctx context.Context, due bool) (proven bool, err error) {
	// In a pod we are ended right after the broker: its process tells of that at once, its
	// health only after several failures. Whoever answers now is the next process, or was
	// never that one.
	if a.brokerHasLeft(ctx) {
		return true, nil
	}
	proven, err = a.quiesceToLeave(ctx)
	if err != nil && a.brokerHasLeft(ctx) { // both were stopped at once, and it was faster
		return true, nil
	}
	if err == nil && a.can.MustStop && a.health.Snapshot().At(time.Now()) != probes.Down {
		proven, err, due = false, errRunsUnregistered, true
	}
	if err == nil || !due || a.stopper == nil || !a.fences(recovery.StepStop) {
		return proven, err
	}
	a.recognizeNow(ctx)
	how, stopErr := a.stopper.Stop(ctx)
	if stopErr != nil {
		return false, errors.Join(err, stopErr)
	}
	a.log.Warn("broker stopped before its registration is given up", "by", how, "why", err)
	a.event(Event{Kind: "fence", To: "stopped", Epoch: a.memory.Epoch, Detail: "process stopped: " + how})
	return true, nil
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

func (a *agent) quiesceToLeave(ctx context.Context) (proven bool, err error) {
	if a.health.Snapshot().At(time.Now()) == probes.Down {
		runs := a.brokerTarget().Pid != 0
		ended := a.servesNothing() || !runs && a.processEnded()
		if !ended && runs {
			return false, errors.New("the broker runs and does not answer")
		}
		return ended, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
	defer cancel()
	n, err := a.reconciler.Fence(ctx)
	if err != nil {
		return false, fmt.Errorf("%s quiesced: %w", plural(n, "topic"), err)
	}
	return true, nil
}

// leaveServing ends without giving anything up: nobody may take over from a broker
// that may still serve.
func (a *agent) leaveServing(g lease.Grant, err error) error {
	a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, g.Revision) })
	a.event(Event{Kind: "agent", To: "stopped", Reason: "not_quiesced", Epoch: g.Epoch, Detail: err.Error()})
	if g.LeaseID == 0 {
		return &ExitError{ExitFailed, fmt.Errorf("the broker may serve without a registration: %w: stop the broker", err)}
	}
	return &ExitError{ExitFailed, fmt.Errorf("the registration is left to run out by itself, because the broker may still serve: %w: stop the broker", err)}
}
