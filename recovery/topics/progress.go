package topics

import (
	"cmp"
	"slices"
	"time"

	"holdfast/recovery"
)

// What opened the startup gate.
const (
	GateComplete    = "complete"     // every assigned topic that can be was served, and no other
	GateLoadTimeout = "load-timeout" // nothing was done for LoadTimeout; topics are missing or too many
)

// Progress is the reconciliation at one moment. Assigned = Served + Missing.
type Progress struct {
	recovery.Counts
	Loading    int // being loaded now
	Failed     int // topics whose last load or quiesce failed
	Unreadable int // entries of the broker's list that are no name here: left alone

	// Reconciled is the startup gate: clients may come. It closes when the broker
	// process is another, on detachment, and when drained.
	Reconciled   bool
	GateOpenedBy string // GateComplete, GateLoadTimeout, or empty while closed

	GuardTripped bool
	GuardDetail  string // one sentence with the next step; empty if not tripped

	AssignedKnown bool // the assignments were read
	ServedKnown   bool // this broker process was listed

	Whole       int64     // store revision at which everything assigned was last served; see SetWhole
	LastSuccess time.Time // when the broker last was as etcd asks; zero: never
	LastError   string    // of the last failure since LastSuccess
}

// The states of TopicState.
const (
	TopicServed      = "served"
	TopicMissing     = "missing"
	TopicLoading     = "loading"
	TopicOrphan      = "orphan"
	TopicQuarantined = "quarantined"
	TopicElsewhere   = "held_elsewhere" // assigned, and another broker holds the lock
	TopicForeign     = "foreign_owner"  // served here although another broker holds the lock
	TopicUnreadable  = "unreadable"     // served, or may be, under what is no name here
)

// TopicState is one topic; Error is why its last call failed, or who holds its lock.
type TopicState struct{ Topic, State, Error string }

// Snapshot is the progress now. Its cost does not depend on the number of topics.
func (r *Reconciler) Snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{
		Counts:  r.counts,
		Loading: r.load.loads, Failed: len(r.failed), Unreadable: len(r.list.unreadable),
		Reconciled: r.gate.openedBy != "", GateOpenedBy: r.gate.openedBy,
		GuardTripped: r.mass.Tripped(), GuardDetail: r.mass.Detail(),
		AssignedKnown: r.assignedKnown, ServedKnown: r.list.ever,
		Whole: r.lost.whole, LastSuccess: r.success, LastError: r.lastErr,
	}
	if !r.assignedKnown { // nothing is known not to be ours
		p.Orphan, p.Quarantined = 0, 0
	}
	return p
}

// Topics is every topic that is assigned, served or quiesced here, by name.
func (r *Reconciler) Topics() []TopicState {
	r.mu.Lock()
	states := make([]TopicState, 0, len(r.table))
	for _, t := range r.table {
		if s := t.state(r.assignedKnown); s != "" {
			states = append(states, TopicState{Topic: t.name, State: s, Error: t.message()})
		}
	}
	for _, name := range r.list.unreadable {
		states = append(states, TopicState{Topic: name, State: TopicUnreadable, Error: "this is no /namespace/topic: it is served as it is and left alone"})
	}
	r.mu.Unlock()
	slices.SortFunc(states, func(a, b TopicState) int { return cmp.Compare(a.Topic, b.Topic) })
	return states
}

// message is why a topic is not as it should be; empty if nothing is known.
func (t *topic) message() string {
	if t.err == "" && t.Claim.Foreign() {
		return "the ownership lock is held by " + t.owner
	}
	if t.err == "" && t.Held {
		return "it is being moved: 'holdfast moves' says how far"
	}
	return t.err
}

func (t *topic) state(assignedKnown bool) string {
	switch {
	case t.Foreign():
		return TopicForeign
	case t.Assigned && t.Claim.Foreign():
		return TopicElsewhere
	case t.Assigned && t.Serving:
		return TopicServed
	case t.Assigned && t.phase == phaseFlying && t.want == actLoad:
		return TopicLoading
	case t.Assigned:
		return TopicMissing
	case t.Orphan() && assignedKnown:
		return TopicOrphan
	case t.Quarantined() && assignedKnown:
		return TopicQuarantined
	case t.Serving:
		return TopicServed
	default:
		return ""
	}
}

// gate holds readiness back until the startup reconciliation is done.
type gate struct {
	openedBy string
	progress time.Time // the last load, or the start; zero: not started
}

func (g *gate) close() { *g = gate{} }

// judgeGate opens the gate if it is time to.
func (r *Reconciler) judgeGate(now time.Time) {
	if r.gate.openedBy != "" || !r.list.fresh || !r.assignedKnown || !r.movesKnown || r.orders.Mode != recovery.Active {
		return
	}
	if (r.orders.Paused || !r.orders.Steering.Obeys()) && r.counts.Missing > 0 ||
		r.orders.Paused && r.counts.Orphan > 0 && !r.mass.Tripped() {
		r.gate.progress = time.Time{} // nothing may be loaded or quiesced: that is no lack of progress
		return
	}
	if r.gate.progress.IsZero() {
		r.gate.progress = now
	}
	switch {
	case r.awaited() == 0 && r.counts.Foreign == 0 && (r.counts.Orphan == 0 || r.mass.Tripped()):
		// A broker that was away may still serve what was given to another meanwhile.
		// Orphans that the guard keeps wait for a person, and clients need not.
		r.gate.openedBy = GateComplete
		r.log.Info("startup reconciliation done", "topics", r.counts.Assigned, "missing", r.counts.Missing, "epoch", r.orders.Epoch)
	case !now.Before(r.gate.progress.Add(r.settings.LoadTimeout)):
		r.gate.openedBy = GateLoadTimeout
		first := cmp.Or(r.firstFailed(), r.lastErr, "no topic has failed yet")
		r.log.Warn("startup reconciliation is incomplete; the loaded topics are let through",
			"missing", r.counts.Missing, "of", r.counts.Assigned, "orphans", r.counts.Orphan,
			"without_progress", r.settings.LoadTimeout, "first_error", first, "epoch", r.orders.Epoch)
	default:
		return
	}
	r.changed(now)
}

// awaited is how many missing topics the gate waits for: not for those that another broker or a
// move has, and not for those that cannot load before somebody mends something.
func (r *Reconciler) awaited() int {
	n := r.counts.Missing - r.counts.Elsewhere
	for t := range r.failed {
		if t.refused && t.Assigned && t.want == actLoad {
			n--
		}
	}
	return n
}

// gateDue is when judgeGate must look again; zero: never.
func (r *Reconciler) gateDue() time.Time {
	if r.gate.openedBy != "" || r.gate.progress.IsZero() || r.orders.Mode != recovery.Active {
		return time.Time{}
	}
	return r.gate.progress.Add(r.settings.LoadTimeout)
}

// changeSpacing is the shortest time between two signals on Changes.
const changeSpacing = 100 * time.Millisecond

// changed tells whoever listens, now or as soon as the spacing allows.
func (r *Reconciler) changed(now time.Time) {
	if r.changePending {
		return
	}
	if now.Sub(r.lastChange) < changeSpacing {
		r.changePending = true
		r.wakeBy(r.lastChange.Add(changeSpacing))
		return
	}
	r.signalChange(now)
}

func (r *Reconciler) signalChange(now time.Time) {
	r.lastChange, r.changePending = now, false
	signal(r.changes)
}

// wakeBy wakes the loop now if it would otherwise sleep past t.
func (r *Reconciler) wakeBy(t time.Time) {
	if t.Before(r.armed) {
		r.poke()
	}
}
