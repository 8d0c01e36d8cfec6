package agent

import "holdfast/recovery"

// DecisionStatus is the start or outage that the present mode comes from: which row of the
// table decided, why that one, and what would have made it another.
type DecisionStatus struct {
	Row       string `json:"row"` // the reason that the row gives, or kept, reconnected
	Why       string `json:"why"`
	Otherwise string `json:"otherwise"`
}

// decisionStatus is nil for an outage that the registration outlived: the mode comes from a
// decision before it.
func decisionStatus(d recovery.Decision) *DecisionStatus {
	if d.Row == "" || d.Row == recovery.RowSurvived {
		return nil
	}
	return &DecisionStatus{Row: string(d.Row), Why: d.Detail, Otherwise: recovery.Otherwise(d.Row)}
}

// decidedBy is an event with the row that decided, and what would have made it another.
func decidedBy(d recovery.Decision) Event {
	return Event{Detail: d.Detail, Row: string(d.Row), Otherwise: recovery.Otherwise(d.Row)}
}

// decideMode takes up the mode of a decision that stands in etcd at that revision. told: the
// event before says already what would have made it another.
func (a *agent) decideMode(d recovery.Decision, revision int64, told bool) {
	decided := decisionStatus(d)
	if decided == nil && a.decided != nil && d.Mode == a.memory.mode() {
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
	case d.Review:
		a.log.Warn("the broker is drained until it is known whether other brokers lived on: nothing is to be done", "reason", string(d.Mode.Reason), "detail", d.Detail)
	default:
		a.log.Warn("the broker is drained and waits for an operator: find out why, then 'holdfast activate'", "reason", string(d.Mode.Reason))
	}
	if a.decided = decided; decided != a.memory.Decided {
		a.remember(func(m *memory) { m.Decided = decided })
	}
}

// mode is the mode that is remembered; zero: none was decided yet.
func (m memory) mode() recovery.ModeRecord {
	return recovery.ModeRecord{Mode: recovery.Mode(m.Mode), Reason: recovery.Reason(m.Reason), By: m.By}
}
