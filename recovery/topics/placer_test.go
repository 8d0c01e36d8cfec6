package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

// placerFleet is a store of assignments and locks, and the brokers that place by it. It
// is strict: a topic whose lock is held goes to nobody.
type placerFleet struct {
	t       *testing.T
	move    bool
	telling sync.Mutex // as a watch does, nobody is told what is old after what is new
	mu      sync.Mutex
	rev     int64
	places  map[string]recovery.Place // by topic
	locks   map[string]string         // by topic
	brokers map[string]*placerBroker
	away    bool // the store fails
	moved   int
	carry   func(from string, g recovery.Give) error
	topics  []string
	log     strings.Builder // read it when all are stopped
	logger  *slog.Logger    // one, which writes in turn
	orders  PlacerOrders    // of brokers that are started
	told    int             // sums of moves
}

type placerBroker struct {
	*Placer
	fleet    *placerFleet
	id       string
	end      context.CancelFunc
	yielding map[string]bool
	yields   chan struct{}
	most     int                     // topics that were on their way at once
	stuck    func(topic string) bool // cannot be unloaded; nil: none
}

func newPlacerFleet(t *testing.T, move bool, topics int) *placerFleet {
	f := &placerFleet{t: t, move: move, places: map[string]recovery.Place{}, locks: map[string]string{}, brokers: map[string]*placerBroker{}, topics: topicNames(topics),
		orders: PlacerOrders{Epoch: 1, Attached: true}}
	f.logger = slog.New(slog.NewTextHandler(&f.log, nil))
	return f
}

// start begins a broker. Everybody's roster follows.
func (f *placerFleet) start(id string) *placerBroker {
	b := &placerBroker{fleet: f, id: id, yielding: map[string]bool{}, yields: make(chan struct{}, 1)}
	set := PlacerSettings{Me: func() string { return id }, Move: f.move, Absence: 32 * time.Second, Moves: 4,
		Told: func(int, int, int64) { f.mu.Lock(); f.told++; f.mu.Unlock() }}
	if f.carry != nil {
		set.Carry = func(_ context.Context, g recovery.Give) error { return f.carry(id, g) }
	}
	b.Placer = NewPlacer(set, b, b, f.logger, prometheus.NewRegistry())
	f.mu.Lock()
	f.brokers[id] = b
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(f.t.Context())
	b.end = cancel
	go b.Run(ctx)
	b.SetOrders(f.orders)
	f.tell()
	return b
}

// stop ends a broker as if its lease had run out.
func (f *placerFleet) stop(id string) {
	f.mu.Lock()
	f.brokers[id].end()
	delete(f.brokers, id)
	for topic, owner := range f.locks {
		if owner == id {
			delete(f.locks, topic)
		}
	}
	f.mu.Unlock()
	f.tell()
}

// tell brings every roster up to date.
func (f *placerFleet) tell() {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	var ids []string
	var all []Assignment
	for id := range f.brokers {
		ids = append(ids, id)
	}
	for topic, p := range f.places {
		all = append(all, Assignment{topic, p})
	}
	brokers := maps.Clone(f.brokers)
	f.mu.Unlock()
	for _, b := range brokers {
		b.Update(func(r *Roster, now time.Time) {
			r.SetRegistered(true, ids, nil, now)
			r.SetModes(true, nil, nil, now)
			setPlaces(r, true, all, nil)
			setTopics(r, true, f.topics, nil)
		})
	}
}

func (b *placerBroker) Take(_ context.Context, _ int64, takes []recovery.Take) (taken []string, err error) {
	f := b.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, errors.New("the store is away")
	}
	for _, t := range takes {
		now := f.places[t.Topic]
		if now != t.From || f.locks[t.Topic] != "" || f.brokers[now.Broker] != nil {
			continue
		}
		f.rev++
		f.moved++
		f.places[t.Topic], f.locks[t.Topic] = recovery.Place{Broker: b.id, CreateRevision: f.rev, ModRevision: f.rev}, b.id
		taken = append(taken, t.Topic)
	}
	go f.tell()
	return taken, nil
}

func (b *placerBroker) Give(_ context.Context, _ int64, gives []recovery.Give) (given []string, err error) {
	f := b.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	b.most = max(b.most, len(gives))
	for _, g := range gives {
		if f.places[g.Topic] != g.Mine || f.locks[g.Topic] != "" || f.brokers[g.To] == nil {
			continue
		}
		f.rev++
		f.moved++
		f.places[g.Topic], f.locks[g.Topic] = recovery.Place{Broker: g.To, CreateRevision: f.rev, ModRevision: f.rev}, g.To // it takes the lock at once
		given = append(given, g.Topic)
	}
	go f.tell()
	return given, nil
}

// Yield takes a tenth of a second for each set of topics that are new.
func (b *placerBroker) Yield(topics []string) {
	b.fleet.mu.Lock()
	defer b.fleet.mu.Unlock()
	before := b.yielding
	b.yielding = map[string]bool{}
	fresh := 0
	for _, topic := range topics {
		b.yielding[topic] = true
		if !before[topic] {
			fresh++
		}
	}
	if fresh == 0 {
		return
	}
	time.AfterFunc(100*time.Millisecond, func() {
		b.fleet.mu.Lock()
		for _, topic := range topics {
			if b.yielding[topic] && b.fleet.locks[topic] == b.id && (b.stuck == nil || !b.stuck(topic)) {
				delete(b.fleet.locks, topic)
			}
		}
		b.fleet.mu.Unlock()
		select {
		case b.yields <- struct{}{}:
		default:
		}
	})
}

func (b *placerBroker) Yields() <-chan struct{} { return b.yields }

func (b *placerBroker) Yielded(topic string) bool {
	b.fleet.mu.Lock()
	defer b.fleet.mu.Unlock()
	return b.yielding[topic] && b.fleet.locks[topic] != b.id
}

// moves is how many topics moved since it was last asked.
func (f *placerFleet) moves() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.moved
	f.moved = 0
	return n
}

func (f *placerFleet) wantLog(text string, times int) {
	f.t.Helper()
	synctest.Wait()
	if n := strings.Count(f.log.String(), text); n != times {
		f.t.Errorf("%d times in the log, want %d: %s", n, times, text)
	}
}

func (f *placerFleet) count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for topic, p := range f.places {
		n[p.Broker]++
		if f.locks[topic] != p.Broker {
			f.t.Errorf("%s is assigned to %s and locked by %q", topic, p.Broker, f.locks[topic])
		}
	}
	return n
}

func TestPlacersShareTheTopicsOutAndMoveAsFewAsTheyMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, true, 300)
		for i := range 3 {
			f.start(fmt.Sprintf("b%d", i))
		}
		time.Sleep(time.Minute)
		first := f.count()
		if first["b0"]+first["b1"]+first["b2"] != 300 || min(first["b0"], first["b1"], first["b2"]) < 50 {
			t.Errorf("shared out as %v", first)
		}
		f.moves()
		fourth := f.start("b3")
		time.Sleep(2 * time.Minute)
		second := f.count()
		if moved := f.moves(); second["b3"] < 40 || moved != second["b3"] {
			t.Errorf("after one came: %v, %d moves", second, moved)
		}
		f.mu.Lock()
		for id, b := range f.brokers {
			if b.most > 4 {
				t.Errorf("%s gave %d topics away at once, at most 4 were allowed", id, b.most)
			}
		}
		if f.told > 12 {
			t.Errorf("%d sums, want one for each way and broker", f.told)
		}
		f.mu.Unlock()
		f.stop("b3")
		time.Sleep(time.Minute)
		moved := f.moves()
		if third := f.count(); moved != second["b3"] || third["b0"] != first["b0"] || fourth.Giving() != 0 {
			t.Errorf("after it went: %v, before it came %v; %d moves for its %d topics", third, first, moved, second["b3"])
		}
		f.stopAll()
	})
}

func (f *placerFleet) stopAll() {
	for id := range maps.Clone(f.brokers) {
		f.stop(id)
	}
}

func TestTheFirstToComeBackLeavesTheOthersTheirTopics(t *testing.T) {
	for _, c := range []struct {
		name   string
		alone  func(f *placerFleet) *placerBroker // how b0 comes to be the only one
		others bool                               // they come back in time
	}{
		{"all leases were lost at once", (*placerFleet).loseAllBut, true},
		{"the fleet was restarted, and etcd later than a sidecar", (*placerFleet).restartAlone, true},
		{"the others never come back", (*placerFleet).loseAllBut, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newPlacerFleet(t, true, 100)
				for i := range 3 {
					f.start(fmt.Sprintf("b%d", i))
				}
				time.Sleep(time.Minute)
				had := f.count()["b0"]
				f.moves()
				b := c.alone(f)
				b.SetOrders(PlacerOrders{Epoch: 2, Attached: true})
				time.Sleep(10 * time.Second)
				if c.others {
					f.start("b1")
					f.start("b2")
				}
				time.Sleep(time.Minute)
				if moved := f.moves(); c.others && moved != 0 || !c.others && moved != 100-had {
					t.Errorf("%d of %d topics of others moved", moved, 100-had)
				}
				f.stopAll()
			})
		})
	}
}

// loseAllBut has everybody lose the registration, b0 too, which is detached for a while.
func (f *placerFleet) loseAllBut() *placerBroker {
	b := f.brokers["b0"]
	b.SetOrders(PlacerOrders{})
	f.stop("b1")
	f.stop("b2")
	time.Sleep(3 * time.Second)
	return b
}

// restartAlone ends everybody and begins b0 again, which does not reach etcd for long.
func (f *placerFleet) restartAlone() *placerBroker {
	f.stopAll()
	b := f.start("b0")
	b.SetOrders(PlacerOrders{})
	time.Sleep(time.Minute)
	return b
}

func TestTopicsWithDataAreCarriedAFewAtATimeAndNeverUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, false, 60)
		asked, under, most := map[string]int{}, 0, 0
		f.carry = func(from string, g recovery.Give) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if asked[g.Topic]++; asked[g.Topic] == 1 && len(asked)%10 == 0 {
				return errors.New("a consumer is at work") // it is asked again
			}
			under++
			most = max(most, under)
			time.AfterFunc(2*time.Second, func() { // the move hands it over by itself
				f.mu.Lock()
				f.rev++
				f.places[g.Topic] = recovery.Place{Broker: g.To, CreateRevision: f.rev, ModRevision: f.rev}
				f.locks[g.Topic] = g.To
				under--
				f.mu.Unlock()
				f.tell()
			})
			return nil
		}
		f.start("b0")
		time.Sleep(time.Minute)
		f.start("b1")
		time.Sleep(5 * time.Minute)
		if n := f.count(); n["b1"] < 10 || n["b0"]+n["b1"] != 60 || len(asked) != n["b1"] || most > 4 {
			t.Errorf("placed %v, %d carried, %d at once", n, len(asked), most)
		}
		if len(f.brokers["b0"].yielding) > 0 || f.brokers["b0"].carries(giving{}) { // what another has is only given up
			t.Errorf("unloaded: %v", f.brokers["b0"].yielding)
		}
		f.stopAll()
		f.wantLog("a consumer is at work", 1)
	})
}

func TestMovesAreSummedUp(t *testing.T) {
	for _, row := range []struct {
		since time.Duration // the last time
		over  bool
		told  int
	}{{placeTold - 1, false, 0}, {placeTold, false, 1}, {0, true, 1}} {
		told := 0
		p := NewPlacer(PlacerSettings{Told: func(taken, given int, _ int64) { told += 100 + 10*taken + given }}, nil, nil, discard(), prometheus.NewRegistry())
		now := time.Now()
		p.toldAt = now.Add(-row.since)
		p.note("taken", []string{"/n/a"}, nil)
		p.note("given", []string{"/n/b", "/n/c"}, nil)
		p.tell(now, row.over)
		p.tell(now, row.over) // there is nothing new
		if told != 112*row.told {
			t.Errorf("%s after the last time, over %v: told %d", row.since, row.over, told)
		}
	}
}

func TestTopicsThatCannotBeUnloadedStopNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, true, 100)
		b := f.start("b0")
		time.Sleep(time.Minute)
		stuck := map[string]bool{}
		f.mu.Lock()
		b.stuck = func(topic string) bool {
			if len(stuck) < 10 { // the first ones that are tried
				stuck[topic] = true
			}
			return stuck[topic]
		}
		f.mu.Unlock()
		f.start("b1")
		time.Sleep(5 * time.Minute)
		all := 0
		ring := recovery.NewRendezvous([]string{"b0", "b1"})
		for _, topic := range f.topics {
			if ring.Home(topic) == "b1" {
				all++
			}
		}
		if got := f.count()["b1"]; got != all-10 || len(stuck) != 10 {
			t.Errorf("%d topics moved of %d, of which %d cannot", got, all, len(stuck))
		}
		f.stopAll()
	})
}

func TestAPauseLeavesNoTopicHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, true, 100)
		b := f.start("b0")
		time.Sleep(time.Minute)
		f.start("b1")
		for b.Giving() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		b.SetOrders(PlacerOrders{Epoch: 1, Attached: true, Paused: true})
		time.Sleep(time.Minute) // what was on its way is unloaded meanwhile
		if n := f.count(); n["b1"] == 0 || n["b1"] > 4 {
			t.Errorf("%v; the 4 that were on their way have to be with b1, and no other", n)
		}
		b.SetOrders(PlacerOrders{Epoch: 1, Attached: true})
		time.Sleep(2 * time.Minute)
		if n := f.count(); n["b1"] < 20 {
			t.Errorf("after the pause: %v", n)
		}
		f.stopAll()
	})
}

func TestHoldingPlacersNeverMoveATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, false, 100)
		f.start("b0")
		f.start("b1")
		time.Sleep(time.Minute)
		before := f.count()
		f.moves()
		f.start("b2")
		time.Sleep(time.Minute)
		f.stop("b1")
		time.Sleep(10 * time.Minute)
		if moved := f.moves(); moved != 0 || before["b0"]+before["b1"] != 100 {
			t.Errorf("%d topics moved; placed as %v at first", moved, before)
		}
		f.stopAll()
	})
}

func TestAPlacerThatMayNotDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPlacerFleet(t, true, 10)
		f.orders.Paused = true
		b := f.start("b0")
		time.Sleep(time.Minute)
		if n := f.count(); len(n) != 0 {
			t.Errorf("paused: %v", n)
		}
		b.SetOrders(PlacerOrders{})
		time.Sleep(time.Minute)
		if n := f.count(); len(n) != 0 {
			t.Errorf("detached: %v", n)
		}
		f.mu.Lock()
		f.away = true
		f.mu.Unlock()
		b.SetOrders(PlacerOrders{Epoch: 2, Attached: true})
		time.Sleep(time.Minute)
		f.mu.Lock()
		f.away = false
		f.mu.Unlock()
		time.Sleep(2 * placeAgain)
		if n := f.count(); n["b0"] != 10 {
			t.Errorf("after the store came back: %v", n)
		}
		f.stopAll()
		f.wantLog("the store is away", 1)
		f.wantLog("placement not written", 1)
	})
}

func TestARosterDatesOnlyWhatItSawHappen(t *testing.T) {
	now := time.Unix(1000, 0)
	r := NewRoster()
	r.SetRegistered(true, []string{"a"}, nil, now)
	r.SetModes(true, map[string]recovery.Mode{"a": recovery.Drained}, nil, now)
	setPlaces(r, true, []Assignment{{"/n/t", recovery.Place{Broker: "a", CreateRevision: 1, ModRevision: 1}}}, nil)
	setTopics(r, true, []string{"/n/u"}, nil)
	if !r.Complete() || r.peers["a"].Since != (time.Time{}) {
		t.Errorf("first views: %+v", r.peers)
	}
	later := now.Add(time.Minute)
	r.SetModes(true, map[string]recovery.Mode{"a": recovery.Drained}, nil, later)
	if p := r.peers["a"]; p.Since != (time.Time{}) {
		t.Errorf("nothing happened: %+v", p)
	}
	views := []func(*Roster){
		func(r *Roster) { setPlaces(r, true, nil, nil) }, func(r *Roster) { setTopics(r, true, nil, nil) },
		func(r *Roster) { r.SetRegistered(true, nil, nil, now) }, func(r *Roster) { r.SetModes(true, nil, nil, now) },
	}
	for missing := range views {
		r := NewRoster()
		for i, view := range views {
			if i != missing {
				view(r)
			}
		}
		if _, fleet := (&Placer{roster: r}).Fleet(); r.Complete() || fleet != (missing < 2) {
			t.Errorf("%+v: complete %v, all brokers known %v", r.seen, r.Complete(), fleet)
		}
	}
	r.SetRegistered(false, nil, []string{"never"}, later)
	if len(r.peers) != 1 {
		t.Errorf("there never was another: %+v", r.peers)
	}
	r.SetRegistered(true, []string{"b"}, nil, later)
	r.SetModes(false, map[string]recovery.Mode{"b": recovery.Active}, nil, later)
	if p := r.peers["a"]; p.Registered || p.Since != later {
		t.Errorf("a went: %+v", p)
	}
	setPlaces(r, false, []Assignment{{"/n/t", recovery.Place{Broker: "b", CreateRevision: 2, ModRevision: 2}}}, []Assignment{{"/n/t", recovery.Place{Broker: "a"}}})
	if places := r.topics["/n/t"].places; len(r.topics) != 2 || !slices.Equal(places, []recovery.Place{{Broker: "b", CreateRevision: 2, ModRevision: 2}}) {
		t.Errorf("%d topics; places: %v", len(r.topics), places)
	}
}

// setPlaces is SetPlaces, and with full a whole list.
func setPlaces(r *Roster, full bool, puts, deletes []Assignment) {
	if !full {
		r.SetPlaces(puts, deletes)
		return
	}
	r.ListPlaces()
	r.AddPlaces(puts)
	r.EndPlaces()
}

func setTopics(r *Roster, full bool, puts, deletes []string) {
	if !full {
		r.SetTopics(puts, deletes)
		return
	}
	r.ListTopics()
	r.AddTopics(puts)
	r.EndTopics()
}

// Giving is how many topics are on their way to other brokers.
func (p *Placer) Giving() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.giving)
}
