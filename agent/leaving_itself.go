package agent

import (
	"context"
	"fmt"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// This file is the planned stop of a broker that leaves its cluster by itself: it renews its
// own lease, and gives its registration and what it serves up in an order of its own when it is
// stopped; see going.go where nobody said so before. It gets the note and nothing else. Nothing is
// quiesced, and no lease is revoked that it still needs for that; clients are kept away. Neither
// ladder nor guard cuts its end short.

// leavesItself reports whether a process has left so and may still end, for as long as
// --leave-timeout, and no other one was seen to be up since.
func (a *agent) leavesItself() bool {
	l := &a.leaving
	return l.itself && l.phase == hasLeft && a.clock() < l.until
}

// noteItself notes in the background that such a broker leaves.
func (a *agent) noteItself(ctx context.Context, cancel context.CancelFunc) {
	who, _ := a.identity.get()
	a.publishLife(who) // before the note: see registrar.leaves
	d := a.departure()
	a.tasks.Go(func() {
		defer cancel()
		err := a.noteSoon(ctx, d)
		a.tell(a.life0, func() { a.itselfNoted(err) })
	})
}

func (a *agent) itselfNoted(err error) {
	l := &a.leaving
	if l.why != nil {
		err = l.why
	}
	if err != nil {
		a.stays(err)
		return
	}
	l.phase, l.until = hasLeft, a.clock().Add(a.cfg.LeaveTimeout)
	if !l.briefly {
		a.rememberLeft(l.instance)
	}
	a.event(Event{Kind: "registration", From: "held", To: "left", Epoch: a.grant.Epoch, Detail: "the broker keeps its registration until it is stopped"})
	a.log.Info("the broker has left: stop it now; its next start is active again", "within", a.cfg.ReturnWithin)
	l.answer(nil)
}

// gaveUpItself notes the end of its registration, which the watch saw.
func (a *agent) gaveUpItself() {
	a.leaving.gaveUp = true
	a.noteLoss(causeLeft)
}

// awaitWelcome has the fence of a process that is taken back wait for its registration, as that
// of a process that came up: it is only a question away.
func (a *agent) awaitWelcome() {
	a.endFencing()
	a.fencing.newcomer, a.fencing.streak = true, a.keeper.View().FailureStreak
}

// noteGoing notes at an orderly end of the sidecar that such a broker may end, too. It goes on
// otherwise, and the next sidecar takes the note away.
func (a *agent) noteGoing() error {
	d := a.departure()
	if a.going.pending() {
		d = a.going.left
	}
	if err := a.noteSoon(a.life0, d); err != nil {
		return err
	}
	a.event(Event{Kind: "registration", From: "held", To: "left", Epoch: d.grant.Epoch, Detail: "the broker keeps its registration until it is stopped"})
	return nil
}

// leaveJoined leaves the broker as it would be without us: under its own registration,
// which it renews itself.
func (a *agent) leaveJoined(g lease.Grant, noted bool) error {
	if a.guard != nil {
		a.guard.Disarm()
		a.dismissGuard()
	}
	a.remember(func(m *memory) { m.ConfirmedAt = max(m.ConfirmedAt, g.Revision) })
	said, reason := "holdfast ends: the broker goes on under its own registration", ""
	if noted {
		said, reason = fmt.Sprintf("%s; stopped, and %s", said, a.backActive()), "left"
	}
	a.log.Info(a.shadow.saying(said))
	a.event(Event{Kind: "agent", To: "stopped", Reason: reason, Epoch: g.Epoch})
	return nil
}

// hasNote reports whether the departure of an active broker is noted.
func (a *agent) hasNote() bool {
	return a.pausedEnd.noted || a.going.noted || a.leaving.noted() && a.mode.Mode == recovery.Active
}
