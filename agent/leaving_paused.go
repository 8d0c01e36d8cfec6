package agent

import (
	"errors"
	"time"

	"holdfast/agent/lease"
)

// This file is a broker that goes down during a maintenance pause: somebody works on it, and
// has said so. It leaves the note of a planned stop, once its process is proven to have ended.
// Its lease runs out by itself, or the next process takes it up, and the note away.

// pausedEnd is the end of the broker's process as far as a pause excuses it, owned by the loop.
type pausedEnd struct {
	instance string // process that has ended; empty: it runs
	excused  bool   // a pause was in force when it was seen to have ended
	underway bool   // the note is being written; no registration is taken up meanwhile
	noted    bool
	retryAt  lease.Instant
}

const noteRetry = time.Second

// noteEndInPause notes the end of a broker that was active and attached until then.
func (a *agent) noteEndInPause() {
	p, now := &a.pausedEnd, a.clock()
	who, _ := a.identity.get()
	switch {
	case p.underway:
		return
	case !a.brokerGone():
		*p = pausedEnd{}
		return
	case p.instance != who.Instance:
		*p = pausedEnd{instance: who.Instance, excused: a.pauseLeft() > 0}
	}
	if !p.excused || p.noted || now < p.retryAt || a.leaving.phase != notLeaving || a.mayLeave() != nil {
		return
	}
	p.underway = true
	a.publishLife(who) // before the note: see registrar.leaves
	d := a.departure()
	a.tasks.Go(func() {
		err := a.noteSoon(a.life0, d)
		a.tell(a.life0, func() { a.endInPauseNoted(d, err) })
	})
}

// endInPauseNoted takes up what came of the note. The next process may have been kept waiting
// for it, and its registration takes the note away.
func (a *agent) endInPauseNoted(d departure, err error) {
	p := &a.pausedEnd
	p.underway, p.noted, p.retryAt = false, err == nil, a.clock().Add(noteRetry)
	switch {
	case err == nil:
		a.log.Info("the broker's process has ended during a maintenance pause: its next start is active again", "within", a.cfg.ReturnWithin)
		a.event(Event{Kind: "registration", From: "held", To: "left", Epoch: d.grant.Epoch, Detail: "its process has ended during a maintenance pause"})
	case errors.Is(err, errNothingToLeave):
		p.excused = false
		a.log.Info("the end of the broker's process is not excused by the pause", "why", err)
	default:
		a.unsure++
		a.log.Warn("the end of the broker's process during a maintenance pause is not noted yet", "err", err)
	}
	a.lookAgain()
}
