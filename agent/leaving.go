package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// This file is 'holdfast leave': the planned stop of a broker while the sidecar runs on. It
// goes the way of an orderly end of the sidecar: clients away, nothing served, that noted,
// and only then the lease revoked. Whatever fails before the note takes it all back. After
// it the same process of the broker is not registered again, until it has had its time to
// end; the next process is at once.

// leavePhase is how far a broker that leaves has come.
type leavePhase int

const (
	notLeaving    leavePhase = iota
	endingService            // under its lease, until the departure is noted
	givingUp                 // noted; the lease is being revoked
	hasLeft                  // nothing of it is in etcd but the note
	returning                // taken back, and whether it was noted is not known: held back until the registration was looked at, which takes a note away
	awaitingEnd              // it ends by itself, or must not run without its registration and somebody else ends it: under its lease until then
)

// leaving is a planned stop, owned by the loop.
type leaving struct {
	phase    leavePhase
	instance string // broker process
	until    lease.Instant
	heardBy  lease.Instant      // givingUp: until when the answer to the revocation is waited for
	provenAt lease.Instant      // when it was last seen to serve nothing; 0: its process was proven to have ended, or another sidecar saw it
	cancel   context.CancelFunc // of what is under way
	why      error              // it was called off; nil: it was not
	waiters  []chan<- error
	briefly  bool // only until a sidecar is started again, which takes it back
	itself   bool // nobody asked it to: see heed
}

// holdsBack reports whether nothing may be served because the broker leaves.
func (l *leaving) holdsBack() bool { return l.phase != notLeaving }

// noted reports whether it left on purpose, and that is noted.
func (l *leaving) noted() bool { return l.phase == givingUp || l.phase == hasLeft }

// toEnd reports whether its end was asked for.
func (l *leaving) toEnd() bool {
	return l.noted() || l.phase == endingService || l.phase == awaitingEnd
}

// unregistered reports whether that process is to be left without a registration.
func (l *leaving) unregistered(instance string) bool {
	return l.noted() && l.instance == instance
}

// departs reports whether that process is leaving or has left, so that its registration is not
// to be taken up.
func (l *leaving) departs(instance string) bool {
	return l.instance == instance && (l.phase == endingService || l.noted())
}

func (l *leaving) answer(err error) {
	for _, c := range l.waiters {
		c <- err // it has room for one
	}
	l.waiters = nil
}

// waitsNoMore forgets somebody who has given up, and reports whether nobody waits any more.
func (l *leaving) waitsNoMore(c chan<- error) bool {
	l.waiters = slices.DeleteFunc(l.waiters, func(w chan<- error) bool { return w == c })
	return len(l.waiters) == 0
}

// causeLeft is why a registration is gone that was given up on purpose. It is no loss.
const causeLeft = "left"

// errStays is why a broker is not leaving any more.
var errStays = errors.New("the broker stays")

// beginLeaving is called in the loop. briefly: the sidecar is stopped next, and perhaps not the
// broker. c is told when the broker has left, or why not, and
// must have room for that.
func (a *agent) beginLeaving(timeout time.Duration, briefly bool, c chan<- error) {
	l := &a.leaving
	who, _ := a.identity.get()
	if l.briefly && !briefly {
		a.leaveForGood()
	}
	switch {
	case l.phase == hasLeft || l.phase == awaitingEnd && !l.itself:
		c <- nil
		return
	case l.phase == returning:
		c <- fmt.Errorf("%w: it was just taken back", errNothingToLeave)
		return
	case l.phase != notLeaving:
		l.waiters = append(l.waiters, c)
		return
	}
	err := a.mayLeave()
	switch {
	case err != nil:
	case a.verdict != probes.Up || a.brokerGone():
		err = fmt.Errorf("%w: the broker is not up", errNothingToLeave)
	case a.endUnprovable():
		err = fmt.Errorf("%w: %s, and it cannot be stopped from here: the end of its process must be seen, and its process is not: give --broker-pid-file or --broker-process", errNothingToLeave, mustStopWhy)
	}
	if err != nil {
		c <- err
		return
	}
	ctx, cancel := context.WithTimeout(a.life0, timeout)
	*l = leaving{phase: endingService, instance: who.Instance, cancel: cancel, waiters: []chan<- error{c}, briefly: briefly}
	a.log.Info("the broker leaves: clients away, nothing served, then its registration is given up", "epoch", a.grant.Epoch)
	a.event(control.Event{Kind: "operator", To: "leaving", Reason: "operator", Epoch: a.grant.Epoch})
	a.publish() // readiness is off from here on
	a.orderSteerer(false, false)
	a.setOrders(a.orders(false))
	a.publishLife(who) // before the note: see registrar.leaves
	fence, d := a.reconciler.BeginFence(), a.departure()
	a.tasks.Go(func() {
		defer cancel()
		left, err := a.endServing(ctx, fence)
		at := a.clock()
		if err == nil && left.Proven() {
			err = a.noteSoon(ctx, d)
		}
		a.tell(a.life0, func() { a.leaveNoted(left, at, err) })
	})
}

// lastWord is that of a process which ends by itself.
type lastWord struct{ instance, words string }

// heed has a broker leave that says itself that it ends, once for each process: clients are kept
// away and nothing is stopped. It may be silent from then on, and is renewed until its process has
// ended, which is noted (see ended.go), or --leave-timeout is over.
func (a *agent) heed(instance string) {
	said := a.identity.leaves.Load()
	if said == nil || said.instance != instance || instance == a.heeded || a.leaving.phase != notLeaving ||
		a.grant.LeaseID == 0 || a.attachment == recovery.Detached || a.brokerGone() {
		return
	}
	a.heeded = instance
	a.leaving = leaving{phase: awaitingEnd, itself: true, instance: instance, until: a.clock().Add(a.cfg.LeaveTimeout)}
	a.log.Info("the broker leaves by itself: it keeps its registration until its process has ended", "why", said.words, "within", a.cfg.LeaveTimeout)
	a.event(control.Event{Kind: "broker", To: "leaving", Epoch: a.grant.Epoch, Detail: said.words})
}

// mayStop reports whether the broker may be stopped from here.
func (a *agent) mayStop() bool { return a.stopper != nil && a.fences(recovery.StepStop) }

// endUnprovable reports whether nobody would know when a broker has ended that must have,
// before its registration is given up.
func (a *agent) endUnprovable() bool { return a.mustStop() && !a.mayStop() && !a.servingLives() }

// servingLives reports whether the process that served is seen to live.
func (a *agent) servingLives() bool { last := a.lastServing(); return last.Pid != 0 && !last.Gone() }

// endsUnderLease reports whether a broker that does not answer any more is ending, and has to
// keep its registration until it has.
func (a *agent) endsUnderLease(verdict probes.Verdict) bool {
	l := &a.leaving
	return l.phase == awaitingEnd && a.clock() < l.until && (a.gate && a.servingLives() || l.itself && a.ails(verdict))
}

// endServing proves that the broker serves nothing. One that must not run without its
// registration is stopped; where it cannot be, nothing is proven before somebody else did.
func (a *agent) endServing(ctx context.Context, fence *topics.OpenFence) (recovery.Fence, error) {
	n, err := fence.Finish(ctx)
	switch {
	case err != nil && a.brokerHasLeft(ctx): // somebody stopped it meanwhile
		return recovery.FenceGone, nil
	case a.mustStop() && a.mayStop(): // whatever is still served
	case err != nil:
		return "", fmt.Errorf("%s quiesced: %w", control.Plural(n, "topic"), err)
	case !a.mustStop():
		return recovery.FenceQuiesced, nil
	default:
		return "", nil
	}
	a.recognizeNow(ctx)
	how, err := a.stopper.Stop(ctx)
	if err != nil {
		return "", err
	}
	a.log.Info("broker stopped before its registration is given up", "by", how)
	return recovery.FenceGone, nil
}

// leaveNoted takes up, in the loop, how far the departure has come, and what was proven when.
func (a *agent) leaveNoted(left recovery.Fence, at lease.Instant, err error) {
	l := &a.leaving
	switch {
	case l.why != nil:
		a.stays(l.why)
	case err != nil:
		a.stays(err)
	case !left.Proven():
		l.phase, l.until = awaitingEnd, a.clock().Add(a.cfg.LeaveTimeout)
		a.log.Info("the broker serves nothing and must be stopped now: its registration is given up when its process has ended", "within", a.cfg.LeaveTimeout)
		l.answer(nil)
	default:
		l.phase, l.until = givingUp, a.clock().Add(a.cfg.LeaveTimeout)
		l.heardBy = a.clock().Add(2 * a.cfg.Timing().AttemptTimeout())
		if left == recovery.FenceQuiesced {
			l.provenAt = at
		}
		if !l.briefly {
			a.rememberLeft(l.instance)
		}
		a.event(control.Event{Kind: "registration", From: "held", To: "left", Epoch: a.grant.Epoch})
		a.keeper.SetGate(false)
		if a.runsOut() {
			l.heardBy = a.clock() // there is no answer to wait for
		} else {
			a.keeper.GiveUp(causeLeft)
		}
	}
}

// leaveForGood is called when the broker is to be stopped after all.
func (a *agent) leaveForGood() {
	l := &a.leaving
	if l.briefly = false; l.noted() {
		a.rememberLeft(l.instance)
	}
}

// callOff has a departure that is not noted yet taken back.
func (a *agent) callOff(why string) {
	if l := &a.leaving; l.phase == endingService && l.why == nil {
		l.why = fmt.Errorf("%w: %s", errStays, why)
		l.cancel()
	}
}

// stays takes a departure back: what was quiesced is loaded again. Whether it was noted may
// not be known, and it may be noted yet: whoever takes the registration up takes a note away,
// and writes the member record in any case.
func (a *agent) stays(err error) {
	l := &a.leaving
	a.unsure++
	a.log.Warn("the broker does not leave", "err", err)
	a.event(control.Event{Kind: "operator", From: "leaving", To: "stays", Epoch: a.grant.Epoch, Detail: err.Error()})
	l.answer(err)
	*l = leaving{phase: returning, instance: l.instance}
	a.lookAgain()
}

// returned ends what holds a broker back that was to leave: its registration was looked at.
func (a *agent) returned() {
	if a.leaving.phase == returning {
		a.leaving = leaving{}
	}
}

// tendLeaving follows a broker that leaves: what it must be called off for, the end of its
// process, the next one, and the time that it has.
func (a *agent) tendLeaving(verdict probes.Verdict, who brokerapi.Report) {
	l := &a.leaving
	same := verdict == probes.Up && who.Instance == l.instance
	switch l.phase {
	case notLeaving:
		return
	case endingService:
		switch {
		case a.mode.Mode != recovery.Active:
			a.callOff(fmt.Sprintf("it is %s (%s) by now", a.mode.Mode, a.mode.Reason))
		case a.fellOut() || a.grant.LeaseID == 0:
			a.callOff("it was detached from the cluster meanwhile")
		case verdict == probes.Up && !same:
			a.callOff("another process of it answers")
		}
		return
	case givingUp:
		v := a.keeper.View()
		if unconfirmed := v.Grant.LeaseID != 0 && a.clock() < l.heardBy; unconfirmed && !(verdict == probes.Up && !same) {
			return
		}
		if v.Grant.LeaseID == 0 { // etcd has confirmed it
			a.remember(func(m *memory) { m.LeaseID, m.Released = 0, true })
		}
		l.phase = hasLeft
		a.log.Info("the broker has left: stop it now; its next start is active again", "within", a.cfg.ReturnWithin)
		l.answer(nil)
	case awaitingEnd:
		switch {
		case !l.itself && a.processEnded():
			a.noteEnd()
		case !l.itself && a.mode.Mode != recovery.Active || a.attachment == recovery.Detached || a.grant.LeaseID == 0:
			a.stays(fmt.Errorf("%w: it was drained or detached before its process had ended", errStays))
		}
	}
	switch {
	case verdict == probes.Up && !same && (l.phase == hasLeft || l.phase == awaitingEnd): // the next process
		l.answer(nil)
		*l = leaving{}
	case (same || l.itself) && a.clock() >= l.until && (l.phase == hasLeft || l.phase == awaitingEnd):
		a.comeBack(fmt.Sprintf("it still runs %s after it left (--leave-timeout)", config.FormatDuration(a.cfg.LeaveTimeout)))
	}
}

// noteEnd goes on when the process that had to be stopped has ended: its lease still lives.
func (a *agent) noteEnd() {
	l, d := &a.leaving, a.departure()
	ctx, cancel := context.WithCancel(a.life0)
	l.phase, l.cancel = endingService, cancel
	who, _ := a.identity.get()
	a.publishLife(who) // before the note: see registrar.leaves
	a.tasks.Go(func() {
		defer cancel()
		err := a.noteSoon(ctx, d)
		a.tell(a.life0, func() { a.leaveNoted(recovery.FenceGone, 0, err) })
	})
}

// comeBack lets a process that has left, and is still there, be registered again, which
// takes the note away.
func (a *agent) comeBack(why string) {
	a.log.Warn("the broker is taken back after it left", "why", why)
	a.event(control.Event{Kind: "operator", From: "left", To: "stays", Detail: why})
	a.remember(func(m *memory) { m.Left = nil })
	a.leaving.answer(fmt.Errorf("%w: %s", errStays, why))
	a.leaving = leaving{}
	a.lookAgain()
}

// lookAgain has the registration of a broker looked at that does not leave any more.
func (a *agent) lookAgain() {
	who, _ := a.identity.get()
	a.publishLife(who)
	a.keeper.Reestablish()
}

// keepHere is what 'activate' does to a broker that leaves or has left, as long as its
// process is there. One that is away keeps its note.
func (a *agent) keepHere() {
	who, _ := a.identity.get()
	switch l := &a.leaving; {
	case l.phase == endingService:
		a.callOff("an operator activated it")
	case l.phase != notLeaving && l.phase != returning && a.verdict == probes.Up && who.Instance == l.instance:
		a.comeBack("an operator activated it")
	}
}

// leavingWords say what an operator has to know of a broker that leaves; empty: it does not.
func (a *agent) leavingWords() string {
	switch a.leaving.phase {
	case endingService, givingUp:
		return "it leaves on purpose"
	case returning:
		return "it was to leave on purpose, and stays: its registration is looked at first"
	case hasLeft:
		next := map[bool]string{true: "start it when the work is done", false: "stop it, or take it back with 'holdfast activate'"}
		return "it has left on purpose: " + next[a.brokerGone() || a.processEnded()]
	case awaitingEnd:
		if a.leaving.itself {
			return "it leaves by itself, by its own word: its end is awaited"
		}
		return "it leaves on purpose and must be stopped now; to take it back: 'holdfast activate'"
	}
	return ""
}

// leaveEvery is how often 'leave --wait' tries again.
const leaveEvery = 100 * time.Millisecond

// leaveOrder is the body of a request to leave.
type leaveOrder struct {
	TimeoutSeconds float64 `json:"timeout_seconds"`
	Wait           bool    `json:"wait"`
	WithSidecar    bool    `json:"with_sidecar"`
}

// leaveByOrder returns when the broker has left, or cannot.
func (a *agent) leaveByOrder(ctx context.Context, o leaveOrder) (control.Status, error) {
	timeout := drainTimeout
	if o.TimeoutSeconds > 0 {
		timeout = time.Duration(o.TimeoutSeconds * float64(time.Second))
	}
	if err := a.leaveNow(ctx, timeout, o.Wait, o.WithSidecar); err != nil {
		return control.Status{}, err
	}
	_ = a.saveNow() // the next sidecar is to know it; that it failed, the saver tells
	return a.status(), nil
}

// leaveNow has the loop begin, and waits for what comes of it. wait: a broker that cannot
// leave yet is asked again until the timeout. briefly: see beginLeaving.
func (a *agent) leaveNow(ctx context.Context, timeout time.Duration, wait, briefly bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	for {
		c := make(chan error, 1)
		a.tell(ctx, func() { a.beginLeaving(timeout-time.Since(began), briefly, c) })
		var err error
		select {
		case err = <-c:
		case <-ctx.Done():
			if a.goesAnyway(c, timeout) {
				return nil
			}
			return fmt.Errorf("the broker has not left within %s: it stays: see 'holdfast events', then repeat with a longer --timeout", config.FormatDuration(timeout))
		}
		if !wait || !errors.Is(err, errNothingToLeave) {
			return leaveError(err)
		}
		if probes.Sleep(ctx, leaveEvery); ctx.Err() != nil {
			return leaveError(err)
		}
	}
}

// goesAnyway forgets somebody who waits no more, and reports whether the broker has left: only
// its lease is still to be given up.
func (a *agent) goesAnyway(c chan<- error, timeout time.Duration) bool {
	var left bool
	err := a.inLoop(a.life0, func() {
		if a.leaving.waitsNoMore(c) {
			a.callOff("not done within " + config.FormatDuration(timeout))
		}
		left = a.leaving.noted()
	})
	return err == nil && left
}

// leaveError adds what to do.
func leaveError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNothingToLeave):
		return &control.ExitError{Code: control.ExitRefused, Err: fmt.Errorf("%w: stop it all the same if it must be; it comes back as a broker that was not stopped by plan does", err)}
	}
	return fmt.Errorf("the broker does not leave: %w: it stays as it was; mend that and repeat, or stop it all the same", err)
}
