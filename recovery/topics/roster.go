package topics

import (
	"slices"
	"strings"
	"time"
	"unique"

	"holdfast/recovery"
)

// Roster is the cluster as a placement needs it: who is registered, in which mode, and
// which topic is assigned to whom. It is put together from four views that come one by
// one; nothing may be placed before all of them have. It is not safe for concurrent use.
//
// It holds every topic of the cluster, and no more of the keys that they came in than it needs:
// about 130 bytes for each, with a name of 25.
type Roster struct {
	peers  map[string]recovery.Peer
	topics map[string]*placed // those that have a record or a place
	seen   struct{ registered, modes, places, topics bool }
	// What changed since it was last taken into account.
	changed bool            // brokers, or topics that were listed anew
	touched map[string]bool // topics, unless changed
}

// placed is what is known of a topic. There may be a hundred thousand.
type placed struct {
	places   []recovery.Place
	recorded bool
	// Since a list began, these are in it.
	placeListed, recordListed bool
}

// NewRoster is an empty roster.
func NewRoster() *Roster {
	return &Roster{peers: map[string]recovery.Peer{}, topics: map[string]*placed{}, touched: map[string]bool{}, changed: true}
}

// Complete reports whether every view came at least once: before that, what is not here
// may still be there.
func (r *Roster) Complete() bool {
	return r.seen.registered && r.seen.modes && r.seen.places && r.seen.topics
}

// SetRegistered takes a change of who is registered; full replaces the whole set.
func (r *Roster) SetRegistered(full bool, puts, deletes []string, now time.Time) {
	set := func(id string, registered bool) {
		r.change(id, r.seen.registered, now, func(p *recovery.Peer) {
			if p.Registered && !registered {
				p.Left = now
			}
			p.Registered = registered
		})
	}
	if full {
		for id := range r.peers {
			if !slices.Contains(puts, id) {
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
func (r *Roster) SetModes(full bool, puts map[string]recovery.Mode, deletes []string, now time.Time) {
	set := func(id string, m recovery.Mode) {
		r.change(id, r.seen.modes, now, func(p *recovery.Peer) { p.Mode = m })
	}
	if full {
		for id := range r.peers {
			if _, ok := puts[id]; !ok {
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
func (r *Roster) change(id string, watched bool, now time.Time, f func(*recovery.Peer)) {
	p := r.peers[id]
	before := p
	f(&p)
	if p == before {
		return
	}
	if watched {
		p.Since = now
	}
	r.peers[id], r.changed = p, true
}

// Assignment is a place and the topic that has it.
type Assignment struct {
	Topic string
	Place recovery.Place
}

// SetPlaces takes a change of assignments. Of deletes only topic and broker count.
func (r *Roster) SetPlaces(puts, deletes []Assignment) {
	for _, d := range deletes {
		if t := r.topics[d.Topic]; t != nil {
			t.without(d.Place.Broker)
			r.settle(d.Topic, t)
		}
	}
	for _, a := range puts {
		r.topic(a.Topic).put(a.Place)
	}
}

// ListPlaces begins a list of all assignments, which comes in parts. The roster is not
// complete before its end: what it holds meanwhile was never so at one time.
func (r *Roster) ListPlaces() {
	r.seen.places, r.changed = false, true
	for _, t := range r.topics {
		t.placeListed = false
	}
}

// AddPlaces takes a part of the list.
func (r *Roster) AddPlaces(part []Assignment) {
	for _, a := range part {
		t := r.topic(a.Topic)
		if !t.placeListed {
			t.places, t.placeListed = nil, true
		}
		t.put(a.Place)
	}
}

// EndPlaces ends the list: what is not in it is not assigned.
func (r *Roster) EndPlaces() {
	for topic, t := range r.topics {
		if !t.placeListed {
			t.places = nil
			r.settle(topic, t)
		}
	}
	r.seen.places = true
}

// SetTopics takes a change of the topics that there are.
func (r *Roster) SetTopics(puts, deletes []string) {
	for _, topic := range deletes {
		if t := r.topics[topic]; t != nil {
			t.recorded = false
			r.settle(topic, t)
		}
	}
	for _, topic := range puts {
		r.topic(topic).recorded = true
	}
}

// ListTopics begins a list of all topics that there are, see ListPlaces.
func (r *Roster) ListTopics() {
	r.seen.topics, r.changed = false, true
	for _, t := range r.topics {
		t.recordListed = false
	}
}

// AddTopics takes a part of the list.
func (r *Roster) AddTopics(part []string) {
	for _, topic := range part {
		t := r.topic(topic)
		t.recorded, t.recordListed = true, true
	}
}

// EndTopics ends the list: what is not in it has no record.
func (r *Roster) EndTopics() {
	for topic, t := range r.topics {
		t.recorded = t.recordListed
		r.settle(topic, t)
	}
	r.seen.topics = true
}

func (t *placed) without(broker string) {
	t.places = slices.DeleteFunc(t.places, func(p recovery.Place) bool { return p.Broker == broker })
}

func (t *placed) put(p recovery.Place) {
	t.without(p.Broker)
	p.Broker = unique.Make(p.Broker).Value() // brokers are few
	t.places = append(t.places, p)
}

// topic is what is known of a topic, which has a record or a place from now on. The name may
// be part of a long key, which must not live as long as the topic.
func (r *Roster) topic(name string) *placed {
	t := r.topics[name]
	if t == nil {
		t = &placed{}
		r.topics[strings.Clone(name)] = t
	}
	r.touch(name)
	return t
}

// settle forgets a topic that has neither record nor place.
func (r *Roster) settle(topic string, t *placed) {
	if !t.recorded && len(t.places) == 0 {
		delete(r.topics, topic)
	}
	r.touch(topic)
}

func (r *Roster) touch(topic string) {
	if !r.changed {
		r.touched[strings.Clone(topic)] = true
	}
}

// keep brings a placement up to date, nil for none yet, and returns it.
func (r *Roster) keep(p *recovery.Placing, f recovery.PlacementFacts) *recovery.Placing {
	f.Peers = r.peers
	if !r.changed && p.Started.Equal(f.Started) && p.Mode == f.Mode && (p.Again.IsZero() || f.Now.Before(p.Again)) {
		r.follow(p, f.Now)
		return p
	}
	p = f.Begin()
	for topic, t := range r.topics {
		p.Place(topic, t.places)
	}
	r.changed = false
	clear(r.touched)
	return p
}

// follow decides anew about the topics alone whose places have changed, and reports whether
// the placement is another. When topics move between others it is not.
func (r *Roster) follow(p *recovery.Placing, now time.Time) (another bool) {
	if r.changed {
		return true
	}
	before := p.Again
	p.Now = now
	for topic := range r.touched {
		if t, known := r.topics[topic]; known {
			p.Place(topic, t.places)
		} else {
			p.Leave(topic)
		}
	}
	clear(r.touched)
	return p.Done == nil || !p.Again.Equal(before)
}
