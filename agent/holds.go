package agent

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"holdfast/agent/control"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// circumstances are what may hold the broker back now: known is what the loop last told everybody
// (a.view.Load), or, in the loop, what it knows by now. Whatever time can falsify is compared with the
// clock here, so that a loop that is late cannot keep a broker ready past its fence point.
func (a *agent) circumstances(known func() *snapshot) recovery.Circumstances {
	v, now := a.keeper.View(), a.clock()
	jumped := a.presence == nil && a.jumpedSinceLoop()
	s := known() // in this order: what the loop found out of a jump is known before nobody sees it any more
	h, p, steering := a.health.Snapshot(), a.reconciler.Snapshot(), a.steerer.View()
	who, _ := a.identity.get()
	verdict := h.At(time.Now())
	c := s.Circumstances
	c.Shadow, c.Stuck, c.Risk, c.Unsaved = a.shadow != nil, a.stuck(), a.risk, a.unsavedWhy() != ""
	c.Unleased, c.Detaches, c.Known, c.Held, c.Expired = a.presence != nil, a.cfg.Detach, v.Validity.Known(), v.Validity.HeldAt(now), v.Validity.ExpiredAt(now)
	c.Failing, c.Doubted, c.Refused = v.FailureStreak > 0, jumped || s.doubted, v.LastError
	c.Up, c.Down, c.Error, c.Ill = verdict == probes.Up, verdict == probes.Down, h.LastError, recovery.HeldWords(s.held)
	c.Gone, c.Another, c.Stale, c.Untold = a.brokerGone(), who.Instance != s.instance, a.staleView(), notTaken(steering)
	c.Unsettled, c.Missing, c.Elsewhere = a.unsettled(p, s.Mode.Mode), p.Missing, p.Elsewhere
	c.Vacant, c.Misplaced = a.placer != nil && p.Assigned == 0, a.meantElsewhere(p)
	if p := a.pauseStatus(); p != nil {
		c.Paused = p.Owner
	}
	if err := a.unable(); err != nil {
		c.Unable = err.Error()
	}
	if p.GuardTripped {
		c.Tripped = p.GuardDetail
	}
	if steering.Steering == recovery.SteerFailing {
		c.Undrained = c.Untold
	} else if steering.LastError != "" {
		c.Undrained = "does not take that again, so topics may have come back: " + steering.LastError
	}
	return c
}

// unsettled is what of its topics is not as it has to be before clients may come; empty: nothing.
func (a *agent) unsettled(p topics.Progress, mode recovery.Mode) string {
	switch {
	case p.Reconciled:
		return ""
	case !p.AssignedKnown:
		return "assignments not read yet"
	case mode == recovery.Drained:
		return "held back while the broker is drained"
	case !p.ServedKnown:
		return "topics of the broker not listed yet"
	case p.Missing == 0 && p.Orphan > 0:
		return control.Plural(p.Orphan, "topic") + " served that belong elsewhere: to be quarantined first"
	case p.Missing == 0:
		return "to be looked at again when the broker is up and attached"
	}
	return control.Plural(p.Missing, "topic") + " of " + strconv.Itoa(p.Assigned) + " not loaded yet" + a.lockTrouble()
}

// holds is everything that holds the broker back.
func (a *agent) holds() []recovery.Hold { return recovery.Holds(a.circumstances(a.view.Load)) }

// notReady lists why clients may not be sent here; empty: they may. A broker whose sidecar hangs is
// not ready either.
func (a *agent) notReady() []probes.Cause { return causesOf(a.holds()) }

// causesOf are the conditions of readiness that holds break, each with the first that does.
func causesOf(holds []recovery.Hold) (causes []probes.Cause) {
	for _, h := range holds {
		if h.Blocks&recovery.Ready != 0 && !slices.ContainsFunc(causes, func(c probes.Cause) bool { return c.Name == h.Cause }) {
			causes = append(causes, probes.Cause{Name: h.Cause, Message: h.Text})
		}
	}
	return causes
}

// readyChecks are the same one by one, but for the one that is the sidecar's own.
func (a *agent) readyChecks() (checks []probes.Check) {
	for _, name := range recovery.Causes[:len(recovery.Causes)-1] {
		checks = append(checks, probes.Check{Name: name, Err: func() error {
			for _, h := range a.holds() {
				if h.Cause == name {
					return errors.New(h.Text)
				}
			}
			return nil
		}})
	}
	return checks
}
