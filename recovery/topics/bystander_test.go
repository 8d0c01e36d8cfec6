package topics

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/testseed"
	"holdfast/recovery"
)

// idleStore refuses to be written to.
type idleStore struct{ writes atomic.Int64 }

func (s *idleStore) Take(context.Context, int64, []recovery.Take) ([]string, error) {
	s.writes.Add(1)
	return nil, nil
}

func (s *idleStore) Give(context.Context, int64, []recovery.Give) ([]string, error) {
	s.writes.Add(1)
	return nil, nil
}

func (*idleStore) Yield([]string)          {}
func (*idleStore) Yielded(string) bool     { return false }
func (*idleStore) Yields() <-chan struct{} { return nil }

// newBystander is a placer among other brokers, of a cluster with so many topics. All are
// assigned to others but the last share of them, to nobody, which have their homes elsewhere.
func newBystander(topics, unassigned int, me func() string) (p *Placer, store *idleStore, free []Assignment) {
	store = &idleStore{}
	p = NewPlacer(PlacerSettings{Me: me, Move: true, Absence: 32 * time.Second}, store, store, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	brokers := brokerNames(20)
	ring := recovery.NewRendezvous(brokers)
	var records []string
	var places []Assignment
	for i := 0; len(records) < topics; i++ {
		key := fmt.Sprintf("/cluster/brokers/broker-000/some-namespace/topic-%06d", i)
		topic := key[len("/cluster/brokers/broker-000"):]
		home := ring.Home(topic)
		if home == brokers[0] {
			continue
		}
		records = append(records, topic)
		a := Assignment{topic, recovery.Place{Broker: home, CreateRevision: int64(i + 1), ModRevision: int64(i + 1)}}
		if len(records) > topics-unassigned {
			free = append(free, a)
		} else {
			places = append(places, a)
		}
	}
	p.Update(func(r *Roster, now time.Time) {
		r.SetRegistered(true, brokers, nil, now)
		r.SetModes(true, nil, nil, now)
		setTopics(r, true, records, nil)
		setPlaces(r, true, places, nil)
	})
	p.SetOrders(PlacerOrders{Epoch: 1, Attached: true})
	return p, store, free
}

func bystander() string { return "broker-000" }

// wantWoken takes the wish to be placed anew, which is there already.
func (p *Placer) wantWoken(t *testing.T) {
	t.Helper()
	select {
	case <-p.wake:
	default:
		t.Fatal("not woken")
	}
}

func TestWhatOthersAreGivenIsNoReasonToPlaceAllTopicsAnew(t *testing.T) {
	p, store, free := newBystander(2_000, 500, bystander)
	p.once(t.Context())
	before := p.plan
	p.wantWoken(t)
	for _, a := range free {
		p.Update(func(r *Roster, _ time.Time) { setPlaces(r, false, []Assignment{a}, nil) })
	}
	for _, a := range free { // and to another of them
		to := a
		to.Place.Broker, to.Place.CreateRevision = "broker-019", 1_000_000
		p.Update(func(r *Roster, _ time.Time) { setPlaces(r, false, []Assignment{to}, []Assignment{a}) })
	}
	woken := len(p.wake) > 0
	if p.once(t.Context()); woken || p.plan != before || store.writes.Load() != 0 {
		t.Errorf("woken: %v; placed anew: %v; %d writes", woken, p.plan != before, store.writes.Load())
	}
	ours := ""
	for i, ring := 0, recovery.NewRendezvous(brokerNames(20)); ring.Home(ours) != bystander(); i++ {
		ours = fmt.Sprintf("/n/ours-%d", i)
	}
	a := []Assignment{{ours, recovery.Place{Broker: "gone", CreateRevision: 1}}}
	p.Update(func(r *Roster, _ time.Time) { setPlaces(r, false, a, nil) })
	p.wantWoken(t) // it is to be taken later
	p.once(t.Context())
	p.Update(func(r *Roster, _ time.Time) { setTopics(r, false, []string{ours}, nil); setPlaces(r, false, nil, a) })
	p.wantWoken(t) // and now
	before = p.plan
	p.Update(func(r *Roster, now time.Time) { r.SetRegistered(false, nil, []string{"broker-019"}, now) })
	if p.once(t.Context()); len(p.wake) == 0 || p.plan == before {
		t.Error("a broker went, and the placement is the one with it")
	}
}

// What is kept is what would be decided from the beginning, whatever has changed in which
// order.
func TestAKeptPlacementIsTheSameAsANewOne(t *testing.T) {
	random := testseed.New(t)
	topics, brokers := topicNames(30), brokerNames(5)
	anyOf := func(list []string) string { return list[random.IntN(len(list))] }
	for range 20 {
		now := time.Unix(1_000_000, 0)
		move, me := random.IntN(2) == 0, brokers[0]
		started, mode := now, recovery.Mode("")
		r, revision := NewRoster(), int64(0)
		var kept *recovery.Placing
		place := func() Assignment {
			revision++
			return Assignment{anyOf(topics), recovery.Place{Broker: anyOf(brokers), CreateRevision: revision, ModRevision: revision}}
		}
		for step := range 300 {
			full := random.IntN(20) == 0
			switch random.IntN(20) { // brokers change seldom, so that a placement is kept for a while
			case 0:
				r.SetRegistered(full, []string{anyOf(brokers), me}, []string{anyOf(brokers)}, now)
			case 1:
				r.SetModes(full, map[string]recovery.Mode{anyOf(brokers): []recovery.Mode{recovery.Active, recovery.Drained, recovery.Unreadable}[random.IntN(3)]}, nil, now)
			case 2:
				setTopics(r, full, []string{anyOf(topics), anyOf(topics)}, []string{anyOf(topics)})
			case 3, 4:
				setPlaces(r, full, nil, []Assignment{place()})
			case 5:
				now = now.Add(time.Duration(random.IntN(12_000)) * time.Millisecond)
			case 6:
				if random.IntN(5) == 0 { // detached and attached again
					started = now
				}
			case 7:
				mode = []recovery.Mode{"", recovery.Active, recovery.Drained}[random.IntN(3)]
			default:
				setPlaces(r, full, []Assignment{place(), place()}, nil)
			}
			f := recovery.PlacementFacts{Now: now, Me: me, Mode: mode, Move: move, Started: started, Absence: 20 * time.Second}
			kept = r.keep(kept, f)
			f.Peers, f.Topics = r.peers, map[string][]recovery.Place{}
			for topic, known := range r.topics {
				f.Topics[topic] = known.places
			}
			got, want := kept.Placement(), f.Place()
			// It may look again for a topic that does not wait any more.
			if !got.Again.IsZero() && (want.Again.IsZero() || got.Again.Before(want.Again)) && got.Again.After(now) {
				got.Again = want.Again
			}
			if len(got.Take)+len(want.Take) > 0 && !reflect.DeepEqual(got.Take, want.Take) || len(got.Give)+len(want.Give) > 0 && !reflect.DeepEqual(got.Give, want.Give) || got.Again != want.Again {
				t.Fatalf("step %d: kept %+v\nnew %+v", step, got, want)
			}
		}
	}
}

// A list that comes in parts is another cluster's until its end: half of the topics may have
// their old places still, and a topic that moved may have two.
func TestNothingIsPlacedWhileAListIsReadInParts(t *testing.T) {
	for _, c := range []struct {
		name             string
		begin, part, end func(r *Roster)
	}{
		{"assignments", (*Roster).ListPlaces, func(r *Roster) {
			r.AddPlaces([]Assignment{{"/n/t", recovery.Place{Broker: "broker-001", CreateRevision: 9, ModRevision: 9}}})
		}, (*Roster).EndPlaces},
		{"records", (*Roster).ListTopics, func(r *Roster) { r.AddTopics([]string{"/n/t"}) }, (*Roster).EndTopics},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, store, _ := newBystander(10, 5, bystander)
			p.Update(func(r *Roster, now time.Time) { r.SetRegistered(true, []string{bystander()}, nil, now.Add(-time.Hour)) })
			change := func(f func(*Roster)) { p.Update(func(r *Roster, _ time.Time) { f(r) }) }
			for _, step := range []func(*Roster){c.begin, c.part, c.part} {
				change(step)
				if p.once(t.Context()); store.writes.Load() != 0 || !p.started.IsZero() {
					t.Error("placed in the middle of a list, or began to count")
				}
				if _, placed := p.place(time.Now(), time.Now(), ""); placed { // it was complete a moment ago
					t.Error("placed with a part of a list")
				}
			}
			change(c.begin) // it failed, and begins anew
			change(c.part)
			p.wantWoken(t)
			change(c.end)
			if len(p.wake) == 0 {
				t.Error("not woken by the end of the list")
			}
			if p.once(t.Context()); store.writes.Load() != 1 {
				t.Errorf("%d writes of what nobody has", store.writes.Load())
			}
		})
	}
}

func TestAListReplacesWhatWasKnown(t *testing.T) {
	r := NewRoster()
	setTopics(r, true, []string{"/n/kept", "/n/gone"}, nil)
	setPlaces(r, true, []Assignment{{"/n/kept", recovery.Place{Broker: "a", CreateRevision: 1, ModRevision: 1}}, {"/n/moved", recovery.Place{Broker: "a", CreateRevision: 2, ModRevision: 2}}, {"/n/twice", recovery.Place{Broker: "a", CreateRevision: 3, ModRevision: 3}}, {"/n/twice", recovery.Place{Broker: "b", CreateRevision: 4, ModRevision: 4}}, {"/n/lost", recovery.Place{Broker: "b", CreateRevision: 5, ModRevision: 5}}}, nil)
	r.ListPlaces() // fails after a part of it
	r.AddPlaces([]Assignment{{"/n/twice", recovery.Place{Broker: "c", CreateRevision: 6, ModRevision: 6}}})
	r.ListPlaces()
	r.AddPlaces([]Assignment{{"/n/moved", recovery.Place{Broker: "b", CreateRevision: 7, ModRevision: 7}}, {"/n/twice", recovery.Place{Broker: "b", CreateRevision: 4, ModRevision: 4}}})
	r.AddPlaces([]Assignment{{"/n/twice", recovery.Place{Broker: "d", CreateRevision: 8, ModRevision: 8}}, {"/n/new", recovery.Place{Broker: "d", CreateRevision: 9, ModRevision: 9}}})
	r.EndPlaces()
	r.ListTopics()
	r.AddTopics([]string{"/n/kept"})
	r.EndTopics()
	want := map[string][]recovery.Place{"/n/kept": nil, "/n/moved": {{Broker: "b", CreateRevision: 7, ModRevision: 7}}, "/n/twice": {{Broker: "b", CreateRevision: 4, ModRevision: 4}, {Broker: "d", CreateRevision: 8, ModRevision: 8}}, "/n/new": {{Broker: "d", CreateRevision: 9, ModRevision: 9}}}
	got := map[string][]recovery.Place{}
	for topic, known := range r.topics {
		got[topic] = known.places
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestOrdersDoNotWaitForAPlacement(t *testing.T) {
	p, _, _ := newBystander(10, 0, bystander)
	computing, done, ordered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go p.Update(func(*Roster, time.Time) { close(computing); <-done }) // holds what a placement holds
	<-computing
	go func() {
		p.SetOrders(PlacerOrders{})
		p.Giving()
		close(ordered)
	}()
	select {
	case <-ordered:
	case <-time.After(10 * time.Second):
		t.Error("the orders wait")
	}
	close(done)
}

func TestWhatWasComputedUnderOlderOrdersIsNotWritten(t *testing.T) {
	var p *Placer
	orders := func() {}
	p, store, free := newBystander(10, 5, func() string { orders(); return "broker-000" })
	p.Update(func(r *Roster, now time.Time) { // so that they are ours to take
		r.SetRegistered(true, []string{bystander()}, nil, now.Add(-time.Hour))
	})
	was := PlacerOrders{Epoch: 1, Attached: true}
	for _, during := range [][]PlacerOrders{{{Epoch: 2}}, {{Epoch: 3, Attached: true}}, {{}, was}} {
		p.SetOrders(was)
		orders = func() {
			orders = func() {}
			for _, o := range during {
				p.SetOrders(o)
			}
		}
		if p.once(t.Context()); store.writes.Load() != 0 {
			t.Errorf("%+v while it was computed, and written", during)
		}
	}
	p.SetOrders(PlacerOrders{Epoch: 4, Attached: true})
	if p.once(t.Context()); store.writes.Load() != 1 {
		t.Errorf("%d writes of %d topics that nobody has", store.writes.Load(), len(free))
	}
}

func TestAPlacerRestsTenTimesAsLongAsItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const work = 20 * time.Millisecond
		placed := 0
		p, _, _ := newBystander(10, 0, func() string { time.Sleep(work); placed++; return "broker-000" })
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.Run(ctx)
		}()
		for ctx.Err() == nil {
			p.poke()
			time.Sleep(time.Millisecond)
		}
		<-ended
		if most := int(11*time.Second/(work+placeRest*work)) + 1; placed > most || placed < most/2 {
			t.Errorf("placed %d times in 11 s, want about %d", placed, most)
		}
	})
}

// The limit is for the whole process; this is what the roster and the placement hold.
func TestAHundredThousandTopicsFitInFarLessThan50MB(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p, _, _ := newBystander(100_000, 2_000, bystander)
	p.once(t.Context())
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := float64(after.HeapAlloc-before.HeapAlloc) / 1e6; held > 15 {
		t.Errorf("%.1f MB", held)
	} else {
		t.Logf("%.1f MB", held)
	}
	runtime.KeepAlive(p)
}
