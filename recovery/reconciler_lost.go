package recovery

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
