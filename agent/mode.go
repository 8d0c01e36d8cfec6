package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/recovery"
)

// setMode takes up a mode that others decided, and that stands in etcd at that revision.
func (a *agent) setMode(m recovery.ModeRecord, revision int64, detail string) {
	if m != a.mode {
		a.decided, a.suspect = nil, false
		a.remember(func(k *memory) { k.Decided = nil })
	}
	a.takeMode(m, revision, control.Event{Detail: detail})
}

// takeMode takes up a mode; why is what the event says of it.
func (a *agent) takeMode(m recovery.ModeRecord, revision int64, why control.Event) {
	a.modeRev = max(a.modeRev, revision)
	a.reassert = false
	if m == a.mode {
		return
	}
	from := a.mode
	a.mode = m
	a.log.Info(a.shadow.saying("mode"), "from", string(from.Mode), "to", string(m.Mode), "reason", string(m.Reason), "by", m.By, "epoch", a.grant.Epoch)
	why.Kind, why.From, why.To, why.Reason, why.Epoch = "mode", string(from.Mode), string(m.Mode), string(m.Reason), a.grant.Epoch
	a.event(why)
	a.remember(func(k *memory) { k.Mode, k.Reason, k.By = string(m.Mode), string(m.Reason), m.By })
}

// stateSeen takes up what the watch saw of the state key. guard is the mod revision
// to write against, 0 if the key is absent; store is how far etcd was.
func (a *agent) stateSeen(seen *recovery.ModeRecord, garbled string, revision, guard, store int64) {
	if a.mode.Mode == "" { // the startup decision is to come, and may rest on an older view
		a.early = func() { a.stateSeen(seen, garbled, revision, guard, store) }
		return
	}
	if revision <= a.modeRev {
		if !a.traits.Registers && registration.Rewound(guard, a.modeRev, store) {
			a.keeper.Reestablish() // the Registrar decides what such a store says of the mode
		}
		return
	}
	switch ruling, m := recovery.JudgeState(a.mode, seen); ruling {
	case recovery.Unchanged:
		a.modeRev, a.reassert = revision, false
	case recovery.Accept:
		if a.suspect && m.By == recovery.ByHoldfast {
			return // the registrar lifts the drain, and tells why
		}
		detail := "changed in etcd"
		switch m.By {
		case recovery.ByHoldfast:
			detail = "" // our own write, seen by the watch before the registrar told of it
		case recovery.ByOperator:
			detail = "by an operator"
		}
		a.setMode(m, revision, detail)
	case recovery.Reassert:
		what := "deleted"
		switch {
		case garbled != "":
			what = garbled
		case seen != nil:
			what = fmt.Sprintf("%s (%s) by %q", seen.Mode, seen.Reason, seen.By)
		}
		a.modeRev, a.stateGuard, a.reassert = revision, guard, true
		a.log.Warn("state key is not ours to lose: writing it again", "was", what, "mode", string(a.mode.Mode))
		a.event(control.Event{Kind: "mode", From: what, To: string(a.mode.Mode), Reason: "reasserted", Epoch: a.grant.Epoch})
	}
}

// assertAgain is the time between two writes of the state key: etcd may refuse each at once, as a
// full one does, and somebody may undo each.
const assertAgain = time.Second

// assertMode writes the mode again if it must be, unless we may have been declared
// dead: then the registrar decides first.
func (a *agent) assertMode() {
	v := a.keeper.View()
	if !a.reassert || a.reasserting || a.clock() < a.assertFrom || a.undecided() || v.Phase != lease.Holding || v.FailureStreak > 0 || a.circumstances(a.known).Holds(recovery.Assert) {
		return
	}
	a.reasserting, a.assertFrom = true, a.clock().Add(assertAgain)
	m, guard := a.mode, a.stateGuard
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, 5*time.Second)
		defer cancel()
		rev, err := a.putState(ctx, *registration.StateOf(m), guard)
		a.tell(a.life0, func() {
			a.reasserting = false
			switch {
			case a.stateGuard != guard:
				// The key changed again meanwhile; that is to be written against.
			case err == nil:
				a.modeRev, a.reassert = max(a.modeRev, rev), false
			case errors.Is(err, cluster.ErrChanged):
				a.reassert = false // the watch brings what changed
			default:
				a.log.Warn("state key not written, trying again", "err", err)
			}
		})
	})
}

// decisionStatus is nil for an outage that the registration outlived: the mode comes from a
// decision before it.
func decisionStatus(d recovery.Decision) *control.DecisionStatus {
	if d.Row == "" || d.Row == recovery.RowSurvived {
		return nil
	}
	return &control.DecisionStatus{Row: string(d.Row), Why: d.Detail, Otherwise: recovery.Otherwise(d.Row)}
}

// decidedBy is an event with the row that decided, and what would have made it another.
func decidedBy(d recovery.Decision) control.Event {
	return control.Event{Detail: d.Detail, Row: string(d.Row), Otherwise: recovery.Otherwise(d.Row)}
}

// decideMode takes up the mode of a decision that stands in etcd at that revision. told: the
// event before says already what would have made it another.
func (a *agent) decideMode(d recovery.Decision, revision int64, told bool) {
	decided := decisionStatus(d)
	if decided == nil && a.decided != nil && d.Mode == a.memory.ModeRecord() {
		decided = a.decided // a sidecar before this one took that decision
	}
	why := decidedBy(d)
	if told {
		why.Otherwise = ""
	}
	changed := d.Mode != a.mode || d.Write // the watch may have shown our own write before
	a.takeMode(d.Mode, revision, why)
	switch {
	case !changed, d.Mode.Mode != recovery.Drained, d.Mode.By != recovery.ByHoldfast:
	case d.Suspect != nil:
		a.log.Warn("the broker is drained until it is known whether other brokers lived on: nothing is to be done", "reason", string(d.Mode.Reason), "detail", d.Detail)
	default:
		a.log.Warn("the broker is drained and waits for an operator: find out why, then 'holdfast activate'", "reason", string(d.Mode.Reason))
	}
	if a.decided = decided; decided != a.memory.Decided {
		a.remember(func(m *memory) { m.Decided = decided })
	}
}
