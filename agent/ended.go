package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is the end of a process of the broker that is noted although we were not asked, once
// it is proven: by an operator who pauses recovery to work on it, by itself, or of one whose storage
// fences it and whose registration is given up soon (--restart-grace), so that others serve what it
// had. The lease runs out, or is revoked after that grace, or the next process takes it up, and
// the note away.

// noteRetry is the pause before a note is tried again.
const noteRetry = time.Second

// ending is the end of the broker's process, owned by the loop.
type ending struct {
	instance string // process that has ended; empty: it runs
	cause    *endCause
	underway bool // the note is being written; no registration is taken up meanwhile
	noted    bool // it has left on purpose
	done     bool // noted, or not to be
	retryAt  lease.Instant
}

// endCause is why the end of a process leaves a note.
type endCause struct {
	is    func(a *agent) bool // as the end is seen
	crash bool
	said  string
}

// endCauses are those causes; the first that holds counts.
var endCauses = []endCause{
	{is: func(a *agent) bool { return a.leaving.itself }, said: "it said that it leaves, and its process has ended"},
	{is: func(a *agent) bool { return a.paused() }, said: "its process has ended during a maintenance pause"},
	{is: func(a *agent) bool { return a.fencesItself() && a.cfg.RestartGrace > 0 }, crash: true, said: "its process has ended"},
}

// noteEnded notes the end of a process that was active and attached until then.
func (a *agent) noteEnded() {
	e, now := &a.ending, a.clock()
	who, _ := a.identity.get()
	switch {
	case e.underway:
		return
	case !a.brokerGone():
		*e = ending{}
		return
	case e.instance != who.Instance:
		*e = ending{instance: who.Instance}
		if i := slices.IndexFunc(endCauses, func(c endCause) bool { return c.is(a) }); i >= 0 {
			e.cause = &endCauses[i]
		}
		if a.leaving.itself { // its end is what is left of it
			a.leaving.answer(nil)
			a.leaving = leaving{}
		}
	}
	if a.mode.Mode.Known() && a.mode.Mode != recovery.Active { // that is kept, whatever the lease
		e.done = true
	}
	if e.cause == nil || e.done || now < e.retryAt || a.leaving.phase != notLeaving || a.mayLeave() != nil {
		return
	}
	e.underway = true
	a.publishLife(who) // before the note: see registrar.leaves
	d := a.departure()
	d.crash = e.cause.crash
	a.tasks.Go(func() {
		err := a.noteSoon(a.life0, d)
		a.tell(a.life0, func() { a.endNoted(d, err) })
	})
}

// endNoted takes up what came of the note. The next process may have been kept waiting for it.
func (a *agent) endNoted(d departure, err error) {
	e := &a.ending
	e.underway, e.retryAt = false, a.clock().Add(noteRetry)
	switch {
	case err == nil:
		e.done, e.noted = true, !d.crash
		event := control.Event{Kind: "registration", From: "held", To: "left", Epoch: d.grant.Epoch, Detail: e.cause.said}
		if d.crash {
			a.log.Info("the broker's process has ended: its registration is given up", "after", a.cfg.RestartGrace)
			event.Reason, event.Detail = "crash", ""
		} else {
			a.log.Info("the broker has left on purpose: its next start is active again", "why", e.cause.said, "within", a.cfg.ReturnWithin)
		}
		a.event(event)
	case errors.Is(err, errNothingToLeave):
		e.done = true
		a.log.Info("the end of the broker's process is not noted", "why", err)
	default:
		a.unsure++
		a.log.Warn("the end of the broker's process is not noted yet", "err", err)
	}
	a.lookAgain()
}

// What follows is what a broker's process that is proven to have ended still holds in its own cluster,
// such as the session of a Pulsar broker. It is given up after --restart-grace, so that others serve
// what it had; a process that is back before that takes it over itself.
//
// Not guaranteed: that it is given up where no process is watched, in a pause of recovery, or by a
// driver that has no Releaser. It runs out by itself then.

const (
	giveUpTimeout = 2 * time.Second
	// releaseFor is for how long it is tried: by then what a broker holds has run out.
	releaseFor = 30 * time.Second
)

// tendRelease follows the end of the broker's process. A pause begins the grace anew.
func (a *agent) tendRelease() {
	b, ok := a.broker.(brokerapi.Releaser)
	ended := ok && a.cfg.RestartGrace > 0 && a.brokerGone() && a.verdict != probes.Up && !a.paused()
	switch {
	case ended && a.endRelease == nil:
		who, _ := a.identity.get()
		grace := a.cfg.RestartGrace
		ctx, cancel := context.WithTimeout(a.life0, grace+releaseFor)
		a.endRelease = cancel
		a.tasks.Go(func() { a.relinquish(ctx, b, who.Instance, grace) })
	case !ended && a.endRelease != nil:
		a.endRelease()
		a.endRelease = nil
	}
}

func (a *agent) relinquish(ctx context.Context, b brokerapi.Releaser, instance string, pause time.Duration) {
	for failed := false; ; pause = noteRetry {
		if probes.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		trying, cancel := context.WithTimeout(ctx, giveUpTimeout)
		err := b.Release(trying, instance)
		cancel()
		if err == nil {
			return
		}
		if !failed {
			failed = true
			a.log.Warn("what the broker's process held in its cluster is not given up yet", "err", err)
		}
	}
}
