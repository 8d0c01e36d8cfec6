package recovery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// PlacementSettle is how long the set of brokers must have been the same before
// topics are placed by it: whoever restarts a cluster changes it several times.
const PlacementSettle = 2 * time.Second

// Peer is a broker of the cluster, this one included.
type Peer struct {
	Registered bool
	Mode       Mode // empty: no state is known, which reads as active
	// Since is when Registered or Mode last changed before our eyes; zero: it never did.
	Since time.Time
	// Left is when it last lost its registration before our eyes; zero: it never did.
	Left time.Time
}

func (p Peer) takes() bool { return p.Registered && (p.Mode == Active || p.Mode == "") }

// Place is an assignment of a topic to a broker.
type Place struct {
	Broker         string
	CreateRevision int64
	ModRevision    int64
}

// PlacementFacts is what a placement rests on.
type PlacementFacts struct {
	Now     time.Time
	Me      string
	Mode    Mode // of this broker, which is registered, as its own sidecar has it; empty: as Peers have it
	Peers   map[string]Peer
	Topics  map[string][]Place // every topic of the cluster; no place: nobody has it
	Move    bool               // topics may leave a broker by themselves (--failover move)
	Carried bool               // those of a living broker may, because their data goes with them
	Started time.Time          // when we began to look, attached and with every view of the cluster
	// Absence is how long a broker that we did not see leave since then may still be on
	// its way: after a restart of the whole cluster, or a loss of all its leases at once,
	// the first one to come sees only itself.
	Absence time.Duration
}

// Take is a topic to be assigned here, from nobody or from a broker that is gone.
type Take struct {
	Topic string
	From  Place // zero: nobody has it
}

// Give is a topic of ours whose home is another broker. It is handed over after it was
// unloaded here.
type Give struct {
	Topic string
	Mine  Place
	To    string // empty: it has another place already, which is older
	Has   string // with To empty: the broker of that place
}

// Placement is what one sidecar has to do about it. Lists are sorted by topic.
type Placement struct {
	Take []Take
	Give []Give
	// Again is when the same facts give another placement; zero: never.
	Again time.Time // when to begin anew; zero: when a broker comes or goes
}

// Place decides which topics this sidecar takes and which it gives away, under
// rendezvous assignment. Every sidecar computes it for itself, over the brokers that
// are registered and active:
//
//   - a topic that nobody has goes to its home;
//   - a topic of a living broker stays there, unless Move or Carried is set and its home
//     is another: then its broker gives it away;
//   - a topic of a broker that is gone waits for it, or with Move goes to its home;
//   - of two places of one topic the older stands, and the younger is given up; without
//     Move not before the older's broker is there, since until then it could serve nobody:
//     that is how a person moves a topic off a broker that is gone.
//
// It decides nothing while the set of brokers has not settled, or is older than what this broker is
// itself. That two sidecars with
// different views take the same topic is prevented where it is written down.
func (f PlacementFacts) Place() Placement {
	p := f.Begin()
	for topic, places := range f.Topics {
		p.Place(topic, places)
	}
	return p.Placement()
}

// Placing is a placement that is kept: when the places of a topic change, that topic alone
// is decided anew. It holds for the brokers that it began with, until again. It is not safe
// for concurrent use.
type Placing struct {
	PlacementFacts
	ring  Rendezvous
	waits bool            // nothing is decided with these brokers, or not yet
	takes bool            // this broker may take topics
	Again time.Time       // when to begin anew; zero: when a broker comes or goes
	take  map[string]Take // by topic
	give  map[string]Give
	Done  *Placement // nil: a topic was decided anew since
}

// Begin decides what is the same for all topics.
func (f PlacementFacts) Begin() *Placing {
	p := &Placing{PlacementFacts: f, take: map[string]Take{}, give: map[string]Give{}}
	var active []string
	settled := true
	for id, peer := range f.Peers {
		if !peer.Since.IsZero() && p.later(peer.Since.Add(PlacementSettle)) {
			settled = false
		}
		if peer.takes() {
			active = append(active, id)
		}
	}
	me := f.Peers[f.Me]
	stale := f.Mode != "" && (f.Mode == Active) != me.takes() // who gave what is his by such a view would be given it again
	if p.waits = !settled || stale || len(active) == 0 || me.Mode == Unreadable; !p.waits {
		p.ring, p.takes = NewRendezvous(active), me.takes()
	}
	return p
}

// later reports whether a moment is yet to come; then the placement is another.
func (p *Placing) later(at time.Time) bool {
	if !at.After(p.Now) {
		return false
	}
	if p.Again.IsZero() || at.Before(p.Again) {
		p.Again = at
	}
	return true
}

// Place decides about one topic.
func (p *Placing) Place(topic string, places []Place) {
	if p.waits {
		return
	}
	p.Leave(topic)
	mine := slices.IndexFunc(places, func(pl Place) bool { return pl.Broker == p.Me })
	holder, ok := oldest(places)
	switch {
	case !ok:
		if p.takes && p.ring.Home(topic) == p.Me {
			p.takeTopic(Take{Topic: topic})
		}
	case mine >= 0 && holder.Broker != p.Me:
		if p.Move || p.Peers[holder.Broker].Registered {
			p.giveTopic(Give{Topic: topic, Mine: places[mine], Has: holder.Broker})
		}
	case !p.Move && !p.Carried:
	case mine >= 0:
		if home := p.ring.Home(topic); home != p.Me {
			p.giveTopic(Give{Topic: topic, Mine: holder, To: home})
		}
	case !p.Move:
	case p.takes && !p.Peers[holder.Broker].Registered && p.ring.Home(topic) == p.Me:
		if p.Peers[holder.Broker].Left.After(p.Started) || !p.later(p.Started.Add(p.Absence)) {
			p.takeTopic(Take{Topic: topic, From: holder})
		}
	}
}

func (p *Placing) takeTopic(t Take) { p.take[t.Topic], p.Done = t, nil }
func (p *Placing) giveTopic(g Give) { p.give[g.Topic], p.Done = g, nil }

// Leave drops what was decided about a topic.
func (p *Placing) Leave(topic string) {
	_, takes := p.take[topic]
	_, gives := p.give[topic]
	if takes || gives {
		delete(p.take, topic)
		delete(p.give, topic)
		p.Done = nil
	}
}

// Placement is what was decided. It does not change when a topic is decided anew.
func (p *Placing) Placement() Placement {
	if p.Done == nil {
		p.Done = &Placement{
			Take: slices.SortedFunc(maps.Values(p.take), func(a, b Take) int { return strings.Compare(a.Topic, b.Topic) }),
			Give: slices.SortedFunc(maps.Values(p.give), func(a, b Give) int { return strings.Compare(a.Topic, b.Topic) }),
		}
	}
	p.Done.Again = p.Again
	return *p.Done
}

// oldest is the place that stands, the same for everybody who asks.
func oldest(places []Place) (Place, bool) {
	var first Place
	for _, pl := range places {
		if first.Broker == "" || cmp.Or(cmp.Compare(pl.CreateRevision, first.CreateRevision), strings.Compare(pl.Broker, first.Broker)) < 0 {
			first = pl
		}
	}
	return first, first.Broker != ""
}
