package agent

import (
	"errors"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is the lease of a broker that was stopped by the ladder or by the guard before its
// lease had ended, where --restart-grace gives a lease up and the broker's storage fences it. Its
// process is proven to have ended, so others need not wait for that end: the lease is revoked at
// once. The note of a crash goes before it, and counts until the deadline: the next process comes
// back as it would while the lease still lived.
//
// Not guaranteed: that a lease is given up where no process is watched, as with --stop-command
// alone, where etcd does not answer, or while recovery is paused. It runs out by itself then.

// causeStopped is why a registration is gone whose broker was stopped under it.
const causeStopped = "stopped"

// stopNote is what becomes of the lease of one process that was fenced, owned by the loop.
type stopNote struct {
	fence    int  // number of that fence
	underway bool // no registration is taken up meanwhile
	done     bool // the lease is given up, or not to be
	retryAt  lease.Instant
}

// endsFenced reports whether the fence of the registered process ends it, or has, under a lease
// that is to be given up then.
func (a *agent) endsFenced() bool {
	f, v := &a.fencing, a.keeper.View()
	return a.can.FencesItself && a.cfg.RestartGrace > 0 && a.shadow == nil && a.conflict == "" && a.served.Pid != 0 &&
		a.attachment == recovery.Detached && f.instance != "" && f.instance == a.memory.Instance &&
		(f.underway == recovery.StepStop || f.reached == recovery.FenceGone && a.stoppedByUs()) &&
		a.leaving.phase == notLeaving && !a.pausedEnd.excused && !a.suspended(recovery.ActRevoke) &&
		a.grant.LeaseID != 0 && v.Grant.LeaseID == a.grant.LeaseID && !v.Validity.ExpiredAt(a.clock())
}

// stoppedByUs reports whether the ladder or the guard has stopped it: it may have ended by itself.
func (a *agent) stoppedByUs() bool {
	p, ok := a.guard.(guardProcess)
	return a.fencing.ladder.Stopped == recovery.Done || ok && p.Fired(a.served)
}

// fencedGone reports whether that process is proven to have ended and no other one is seen.
func (a *agent) fencedGone() bool {
	t := a.brokerTarget()
	return a.fencing.reached == recovery.FenceGone && a.verdict != probes.Up && a.processEnded() && (t.Pid == 0 || t.Gone())
}

// owesStopNote reports whether the lease may not be revoked yet: the process may end before its
// note is written.
func (a *agent) owesStopNote() bool {
	s := &a.stopNote
	return s.underway || a.endsFenced() && !(s.done && s.fence == a.fencing.number)
}

// giveUpStopped gives the lease of a broker up that was stopped under it.
func (a *agent) giveUpStopped() {
	s, now := &a.stopNote, a.clock()
	if s.underway {
		return
	}
	if s.fence != a.fencing.number {
		*s = stopNote{fence: a.fencing.number}
	}
	if s.done || now < s.retryAt || a.gate || !a.endsFenced() || !a.fencedGone() {
		return
	}
	if a.mode.Mode != recovery.Active { // that is kept, whatever the lease
		s.done = true
		a.keeper.GiveUp(causeStopped)
		return
	}
	s.underway = true
	who, _ := a.identity.get()
	a.publishLife(who) // before the note: see registrar.leaves
	d := a.departure()
	d.crash, d.at = true, time.Now().Add(-now.Sub(a.keeper.View().Validity.SentAt))
	a.tasks.Go(func() {
		err := a.noteSoon(a.life0, d)
		a.tell(a.life0, func() { a.stopNoted(d, err) })
	})
}

func (a *agent) stopNoted(d departure, err error) {
	s := &a.stopNote
	s.underway, s.retryAt = false, a.clock().Add(noteRetry)
	switch {
	case err == nil:
		s.done = true
		if !a.gate {
			a.keeper.GiveUp(causeStopped)
		}
		a.log.Info("the broker was stopped under its lease: its registration is given up", "epoch", d.grant.Epoch)
		a.event(Event{Kind: "registration", From: "held", To: "left", Reason: causeStopped, Epoch: d.grant.Epoch})
	case errors.Is(err, errNothingToLeave):
		s.done = true
	default:
		a.unsure++
		a.log.Warn("the stop of the broker is not noted yet", "err", err)
	}
	a.lookAgain()
}
