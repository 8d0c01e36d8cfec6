package agent

import (
	"errors"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// This file is the crash of a broker whose registration is given up soon (--restart-grace), so
// that others serve what it had, and whose storage fences it. The member record says so before
// the lease is revoked: who is back before the lease would have ended is not called stale.

// crashNote is the note of one crash, owned by the loop.
type crashNote struct {
	instance string // process that has ended; empty: it runs
	underway bool   // no registration is taken up meanwhile
	done     bool   // noted, or not to be
	retryAt  lease.Instant
}

// noteCrash notes the end of a process that was active and attached until then.
func (a *agent) noteCrash() {
	c, now := &a.crash, a.clock()
	who, _ := a.identity.get()
	switch {
	case c.underway || !a.can.FencesItself || a.cfg.RestartGrace == 0:
		return
	case !a.brokerGone():
		*c = crashNote{}
		return
	case c.instance != who.Instance:
		*c = crashNote{instance: who.Instance}
	}
	if a.mode.Mode.Known() && a.mode.Mode != recovery.Active { // that is kept, whatever the lease
		c.done = true
	}
	if c.done || now < c.retryAt || a.leaving.phase != notLeaving || a.pausedEnd.excused || a.mayLeave() != nil {
		return
	}
	c.underway = true
	a.publishLife(who) // before the note: see registrar.leaves
	d := a.departure()
	d.crash = true
	a.tasks.Go(func() {
		err := a.noteSoon(a.life0, d)
		a.tell(a.life0, func() { a.crashNoted(d, err) })
	})
}

func (a *agent) crashNoted(d departure, err error) {
	c := &a.crash
	c.underway, c.retryAt = false, a.clock().Add(noteRetry)
	switch {
	case err == nil:
		c.done = true
		a.log.Info("the broker's process has ended: its registration is given up", "after", a.cfg.RestartGrace)
		a.event(Event{Kind: "registration", From: "held", To: "left", Reason: "crash", Epoch: d.grant.Epoch})
	case errors.Is(err, errNothingToLeave):
		c.done = true
	default:
		a.unsure++
		a.log.Warn("the end of the broker's process is not noted yet", "err", err)
	}
	a.lookAgain()
}
