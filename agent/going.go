package agent

import (
	"context"
	"errors"

	"holdfast/agent/lease"
	"holdfast/probes"
)

// This file is the planned stop that nobody has announced: a supervisor sends SIGTERM to a broker
// that registers itself and whose storage fences it. Such a one deletes its registration first,
// while its session lives, and ends some seconds later. Whoever crashes does not: its key stays
// until its session ends, or until the next process takes it away. Once its process has ended
// the member record gets the note that 'holdfast leave' writes before.
//
// One that moves to its next session deletes its registration as well, and puts it again: it is
// not going, and nothing is noted. Nor is it where the process was not seen to run after the
// deletion, nor of a broker that was ill, detached or not active then, nor of one that was stopped
// by us.
//
// Not guaranteed: a note where no process is watched, where the sidecar was killed meanwhile, or
// where etcd did not answer before the next process was registered.

// going is a process of the broker that has deleted its registration by itself, owned by the loop.
type going struct {
	left     departure     // what is to be noted; of no instance: nobody goes
	seenAt   int64         // store revision at which the registration was away
	until    lease.Instant // its end is not cut short for as long
	underway bool          // no registration is taken up meanwhile
	noted    bool
	done     bool // noted, or not to be
	retryAt  lease.Instant
}

// pending reports whether a process goes, or has gone and no other one is registered yet.
func (g *going) pending() bool { return g.left.instance != "" }

// goes takes up that the registration of that epoch was deleted under a lease that lives, and was
// away at a revision. A process that is seen to run now has done that before its end.
func (a *agent) goes(epoch, revision int64) {
	if d, may := a.mayGo(); may && epoch == d.grant.Epoch {
		a.beginGoing(d, revision)
	}
}

// mayGo is what is to be noted of a process that runs, and has just deleted its registration.
func (a *agent) mayGo() (d departure, may bool) {
	if !a.can.FencesItself || !a.memory.Joined || a.going.pending() || a.leaving.phase != notLeaving || !a.servingLives() || a.ails(a.verdict) || a.mayLeave() != nil {
		return d, false
	}
	d = a.departure()
	d.deleted = true
	return d, true
}

// deletionSeen is goes as soon as the watch shows that the registration is away. The broker closes
// its ports next, and whoever does not answer is not asked about any more; so what counts is noted
// at that moment, and only whether its session lives is asked in the background.
func (a *agent) deletionSeen(revision int64) {
	d, may := a.mayGo()
	if !may || a.lives == nil {
		return
	}
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, noteTimeout)
		defer cancel()
		lives, err := a.lives(ctx, d)
		if err != nil || !lives {
			return // it went with its session, or nobody knows
		}
		a.tell(a.life0, func() {
			if !a.going.pending() && a.leaving.phase == notLeaving && a.memory.Epoch == d.grant.Epoch {
				a.beginGoing(d, revision)
			}
		})
	})
}

func (a *agent) beginGoing(d departure, revision int64) {
	a.going = going{left: d, seenAt: revision, until: a.clock().Add(a.cfg.LeaveTimeout)}
	a.log.Info("the broker has deleted its registration: it ends, or begins another session", "epoch", d.grant.Epoch)
}

// isGoing reports whether such a process does not answer any more, and has its time to end.
func (a *agent) isGoing() bool {
	return a.going.pending() && a.verdict != probes.Up && a.clock() < a.going.until
}

// endsItself reports whether a process gives up by itself what it has, and its end is not to be
// cut short.
func (a *agent) endsItself() bool { return a.leavesItself() || a.isGoing() }

// tendGoing notes the end of such a process, unless it is registered again.
func (a *agent) tendGoing() {
	g, now := &a.going, a.clock()
	if !g.pending() || g.underway {
		return
	}
	again := a.seenKey != nil && a.seenKey.kv != nil && a.seenKey.revision > g.seenAt
	if again || a.leaving.phase != notLeaving || a.stoppedByUs() {
		*g = going{}
		return
	}
	if !g.noted && now >= g.until && !a.brokerGone() { // it does not end: when it does, that is another matter
		*g = going{}
		return
	}
	if g.done || now < g.retryAt || !a.brokerGone() {
		return
	}
	g.underway = true
	who, _ := a.identity.get()
	a.publishLife(who) // before the note: see registrar.leaves
	d := g.left
	a.tasks.Go(func() {
		err := a.noteSoon(a.life0, d)
		a.tell(a.life0, func() { a.goneNoted(d, err) })
	})
}

func (a *agent) goneNoted(d departure, err error) {
	g := &a.going
	if g.left.grant.Epoch != d.grant.Epoch { // another process is registered
		return
	}
	g.underway, g.retryAt = false, a.clock().Add(noteRetry)
	switch {
	case err == nil:
		g.noted, g.done = true, true
		a.noteLoss(causeLeft)
		a.log.Info("the broker was stopped, and has given up its registration before: its next start is active again", "within", a.cfg.ReturnWithin)
		a.event(Event{Kind: "registration", From: "held", To: "left", Epoch: d.grant.Epoch, Detail: "the broker gave its registration up itself, and its process has ended"})
	case errors.Is(err, errNothingToLeave):
		g.done = true
		a.log.Info("the stop of the broker is not noted", "why", err)
	default:
		a.unsure++
		a.log.Warn("the stop of the broker is not noted yet", "err", err)
	}
	a.lookAgain()
}
