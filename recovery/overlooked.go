package recovery

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// maxWakes is how many topics are woken in one round. A broker's cluster assigns each of
// them, and the brokers load them, at once.
const maxWakes = 16

// Marker says that a topic waits for a broker.
type Marker struct {
	Topic       string
	ModRevision int64
}

// sighting is a marker and since when it has stood as it is.
type sighting struct {
	revision int64
	since    time.Time
}

// Overlooked remembers the markers that nobody takes. The zero one knows of none.
type Overlooked map[string]sighting

// WakeFacts is what waking follows from.
type WakeFacts struct {
	Now      time.Time
	Leads    bool          // our broker is its cluster's leader, whose business the markers are
	Taker    bool          // some broker is registered and active
	Markers  []Marker      // that there are
	Patience time.Duration // that a marker is given to be taken
}

// Next decides which markers are put again, so that the leader's watch shows them to it.
// Those that stand for longer than the patience, unchanged, were overlooked: they were there
// before the watch. The oldest come first, at most maxWakes in a round. Without a broker
// that could take them they would only come back.
//
// Only the leader's own sidecar wakes, so that one does; one whose broker does not lead, or
// has led for less than the patience, has seen nothing yet.
func (o Overlooked) Next(f WakeFacts) (Overlooked, []Marker) {
	if !f.Leads {
		return nil, nil
	}
	next := make(Overlooked, len(f.Markers))
	var due []Marker
	for _, m := range f.Markers {
		s, known := o[m.Topic]
		if !known || s.revision != m.ModRevision {
			s = sighting{m.ModRevision, f.Now}
		}
		next[m.Topic] = s
		if f.Taker && f.Now.Sub(s.since) > f.Patience {
			due = append(due, m)
		}
	}
	slices.SortFunc(due, func(a, b Marker) int {
		return cmp.Or(next[a.Topic].since.Compare(next[b.Topic].since), cmp.Compare(a.Topic, b.Topic))
	})
	return next, due[:min(len(due), maxWakes)]
}

// without forgets the markers that were put again: they are others now.
func (o Overlooked) without(woken []Marker) Overlooked {
	o = maps.Clone(o)
	for _, m := range woken {
		delete(o, m.Topic)
	}
	return o
}
