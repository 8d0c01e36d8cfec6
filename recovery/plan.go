package recovery

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// SettleTime is how long a topic must have been unassigned before it is taken for
// an orphan: a reassignment is often a delete and a put a moment apart.
const SettleTime = time.Second

// Orders are what the reconciler acts under. Any change to them ends the work that
// was begun under the old ones.
type Orders struct {
	Epoch    int64 // create revision of the registration
	Mode     Mode
	Attached bool
	Instance string // the broker's process; a new one starts a new startup reconciliation
	Paused   bool   // a person asked that no topic be loaded or quiesced
	// Steering is how far a broker with a mode of its own has taken Mode. One that is not
	// active refuses topics, or sends them on; one that is being drained gives them up.
	Steering Steering
}

// PlanFacts are what is known about one topic.
type PlanFacts struct {
	Assigned bool // a key in etcd says that it belongs here
	Serving  bool // clients can use it here
	Quiesced bool // it is here and quiesced
	Lost     bool // it was assigned here and is not any more, and we did not give it away
	Held     bool // it is being moved: neither loaded nor taken for a stray
	Claim    Claim

	AssignedAt   time.Time // when Assigned last became true; zero: before we looked
	UnassignedAt time.Time // since when it is known not to be assigned; zero while it is
}

// Orphan reports whether clients can use it here, and it does not belong here.
func (f PlanFacts) Orphan() bool { return f.Serving && !f.Assigned }

// Foreign reports whether clients can use it here, and another broker has it.
func (f PlanFacts) Foreign() bool { return f.Serving && f.Claim.Foreign() }

// Quarantined reports whether it is kept here for nobody.
func (f PlanFacts) Quarantined() bool { return f.Quiesced && !f.Assigned && !f.Held }

func (f PlanFacts) unloads() bool { return f.Serving && f.Claim.Unloads() }

// Counts counts topics. Assigned = Served + Missing; no topic is in two of Served,
// Missing, Orphan and Quarantined.
type Counts struct {
	Assigned    int
	Served      int // assigned here and served here
	Missing     int // assigned here and not served here
	Orphan      int // served here and not assigned here
	Quarantined int // quiesced here and not assigned here, nor here by a move

	// Parts of the above, by their locks.
	Elsewhere int // missing, because another broker holds the lock for longer than we retry, or a move the topic
	Foreign   int // served here although another broker holds the lock
}

// Add counts a topic so many times; -1 takes it out again.
func (c *Counts) Add(f PlanFacts, by int) {
	switch {
	case f.Foreign():
		c.Foreign += by
	case f.Assigned && !f.Serving && (f.Claim == ClaimElsewhere || f.Held):
		c.Elsewhere += by
	}
	switch {
	case f.Assigned && f.Serving:
		c.Assigned += by
		c.Served += by
	case f.Assigned:
		c.Assigned += by
		c.Missing += by
	case f.Serving:
		c.Orphan += by
	case f.Quarantined():
		c.Quarantined += by
	}
}

// Halt says why a plan asks for nothing.
type Halt string

// The reasons to do nothing at all.
const (
	HaltNone        Halt = ""
	HaltDetached    Halt = "detached"                 // safety rule 9
	HaltAssignments Halt = "assignments not yet read" // safety rule 4
	HaltMoves       Halt = "moves not yet read"       // safety rule 4
	HaltBroker      Halt = "broker not yet listed"    // safety rule 10
	HaltPaused      Halt = "paused"                   // by a person, for a time; what another broker owns is quiesced all the same
)

// PlanInput is everything that a plan rests on.
type PlanInput struct {
	Now    time.Time
	Orders Orders

	Assigns       bool // the broker's own cluster assigns its topics: what it lists is wanted
	AssignedKnown bool // the whole set of assignments was read at least once
	MovesUnknown  bool // it is not known which topics are being moved
	ServedKnown   bool // the broker was listed under these orders

	// Topics yields every topic of which anything is known, each once.
	Topics iter.Seq2[string, PlanFacts]

	MassChange MassChange    // as the last plan returned it
	Window     time.Duration // within which losses of assignments are added up
	Share      float64       // of topics, above which a sudden loss is not believed; 0: off
}

// Work is what a plan asks for. Both lists are sorted and no topic is in both.
type Work struct {
	Hold    Halt
	Load    []string
	Quiesce []string
	Counts  Counts
	// MassChange is to be handed to the next plan.
	MassChange MassChange
	// Again is when the same facts give another plan; zero: never.
	Again time.Time
}

// Plan decides what brings the broker to what etcd asks of it. It costs one pass
// over the topics. The rules are DESIGN, Reconciliation:
//
//   - nothing happens while detached, before the assignments were read, or before
//     the broker was listed;
//   - active: missing topics are loaded, with ownership locks only those whose lock is
//     ours; active and draining: orphans that have settled are quiesced, unless too many
//     lost their assignment at once;
//   - what another broker owns is quiesced at once: its lock says that it is served there,
//     so neither the settle time nor the guard has anything to protect; the same holds for
//     what we ourselves give to another;
//   - drained: everything that is served is quiesced, and no guard applies, since a
//     person or a recovery asked for it;
//   - a broker with a mode of its own is given topics when it has taken active, and is left
//     to give them up by itself until it has taken drained, or failed to. One whose cluster
//     assigns its topics is drained in no other way;
//   - a topic that is being moved is neither loaded nor taken for a stray: it is the move's;
//   - paused: nothing happens but to what another broker owns, and the guard watches on.
func Plan(in PlanInput) Work {
	w := Work{MassChange: in.MassChange}
	tally := massTally{since: in.MassChange.Since(in.Now, in.Window)}
	var load, orphans, serving, unload, foreign []string
	var again time.Time
	settled := in.Now.Add(-SettleTime)
	drained := in.Orders.Mode == Drained
	for topic, f := range in.Topics {
		w.Counts.Add(f, 1)
		counted := f
		counted.Serving = f.Serving && !f.unloads()
		tally.add(counted, in.MassChange.ConfirmedAt)
		if f.Foreign() {
			foreign = append(foreign, topic)
		}
		switch {
		case drained:
			if f.Serving {
				serving = append(serving, topic)
			}
		case f.unloads():
			unload = append(unload, topic)
		case f.Assigned && !f.Serving:
			if f.Claim.Loads() && !f.Held {
				load = append(load, topic)
			}
		case !f.Orphan() || f.Held:
		case f.UnassignedAt.After(settled):
			if at := f.UnassignedAt.Add(SettleTime); again.IsZero() || at.Before(again) {
				again = at
			}
		default:
			orphans = append(orphans, topic)
		}
	}

	switch {
	case !in.Orders.Attached:
		w.Hold = HaltDetached
		return w
	case !in.AssignedKnown:
		w.Hold = HaltAssignments
		return w
	case in.MovesUnknown:
		w.Hold = HaltMoves
		return w
	case !in.ServedKnown:
		w.Hold = HaltBroker
		return w
	case drained && !in.Orders.Paused:
		w.MassChange = in.MassChange.released()
		if in.Orders.Steering != SteerPending && !(in.Assigns && in.Orders.Steering != SteerNone) {
			w.Quiesce = serving
		}
		slices.Sort(w.Quiesce)
		return w
	}

	if !drained {
		w.MassChange = in.MassChange.judge(tally, in.Share) // what goes during a pause is believed no sooner
	}
	if in.Orders.Paused {
		w.Hold = HaltPaused
		w.Quiesce = foreign
		slices.Sort(w.Quiesce)
		return w
	}
	if !w.MassChange.Tripped() {
		w.Quiesce = orphans
		w.Again = again
	}
	w.Quiesce = append(w.Quiesce, unload...)
	slices.Sort(w.Quiesce)
	if in.Orders.Mode == Active && in.Orders.Steering.Obeys() {
		w.Load = load
		slices.Sort(w.Load)
	}
	return w
}

// Holdings is what a broker serves that was never registered here, and whose it is.
type Holdings struct {
	Serving []string
	// Assigned is to which brokers each of these topics is assigned.
	Assigned map[string][]string
	// Any: some topic of the cluster is assigned to somebody. Without any, an assignment
	// that is missing says nothing.
	Any bool
}

// holdingsNamed is how many topics a sentence names.
const holdingsNamed = 3

// Strange is what the broker of that id must not serve, in words for an operator; empty if
// there is nothing: topics of others, and topics of nobody once there are assignments.
func (h Holdings) Strange(self string) string {
	var theirs, nobodys []string
	for _, topic := range slices.Sorted(slices.Values(h.Serving)) {
		switch to := h.Assigned[topic]; {
		case slices.Contains(to, self):
		case len(to) > 0:
			theirs = append(theirs, fmt.Sprintf("%s (of %s)", topic, strings.Join(to, ", ")))
		case h.Any:
			nobodys = append(nobodys, topic)
		}
	}
	var parts []string
	if len(theirs) > 0 {
		parts = append(parts, fmt.Sprintf("%d assigned to others: %s", len(theirs), some(theirs)))
	}
	if len(nobodys) > 0 {
		parts = append(parts, fmt.Sprintf("%d assigned to nobody: %s", len(nobodys), some(nobodys)))
	}
	return strings.Join(parts, "; ")
}

// some are the first of a list, for a sentence.
func some(list []string) string {
	if len(list) > holdingsNamed {
		return strings.Join(list[:holdingsNamed], ", ") + ", …"
	}
	return strings.Join(list, ", ")
}
