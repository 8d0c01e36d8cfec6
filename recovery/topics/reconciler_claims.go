package topics

import (
	"slices"
	"time"

	"holdfast/recovery"
)

// TopicClaim is a change of one topic's ownership.
type TopicClaim struct {
	Topic string
	Claim recovery.Claim
	Owner string // who holds the lock, for people; only of a foreign one
}

// SetClaims takes changes of ownership. Before it returns, no load of a topic whose claim
// does not allow one can begin; one in flight runs out, and is undone by the next plan.
func (r *Reconciler) SetClaims(changes []TopicClaim) {
	if len(changes) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, c := range changes {
		t := r.topic(c.Topic, now)
		r.update(t, func(f *recovery.PlanFacts) { f.Claim = c.Claim })
		t.owner = c.Owner
		if !c.Claim.Loads() {
			r.setWant(t, actNone)
		}
		if t.unsure {
			r.list.askAt(now)
		}
	}
	r.planSpaced(now)
	r.changed(now)
	r.poke()
}

// SetHeld tells which topics are being moved, all of them, and which of those were handed over: no move
// serves them here. Before it returns, no load of one of
// them can begin; one in flight runs out: see Calm.
func (r *Reconciler) SetHeld(topics, parted []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.movesKnown && slices.Equal(topics, r.moving) && slices.Equal(parted, r.parted) {
		return
	}
	hold := func(names []string, held bool) {
		for _, name := range names {
			t := r.topic(name, now)
			r.update(t, func(f *recovery.PlanFacts) {
				if f.Held = held; f.Assigned {
					return
				}
				f.UnassignedAt = now // what was moved here is served before its assignment may be heard of
				if !held {
					f.Quiesced = false // what was moved away is removed before the next listing says so
				}
			})
			if held {
				r.setWant(t, actNone)
			}
		}
	}
	hold(r.moving, false)
	hold(topics, true)
	for _, name := range r.moving {
		t := r.table[name]
		t.unsure = t.unsure || !t.Held // a move may have called until now
	}
	r.movesKnown, r.moving, r.parted = true, slices.Clone(topics), slices.Clone(parted)
	r.lookAnew(now)
}

// Calm reports whether no call about the topic is under way, and whether its ownership lock, if
// there are any, lets it be served here.
func (r *Reconciler) Calm(topic string) (calm, ours bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table[topic]
	return t == nil || t.phase != phaseFlying, !r.settings.OwnershipLocks || t != nil && t.Claim.Loads()
}

// Idle returns those of the topics that clients certainly cannot use here, and that neither a load nor a
// move is under way for. Without a present view of the broker there are none; and a load
// that failed may have been carried out all the same, so the view is to be younger.
func (r *Reconciler) Idle(topics []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.list.fresh {
		return nil
	}
	var idle []string
	for _, name := range topics {
		t := r.table[name]
		_, parted := slices.BinarySearch(r.parted, name)
		if t == nil || (!t.Held || parted) && !t.Serving && !t.unsure && t.phase != phaseFlying {
			idle = append(idle, name)
		}
	}
	return idle
}

// Strays lists the topics that are served here and not assigned here.
func (r *Reconciler) Strays() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.assignedKnown || r.counts.Orphan == 0 {
		return nil
	}
	var strays []string
	for name, t := range r.table {
		if t.Orphan() {
			strays = append(strays, name)
		}
	}
	return strays
}

// Conflicts returns, once, the topics that were found to be served here and owned by
// another broker since it was last called.
func (r *Reconciler) Conflicts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	conflicts := r.conflicts
	r.conflicts = nil
	return conflicts
}

// Settlings receives a value when Idle, Strays or Conflicts may have other answers. It has
// room for one.
func (r *Reconciler) Settlings() <-chan struct{} { return r.settlings }

func (r *Reconciler) settled() {
	signal(r.settlings)
}

// lostTopics finds topics that were served here before, on this data, and are not there any
// more: the broker could not recover them, or somebody has deleted them. They are loaded as
// any other, so empty and without consumers, and that must not go unsaid.
type lostTopics struct {
	newest int64 // the youngest assignment that was told
	whole  int64 // as old as that, or older, were all that were served at one moment; 0: not known
	anew   []string
}

// SetWhole tells up to which store revision assigned topics were served on the broker's
// present data; 0: that is not known, or not of this data or store.
func (r *Reconciler) SetWhole(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost.whole = revision
	if revision == 0 {
		r.lost.newest = 0
	}
}

// SetSince tells since which store revisions topics are assigned here, of which SetAssigned
// told. Without it nothing is said of topics that were lost.
func (r *Reconciler) SetSince(topics []string, since []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, name := range topics {
		if t, ok := r.table[name]; ok {
			t.since = since[i]
		}
		r.lost.newest = max(r.lost.newest, since[i])
	}
}

// Anew returns, once, the topics that were served here before and were made anew since it was
// last called.
func (r *Reconciler) Anew() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	anew := r.lost.anew
	r.lost.anew = nil
	return anew
}

// noteAnew looks whether a topic that was loaded just now should have been there.
func (r *Reconciler) noteAnew(f flight) {
	t := f.topic
	if f.act != actLoad || t.Serving || t.Quiesced || t.since == 0 || t.since > r.lost.whole {
		return
	}
	r.lost.anew = append(r.lost.anew, t.name)
	r.metrics.anew.Inc()
	r.log.Error("a topic that was served here before was not there: it is made anew, empty and without consumers",
		"topic", t.name, "assigned_since", t.since, "epoch", r.orders.Epoch)
}
