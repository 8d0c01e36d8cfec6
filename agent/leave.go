package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
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
// A stop that was asked for while the broker was up and active is noted before the lease is
// revoked, once nothing is served for certain (see departure.go). One that was noted before,
// and whose process is just ending, is a success: its end is waited for.
func (a *agent) leave() error {
	ctx, cancel := context.WithTimeout(a.life0, stopTimeout)
	defer cancel()
	v := a.keeper.View()
	unplanned := a.stepDeparture(recovery.DepartEvent{Kind: recovery.StopAsked}).Answer // before the fence, which takes the time that the lease has
	noted := unplanned == nil && a.departing.Planned()
	holding := v.Grant.LeaseID != 0 && v.Validity.Known()
	stay := a.cfg.LeaveRegistered && !a.childEnded.Load()
	fenced := a.mustFence() && !a.fencing.ill // of such a one the end of a sidecar changes nothing
	due := fenced && !a.fencing.reached.Proven()
	var left recovery.Fence
	if a.child != nil && !stay {
		if err := a.endChild(ctx); err != nil {
			return a.leaveServing(v.Grant, err)
		}
		left = recovery.FenceGone
	} else if a.presence == nil && (holding && !stay || fenced && !holding || due) {
		// Also where it was fenced before: a guard that stays would keep the broker down.
		var err error
		if left, err = a.fenceToLeave(ctx, due); err != nil {
			return a.leaveServing(v.Grant, err)
		}
	}
	if left.Proven() && a.guard != nil {
		a.guard.Disarm()
		if p, ok := a.guard.(guardProcess); ok {
			p.Goodbye()
		}
	}
	gives := holding && !stay && a.presence == nil
	if gives && unplanned == nil && !noted {
		unplanned = a.noteStop(left)
	}
	var kept error // why it is not given up
	if gives {
		kept = a.release(unplanned)
	}
	a.remember(func(m *memory) {
		if m.ConfirmedAt = max(m.ConfirmedAt, v.Grant.Revision); gives && kept == nil {
			m.LeaseID, m.Released = 0, true
		}
	})
	back := "; started within " + config.FormatDuration(a.cfg.ReturnWithin) + " (--return-within) this one comes back active"
	said, word := "holdfast ends", control.Event{Kind: "agent", To: "stopped", Epoch: v.Grant.Epoch}
	switch {
	case noted && (!gives || kept == nil):
		said, word.Reason = said+": the broker has left on purpose"+back, "left"
	case !gives:
	case kept != nil:
		const runsOut = ": the lease is not revoked, and runs out by itself"
		if said, word.Detail = said+runsOut, kept.Error()+runsOut; unplanned == nil {
			said += back
		}
	case unplanned == nil:
		said, word.Reason = said+": registration given up"+back, "left"
	default:
		said += ": registration given up; with other brokers alive this one comes back drained (--leave-registered avoids that)"
		if a.mode.Mode == recovery.Drained {
			said = fmt.Sprintf("holdfast ends: registration given up; this one is drained (%s), and comes back so", a.mode.Reason)
		}
		word.Reason, word.Detail = "released", unplanned.Error()
	}
	level := a.log.Info
	if kept != nil {
		level = a.log.Warn
	}
	level(a.shadow.saying(said+a.leftBehind(left)), "left_registered", holding && stay, "detail", word.Detail)
	a.event(word)
	return nil
}

// errRunsOut is why the registration of a broker that writes its own is never revoked. Where the
// brokers' own leader alone sees it go, and nobody leads for a while, it would go unseen, and its
// topics stay with a dead broker. The TTL is longer than that while.
var errRunsOut = errors.New("the broker writes its own registration, and others may not see it go before its time")

// runsOut reports whether the registration only ever goes by its TTL.
func (a *agent) runsOut() bool { return a.traits.Registers && a.mustStop() }

// release gives the registration up. An etcd that did not answer in time a moment ago is not
// waited for as long again.
func (a *agent) release(unplanned error) error {
	bound := releaseTimeout
	if errors.Is(unplanned, context.DeadlineExceeded) {
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(a.life0, bound)
	defer cancel()
	if a.runsOut() {
		return errRunsOut
	}
	return a.keeper.Release(ctx)
}

// noteStop notes a planned stop of a broker that is proven to serve nothing.
func (a *agent) noteStop(left recovery.Fence) error {
	do := a.stepDeparture(recovery.DepartEvent{Kind: recovery.Proved, Proof: left})
	if do.Note {
		ctx, cancel := context.WithTimeout(a.life0, noteTimeout)
		defer cancel()
		do = a.stepDeparture(recovery.DepartEvent{Kind: recovery.NoteCame, Err: a.note(ctx, a.departureNow(do))})
	}
	return do.Answer
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

// endPatience bounds the wait for a process that is ending. With what may have gone before it,
// and with what is asked after it, that is less than stopTimeout.
const endPatience = stopTimeout * 3 / 8

var (
	errRunsUnregistered = errors.New("it was quiesced, but " + mustStopWhy)
	errUnseen           = errors.New("it does not answer, and its process is not seen to have ended: " + mustStopWhy)
)

// fenceToLeave returns an error when the broker may serve, whatever --fence says: a
// registration is not given up then. A broker that does not answer and of which no
// process is seen is taken for ended; that is no proof, and does not let the guard go. One that
// must not run without its registration is not: it is stopped, or its end is waited for.
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
	if a.mustStop() && left != recovery.FenceGone {
		switch v := a.keeper.View(); {
		case err != nil: // it is to be stopped anyway
			due = true
		case left != "":
			err, due = errRunsUnregistered, true
		case v.Grant.LeaseID != 0 && v.Validity.Known():
			err, due = errUnseen, true
		}
	}
	switch {
	case err == nil:
		return left, nil
	case !due || !a.mayStop():
		return a.awaitEnd(ctx, err)
	}
	a.recognizeNow(ctx)
	how, stopErr := a.stopper.Stop(ctx)
	if stopErr != nil {
		return "", errors.Join(err, stopErr)
	}
	a.log.Warn("broker stopped before its registration is given up", "by", how, "why", err)
	a.event(control.Event{Kind: "fence", To: "stopped", Epoch: a.memory.Epoch, Detail: "process stopped: " + how})
	return recovery.FenceGone, nil
}

// awaitEnd waits for the end of a process that was to end, or does not answer any more, or has
// to end before its registration: one command may stop it and us at once. why is returned if it may serve all the same.
func (a *agent) awaitEnd(ctx context.Context, why error) (recovery.Fence, error) {
	waiting, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	toEnd := a.departing.ToEnd() || a.mustStop()
	for waiting.Err() == nil && a.processLives() && (toEnd || !a.brokerAnswers(ctx)) {
		probes.Sleep(waiting, 50*time.Millisecond)
	}
	switch reached := a.fencing.reached; {
	case a.brokerHasLeft(ctx):
		return recovery.FenceGone, nil
	case a.goesAway() && provesIdle(reached, a.processLives()) && !a.brokerAnswers(ctx):
		return reached, nil
	}
	return "", why
}

// processLives reports whether a process of the broker is seen to live. Nobody watches
// processes any more: what was seen last is looked at again.
func (a *agent) processLives() bool {
	t := a.brokerTarget()
	return t.Pid != 0 && !t.Gone() || a.servingLives()
}

// brokerHasLeft reports whether the broker's process has ended and no other one is there.
func (a *agent) brokerHasLeft(ctx context.Context) bool {
	return !a.processSeen() && a.brokerGone() && !a.brokerAnswers(ctx)
}

// processSeen reports whether a process of the broker lives, be it one that was started a
// moment ago and has not answered yet.
func (a *agent) processSeen() bool {
	if t := a.brokerTarget(); t.Pid != 0 && !t.Gone() {
		return true
	}
	if l, ok := a.stopper.(looker); ok {
		_, runs := l.Target()
		return runs
	}
	return false
}

func (a *agent) brokerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(a.settings().HealthTimeout, stopTimeout/8))
	defer cancel()
	_, err := a.broker.Probe(ctx)
	return err == nil
}

func (a *agent) quiesceToLeave(ctx context.Context) (left recovery.Fence, err error) {
	if a.health.Snapshot().At(time.Now()) == probes.Down {
		switch reached, runs := a.fencing.reached, a.processSeen(); {
		case runs && !provesIdle(reached, runs):
			return "", errors.New("the broker runs and does not answer")
		case reached == recovery.FenceGone && a.process == nil && a.child == nil:
			return "", nil // nobody would see the process that was started since
		case reached.Proven():
			return reached, nil
		case a.processEnded():
			return recovery.FenceGone, nil
		}
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
	defer cancel()
	n, err := a.reconciler.Fence(ctx)
	if err != nil {
		return "", fmt.Errorf("%s quiesced: %w", control.Plural(n, "topic"), err)
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
	a.event(control.Event{Kind: "agent", To: "stopped", Reason: "not_quiesced", Epoch: g.Epoch, Detail: err.Error()})
	next := "stop the broker"
	if stands := a.guardLeft(); stands != "" {
		next += ", or start 'holdfast run' again: " + stands
	}
	if g.LeaseID == 0 {
		return &control.ExitError{Code: control.ExitFailed, Err: fmt.Errorf("the broker may serve without a registration: %w: %s", err, next)}
	}
	return &control.ExitError{Code: control.ExitFailed, Err: fmt.Errorf("the registration is left to run out by itself, because the broker may still serve: %w: %s", err, next)}
}
