package recovery

import (
	"slices"
	"time"
)

// Roster is the cluster as a placement needs it: who is registered, in which mode, and
// which topic is assigned to whom. It is put together from four views that come one by
// one; nothing may be placed before all of them have. It is not safe for concurrent use.
type Roster struct {
	peers  map[string]Peer
	topics map[string]bool
	places map[string][]Place // by topic
	seen   struct{ registered, modes, places, topics bool }
}

// NewRoster is an empty roster.
func NewRoster() *Roster {
	return &Roster{peers: map[string]Peer{}, topics: map[string]bool{}, places: map[string][]Place{}}
}

// Complete reports whether every view came at least once: before that, what is not here
// may still be there.
func (r *Roster) Complete() bool {
	return r.seen.registered && r.seen.modes && r.seen.places && r.seen.topics
}

// SetRegistered takes a change of who is registered; full replaces the whole set.
func (r *Roster) SetRegistered(full bool, puts, deletes []string, now time.Time) {
	set := func(id string, registered bool) {
		r.change(id, r.seen.registered, now, func(p *Peer) {
			if p.Registered && !registered {
				p.Left = now
			}
			p.Registered = registered
		})
	}
	if full {
		for id, p := range r.peers {
			if p.Registered && !slices.Contains(puts, id) {
				set(id, false)
			}
		}
	}
	for _, id := range deletes {
		set(id, false)
	}
	for _, id := range puts {
		set(id, true)
	}
	r.seen.registered = true
}

// SetModes takes a change of brokers' modes; full replaces them all.
func (r *Roster) SetModes(full bool, puts map[string]Mode, deletes []string, now time.Time) {
	set := func(id string, m Mode) {
		r.change(id, r.seen.modes, now, func(p *Peer) { p.Mode = m })
	}
	if full {
		for id, p := range r.peers {
			if _, ok := puts[id]; !ok && p.Mode != "" {
				set(id, "")
			}
		}
	}
	for _, id := range deletes {
		set(id, "")
	}
	for id, m := range puts {
		set(id, m)
	}
	r.seen.modes = true
}

// change changes a peer, and dates the change if it happened before our eyes.
func (r *Roster) change(id string, watched bool, now time.Time, f func(*Peer)) {
	p := r.peers[id]
	before := p
	f(&p)
	if p == before {
		return
	}
	if watched {
		p.Since = now
	}
	r.peers[id] = p
}

// Assignment is a place and the topic that has it.
type Assignment struct {
	Topic string
	Place Place
}

// SetPlaces takes a change of assignments; full replaces them all. Of deletes only topic
// and broker count.
func (r *Roster) SetPlaces(full bool, puts, deletes []Assignment) {
	if full {
		clear(r.places)
	}
	for _, d := range append(deletes, puts...) {
		left := slices.DeleteFunc(r.places[d.Topic], func(p Place) bool { return p.Broker == d.Place.Broker })
		if len(left) == 0 {
			delete(r.places, d.Topic)
		} else {
			r.places[d.Topic] = left
		}
	}
	for _, a := range puts {
		r.places[a.Topic] = append(r.places[a.Topic], a.Place)
	}
	r.seen.places = true
}

// SetTopics takes a change of the topics that there are; full replaces them all.
func (r *Roster) SetTopics(full bool, puts, deletes []string) {
	if full {
		clear(r.topics)
	}
	for _, topic := range deletes {
		delete(r.topics, topic)
	}
	for _, topic := range puts {
		r.topics[topic] = true
	}
	r.seen.topics = true
}

// facts is the roster as a placement's input. A topic that is assigned is known, with or
// without a record.
func (r *Roster) facts() (peers map[string]Peer, topics map[string][]Place) {
	topics = make(map[string][]Place, len(r.topics)+len(r.places))
	for topic := range r.topics {
		topics[topic] = nil
	}
	for topic, places := range r.places {
		topics[topic] = places
	}
	return r.peers, topics
}
