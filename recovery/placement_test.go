package recovery

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"holdfast/internal/raced"
	"holdfast/internal/testseed"
)

func TestHomesAreTheSameInEveryVersion(t *testing.T) {
	ring := NewRendezvous([]string{"n3", "n1", "n2", "n1"})
	for topic, want := range map[string]string{"/default/a": "n2", "/default/b": "n2", "/default/c": "n3", "/orders/eu": "n3", "/orders/us": "n1"} {
		if got := ring.Home(topic); got != want {
			t.Errorf("home of %s is %s, was %s", topic, got, want)
		}
	}
	if got := NewRendezvous(nil).Home("/default/a"); got != "" {
		t.Errorf("without brokers: %q", got)
	}
}

func TestHomesAreSpreadEvenly(t *testing.T) {
	count := map[string]int{}
	ring := NewRendezvous(brokerNames(10))
	for _, topic := range topicNames(10_000) {
		count[ring.Home(topic)]++
	}
	for b, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%s is the home of %d of 10,000 topics, of which a tenth is 1,000", b, n)
		}
	}
}

func TestABrokerThatComesOrGoesMovesOnlyItsOwnTopics(t *testing.T) {
	random := testseed.New(t)
	for range 20 {
		brokers := brokerNames(2 + random.IntN(100))
		gone := brokers[random.IntN(len(brokers))]
		rest := without(brokers, gone)
		with, less := NewRendezvous(brokers), NewRendezvous(rest)
		moved := 0
		for range 1000 {
			topic := fmt.Sprintf("/ns%d/t%d", random.IntN(9), random.Uint64())
			before, after := with.Home(topic), less.Home(topic)
			if before != gone && before != after {
				t.Fatalf("without %s of %d, %s moves from %s to %s", gone, len(brokers), topic, before, after)
			}
			if before == gone {
				moved++
			}
		}
		if moved == 1000 {
			t.Errorf("all topics were at %s of %d", gone, len(brokers))
		}
	}
}

// The homes of these topics among n1, n2 and n3, and without n3, are what they are
// called.
const (
	n1Topic   = "/orders/us"
	n2Topic   = "/default/a"
	n3ToOther = "/default/c"
)

func TestPlacement(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	home := NewRendezvous([]string{"n1", "n2"}).Home(n3ToOther) // when n3 is away
	other := map[string]string{"n1": "n2", "n2": "n1"}[home]
	at := func(broker string, create int64) Place {
		return Place{Broker: broker, CreateRevision: create, ModRevision: create}
	}
	all := func() map[string]Peer {
		return map[string]Peer{"n1": {Registered: true, Mode: Active}, "n2": {Registered: true, Mode: Active}, "n3": {Registered: true, Mode: Active}}
	}
	change := func(id string, p Peer) map[string]Peer {
		m := all()
		m[id] = p
		return m
	}
	long, lately := now.Add(-time.Minute), now.Add(-5*time.Second)
	for _, c := range []struct {
		name   string
		me     string
		peers  map[string]Peer
		topics map[string][]Place
		move   bool
		begun  time.Time
		want   Placement
	}{
		{"a topic that nobody has goes to its home", "n2", all(), map[string][]Place{n2Topic: nil}, false, long,
			Placement{Take: []Take{{Topic: n2Topic}}}},
		{"and to nobody else", "n1", all(), map[string][]Place{n2Topic: nil}, true, long, Placement{}},
		{"not to a broker that is drained", "n2", change("n2", Peer{Registered: true, Mode: Drained}), map[string][]Place{n2Topic: nil}, true, long, Placement{}},
		{"not to a broker that is not registered", "n2", change("n2", Peer{}), map[string][]Place{n2Topic: nil}, true, long, Placement{}},
		{"a missing state reads as active", "n2", change("n2", Peer{Registered: true}), map[string][]Place{n2Topic: nil}, false, long,
			Placement{Take: []Take{{Topic: n2Topic}}}},
		{"one that cannot be read is no licence", "n2", change("n2", Peer{Registered: true, Mode: Unreadable}), map[string][]Place{n2Topic: nil}, false, long, Placement{}},
		{"nor a reason to give all away", "n1", change("n1", Peer{Registered: true, Mode: Unreadable}), map[string][]Place{n1Topic: {at("n1", 5)}}, true, long, Placement{}},
		{"hold: a living broker keeps what it has", "n1", all(), map[string][]Place{n2Topic: {at("n1", 5)}}, false, long, Placement{}},
		{"move: it gives away what has another home", "n1", all(), map[string][]Place{n2Topic: {at("n1", 5)}}, true, long,
			Placement{Give: []Give{{Topic: n2Topic, Mine: at("n1", 5), To: "n2"}}}},
		{"move: nobody takes from the living", "n2", all(), map[string][]Place{n2Topic: {at("n1", 5)}}, true, long, Placement{}},
		{"move: a drained broker gives away all", "n1", change("n1", Peer{Registered: true, Mode: Drained}), map[string][]Place{n1Topic: {at("n1", 5)}}, true, long,
			Placement{Give: []Give{{Topic: n1Topic, Mine: at("n1", 5), To: NewRendezvous([]string{"n2", "n3"}).Home(n1Topic)}}}},
		{"hold: a drained broker keeps all", "n1", change("n1", Peer{Registered: true, Mode: Drained}), map[string][]Place{n1Topic: {at("n1", 5)}}, false, long, Placement{}},
		{"move: the home takes from the dead", home, change("n3", Peer{Since: lately, Left: lately}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-10 * time.Second),
			Placement{Take: []Take{{n3ToOther, at("n3", 5)}}}},
		{"move: and nobody else does", other, change("n3", Peer{Since: lately, Left: lately}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-10 * time.Second), Placement{}},
		{"hold: the dead keep what they had", home, change("n3", Peer{Since: long}), map[string][]Place{n3ToOther: {at("n3", 5)}}, false, long, Placement{}},
		{"a change must settle", home, change("n3", Peer{Since: now.Add(-time.Second)}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, long,
			Placement{Again: now.Add(time.Second)}},
		{"one that was never seen may be on its way", home, change("n3", Peer{}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-10 * time.Second),
			Placement{Again: now.Add(22 * time.Second)}},
		{"so may one that went before we were attached, with us", home, change("n3", Peer{Since: long, Left: long}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-10 * time.Second),
			Placement{Again: now.Add(22 * time.Second)}},
		{"and one whose mode alone has changed", home, change("n3", Peer{Mode: Drained, Since: lately}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-10 * time.Second),
			Placement{Again: now.Add(22 * time.Second)}},
		{"but not for ever", home, change("n3", Peer{}), map[string][]Place{n3ToOther: {at("n3", 5)}}, true, now.Add(-32 * time.Second),
			Placement{Take: []Take{{n3ToOther, at("n3", 5)}}}},
		{"of two places the younger is given up", "n1", all(), map[string][]Place{n1Topic: {at("n1", 7), at("n2", 5)}}, false, long,
			Placement{Give: []Give{{Topic: n1Topic, Mine: at("n1", 7), Has: "n2"}}}},
		{"of two places of one age everybody gives up the same", "n1", all(), map[string][]Place{n1Topic: {at("n1", 5), at("n0", 5)}}, true, long,
			Placement{Give: []Give{{Topic: n1Topic, Mine: at("n1", 5), Has: "n0"}}}},
		{"hold: not while the broker of the older is away", "n1", change("n2", Peer{Since: long}), map[string][]Place{n1Topic: {at("n1", 7), at("n2", 5)}}, false, long, Placement{}},
		{"move: also then, for the home to take it whole", "n1", change("n2", Peer{Since: long}), map[string][]Place{n1Topic: {at("n1", 7), at("n2", 5)}}, true, long,
			Placement{Give: []Give{{Topic: n1Topic, Mine: at("n1", 7), Has: "n2"}}}},
		{"and the older stands", "n2", all(), map[string][]Place{n2Topic: {at("n1", 7), at("n2", 5)}}, true, long, Placement{}},
		{"nobody active: nothing moves", "n1", map[string]Peer{"n1": {Registered: true, Mode: Drained}}, map[string][]Place{n1Topic: {at("n1", 5)}, n2Topic: nil}, true, long, Placement{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := PlacementFacts{Now: now, Me: c.me, Peers: c.peers, Topics: c.topics, Move: c.move,
				Started: c.begun, Absence: 32 * time.Second}.Place()
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// A watch may be behind: by a view in which this broker is not yet what it is, or is not any more what
// it was, it would give away what the next view, or another broker's, gives back.
func TestAViewThatIsBehindOnesOwnStandingPlacesNothing(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	active, drained := Peer{Registered: true, Mode: Active}, Peer{Registered: true, Mode: Drained}
	for _, c := range []struct {
		name   string
		seen   Peer
		mode   Mode
		placed bool
	}{
		{"as it is", active, Active, true},
		{"not registered yet", Peer{}, Active, false},
		{"not lifted yet", drained, Active, false},
		{"a state that is missing reads as active", Peer{Registered: true}, Active, true},
		{"not drained yet", active, Drained, false},
		{"drained", drained, Drained, true},
		{"drained, and not registered yet: it takes nothing either way", Peer{Mode: Drained}, Draining, true},
		{"it is not told what it is", drained, "", true},
	} {
		f := PlacementFacts{Now: now, Me: "n1", Mode: c.mode, Move: true, Started: now.Add(-time.Hour), Absence: 32 * time.Second,
			Peers:  map[string]Peer{"n1": c.seen, "n2": active, "n3": active},
			Topics: map[string][]Place{n2Topic: {{Broker: "n1", CreateRevision: 5, ModRevision: 5}}}}
		if got := f.Place(); (len(got.Give) > 0) != c.placed {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func brokerNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("broker-%03d", i))
	}
	return names
}

func topicNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("/ns%d/topic-%d", i%7, i))
	}
	return names
}

func without(list []string, one string) []string {
	var rest []string
	for _, s := range list {
		if s != one {
			rest = append(rest, s)
		}
	}
	return rest
}

// fleetFacts is a fleet whose topics are all at home, seen by me, when one broker has
// just gone.
func fleetFacts(me, gone string) PlacementFacts {
	now := time.Unix(1_000_000, 0)
	names := brokerNames(100)
	ring := NewRendezvous(names)
	f := PlacementFacts{Now: now, Me: me, Move: true, Started: now.Add(-time.Hour), Absence: 32 * time.Second,
		Peers: map[string]Peer{}, Topics: map[string][]Place{}}
	for _, b := range names {
		f.Peers[b] = Peer{Registered: b != gone, Mode: Active, Since: now.Add(-time.Minute)}
	}
	for i, topic := range topicNames(10_000) {
		f.Topics[topic] = []Place{{Broker: ring.Home(topic), CreateRevision: int64(i + 1), ModRevision: int64(i + 1)}}
	}
	return f
}

func TestOneOfAHundredBrokersLeavesAndOnlyItsTopicsMove(t *testing.T) {
	if raced.Enabled {
		t.Skip("too slow with the race detector, which sees the same code in other tests")
	}
	gone := "broker-042"
	var taken, orphaned int
	for topic := range fleetFacts("", gone).Topics {
		if NewRendezvous(brokerNames(100)).Home(topic) == gone {
			orphaned++
		}
	}
	for _, me := range without(brokerNames(100), gone) {
		p := fleetFacts(me, gone).Place()
		if len(p.Give) > 0 {
			t.Fatalf("%s gives away %v", me, p.Give)
		}
		for _, take := range p.Take {
			if take.From.Broker != gone {
				t.Fatalf("%s takes %s from %s", me, take.Topic, take.From.Broker)
			}
		}
		taken += len(p.Take)
	}
	if taken != orphaned || orphaned == 0 {
		t.Errorf("%d topics lost their broker, %d found another", orphaned, taken)
	}
}

// BenchmarkPlacementOneOfAHundredLeaves is the plan of one sidecar; baseline is one
// bare pass over the same topics.
func BenchmarkPlacementOneOfAHundredLeaves(b *testing.B) {
	f := fleetFacts("broker-007", "broker-042")
	b.Run("baseline=pass", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for range f.Topics {
				n++
			}
		}
	})
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			f.Place()
		}
	})
	b.Run("plan=all-homeless", func(b *testing.B) {
		g := f
		g.Topics = map[string][]Place{}
		for topic := range f.Topics {
			g.Topics[topic] = nil
		}
		for b.Loop() {
			g.Place()
		}
	})
}
