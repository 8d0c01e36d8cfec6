package topics

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

const (
	placeTimeout = 5 * time.Second
	// placeAgain is when a placement that was not written is computed anew, at the latest.
	placeAgain = 5 * time.Second
	// giveStuck is how long a topic that cannot be given away counts as one of the few
	// that are at the same time: after it the others no longer wait for it.
	giveStuck = 30 * time.Second
	// placeTold is how far apart the lines of the log are while topics move.
	placeTold = 30 * time.Second
	// placeRest is how many times as long as it worked the placer rests, so that what
	// changes meanwhile is taken together; placeRestMost bounds it.
	placeRest     = 10
	placeRestMost = time.Second
)

// PlacementStore writes placements down. What is not as the placement saw it is left
// alone and not in the answer.
type PlacementStore interface {
	Take(ctx context.Context, epoch int64, takes []recovery.Take) (taken []string, err error)
	Give(ctx context.Context, epoch int64, gives []recovery.Give) (given []string, err error)
}

// Yielder stops serving topics that are assigned here and releases their locks.
type Yielder interface {
	// Yield replaces the set of topics to be yielded.
	Yield(topics []string)
	// Yielded reports whether the topic is neither served here nor locked by us.
	Yielded(topic string) bool
	// Yields receives a value when Yielded may have another answer.
	Yields() <-chan struct{}
}

// PlacerSettings tune the placer.
type PlacerSettings struct {
	Me      func() string // known before Run
	Move    bool          // --failover move
	Absence time.Duration // see PlacementFacts; the lease's TTL
	Moves   int           // given away at the same time; 0: 16
	// Carry begins to move a topic with its data, which ends in its being given away; nil: what is
	// given away is unloaded here, and its data stays. It is asked again while the topic stays.
	Carry func(ctx context.Context, g recovery.Give) error
	// Told hears how many topics moved, as the log does; nil: nobody. It must not block.
	Told func(taken, given int, epoch int64)
}

// PlacerOrders are what the placer acts under.
type PlacerOrders struct {
	Epoch    int64
	Mode     recovery.Mode // see PlacementFacts
	Attached bool
	Paused   bool // nothing new is taken or begun to be given
}

// Placer keeps this broker's assignments as rendezvous hashing wants them. It takes what
// has its home here, and hands over what has it elsewhere after it was unloaded here,
// a few topics at a time.
//
// Guaranteed: after SetOrders has returned, nothing is written under older orders but
// what is on its way, and that is guarded by their epoch in the store; SetOrders does not
// wait for a placement that is being computed. Not guaranteed: that two sidecars agree at
// every moment; the store decides.
type Placer struct {
	set   PlacerSettings
	store PlacementStore
	yield Yielder
	log   *slog.Logger
	moves *prometheus.CounterVec
	wake  chan struct{}

	// rosterMu is held while a placement is computed, which takes its time with many topics.
	// Who holds it never takes mu, nor the other way round.
	rosterMu sync.Mutex
	roster   *Roster
	plan     *recovery.Placing // nil: none yet

	mu      sync.Mutex
	started time.Time // when we were attached and the roster was complete; zero: not yet
	orders  PlacerOrders
	work    context.CancelFunc // ends what is on its way
	giving  map[string]giving
	failing map[string]string // last error, by direction
	untold  map[string]int    // topics that moved and the log does not have yet, by direction
	toldAt  time.Time
}

// giving is a topic on its way to another broker.
type giving struct {
	recovery.Give
	since time.Time
	asked time.Time // when it was last to be carried; zero: never
}

// NewPlacer returns a placer that does nothing until it has orders, a complete roster,
// and runs. Its methods are safe for concurrent use.
func NewPlacer(s PlacerSettings, store PlacementStore, y Yielder, log *slog.Logger, reg prometheus.Registerer) *Placer {
	s.Moves = cmp.Or(max(s.Moves, 0), 16)
	p := &Placer{set: s, store: store, yield: y, log: log, wake: make(chan struct{}, 1),
		roster: NewRoster(), giving: map[string]giving{}, failing: map[string]string{}, untold: map[string]int{}, work: func() {}}
	p.moves = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_placements_total",
		Help: "Topics that this sidecar assigned to its broker (taken) or handed to another (given) by rendezvous hashing. Growing all the time: brokers come and go, look at the fleet."}, []string{"direction"})
	for _, d := range []string{"taken", "given"} {
		p.moves.WithLabelValues(d)
	}
	reg.MustRegister(p.moves)
	return p
}

// SetOrders sets what the placer acts under. What is on its way under others is cancelled.
func (p *Placer) SetOrders(o PlacerOrders) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o == p.orders {
		return
	}
	p.orders = o
	p.work()
	if !o.Attached {
		p.started = time.Time{} // while we were away, others may have been too
		clear(p.giving)
		p.yield.Yield(nil)
	}
	p.poke()
}

// Update changes the roster. What is no news for this broker wakes nobody.
func (p *Placer) Update(change func(r *Roster, now time.Time)) {
	p.rosterMu.Lock()
	defer p.rosterMu.Unlock()
	now := time.Now()
	change(p.roster, now)
	if p.roster.follow(p.plan, now) {
		p.poke()
	}
}

func (p *Placer) poke() {
	signal(p.wake)
}

// Fleet is who is known to be in the cluster, this broker too. False: not all have been
// seen yet.
func (p *Placer) Fleet() (map[string]recovery.Peer, bool) {
	p.rosterMu.Lock()
	defer p.rosterMu.Unlock()
	return maps.Clone(p.roster.peers), p.roster.seen.registered && p.roster.seen.modes
}

// Run places until ctx ends, and then returns nil.
func (p *Placer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-p.yield.Yields():
		case <-timer.C:
		}
		again, worked := p.once(ctx)
		timer.Reset(again)
		rest(ctx, min(placeRest*worked, placeRestMost))
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// begin returns the orders, and since when we place under them; false: nothing may be
// placed. complete: the roster is.
func (p *Placer) begin(now time.Time, complete bool) (PlacerOrders, time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.orders.Attached || !complete {
		return PlacerOrders{}, time.Time{}, false
	}
	if p.started.IsZero() {
		p.started = now
	}
	return p.orders, p.started, true
}

func (p *Placer) complete() bool {
	p.rosterMu.Lock()
	defer p.rosterMu.Unlock()
	return p.roster.Complete()
}

// place is the placement as of now; false: a list has begun meanwhile.
func (p *Placer) place(now, started time.Time, mode recovery.Mode) (recovery.Placement, bool) {
	p.rosterMu.Lock()
	defer p.rosterMu.Unlock()
	if !p.roster.Complete() {
		return recovery.Placement{}, false
	}
	p.plan = p.roster.keep(p.plan, recovery.PlacementFacts{Now: now, Me: p.set.Me(), Mode: mode, Move: p.set.Move, Carried: p.set.Carry != nil, Started: started, Absence: p.set.Absence})
	return p.plan.Placement(), true
}

// once is one placement; it returns when the next is due without any news, and for how long
// it was at it without waiting for the store.
func (p *Placer) once(ctx context.Context) (again, worked time.Duration) {
	now := time.Now()
	o, started, ok := p.begin(now, p.complete())
	if !ok {
		return time.Hour, time.Since(now)
	}
	var plan recovery.Placement
	if !o.Paused { // else what was unloaded already is handed over: here nobody would load it again
		if plan, ok = p.place(now, started, o.Mode); !ok {
			return time.Hour, time.Since(now)
		}
	}
	p.mu.Lock()
	if p.orders != o || !p.started.Equal(started) {
		p.mu.Unlock()
		return 0, time.Since(now) // under other orders
	}
	if !o.Paused {
		p.chooseGives(plan.Give, now)
	}
	p.tell(now, len(plan.Take)+len(p.giving) == 0)
	ready := p.readyGives()
	underway := len(p.giving) > 0
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	p.work = cancel
	p.mu.Unlock()
	defer cancel()
	worked = time.Since(now)

	next := time.Hour
	if !plan.Again.IsZero() {
		next = plan.Again.Sub(now)
	}
	if underway { // unserved until it is given: not for the want of a signal
		next = min(next, placeAgain)
	}
	if len(plan.Take) > 0 {
		taken, err := p.store.Take(ctx, o.Epoch, plan.Take)
		p.note("taken", taken, err)
		next = min(next, placeAgain)
	}
	if err := p.carry(ctx); err != nil {
		p.note("given", nil, err)
	}
	if len(ready) > 0 {
		given, err := p.store.Give(ctx, o.Epoch, ready)
		p.note("given", given, err)
		p.gave(given)
		next = min(next, placeAgain)
	}
	return next, worked
}

// chooseGives keeps what is under way and still wanted, and fills up to the limit, which
// those that are stuck do not use up. The caller holds the mutex.
func (p *Placer) chooseGives(wanted []recovery.Give, now time.Time) {
	keep := make(map[string]giving, p.set.Moves)
	moving := 0
	for topic, under := range p.giving {
		if i, ok := slices.BinarySearchFunc(wanted, topic, func(g recovery.Give, t string) int { return strings.Compare(g.Topic, t) }); ok {
			keep[topic] = giving{wanted[i], under.since, under.asked}
			if now.Sub(under.since) < giveStuck {
				moving++
			}
		}
	}
	for _, g := range wanted {
		if moving >= p.set.Moves {
			break
		}
		if _, ok := keep[g.Topic]; !ok {
			keep[g.Topic] = giving{Give: g, since: now}
			moving++
		}
	}
	p.giving = keep
	var unloaded []string
	for _, topic := range slices.Sorted(maps.Keys(keep)) {
		if !p.carries(keep[topic]) {
			unloaded = append(unloaded, topic)
		}
	}
	p.yield.Yield(unloaded)
}

// carries reports whether a topic goes with its data. What another has already does not.
func (p *Placer) carries(g giving) bool { return p.set.Carry != nil && g.To != "" }

// carry has topics moved with their data, those again that have not gone for giveStuck.
func (p *Placer) carry(ctx context.Context) (failed error) {
	now := time.Now()
	p.mu.Lock()
	var due []recovery.Give
	for topic, g := range p.giving {
		if p.carries(g) && now.Sub(g.asked) > giveStuck {
			g.asked = now
			p.giving[topic] = g
			due = append(due, g.Give)
		}
	}
	p.mu.Unlock()
	for _, g := range due {
		failed = cmp.Or(p.set.Carry(ctx, g), failed)
	}
	return failed
}

// readyGives are those that are not served here any more. The caller holds the mutex.
func (p *Placer) readyGives() []recovery.Give {
	var ready []recovery.Give
	for _, topic := range slices.Sorted(maps.Keys(p.giving)) {
		if p.yield.Yielded(topic) {
			ready = append(ready, p.giving[topic].Give)
		}
	}
	return ready
}

// gave forgets what is with others now, which a plan would do only after the pause.
func (p *Placer) gave(topics []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, topic := range topics {
		delete(p.giving, topic)
	}
}

// note counts what was written and logs errors when they change.
func (p *Placer) note(direction string, topics []string, err error) {
	p.moves.WithLabelValues(direction).Add(float64(len(topics)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(topics) > 0 {
		p.log.Debug("topics "+direction, "topics", len(topics), "first", topics[0], "epoch", p.orders.Epoch)
		p.untold[direction] += len(topics)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != p.failing[direction] && text != "" {
		p.log.Warn("placement not written, trying again", "direction", direction, "err", err, "epoch", p.orders.Epoch)
	}
	p.failing[direction] = text
}

// tell sums up in the log what has moved: when it is over, and now and then before. A
// broker that comes may be given thousands of topics, a few at a time. The caller holds
// the mutex.
func (p *Placer) tell(now time.Time, over bool) {
	if len(p.untold) == 0 || !over && now.Sub(p.toldAt) < placeTold {
		return
	}
	p.log.Info("topics placed", "taken", p.untold["taken"], "given", p.untold["given"], "epoch", p.orders.Epoch)
	if p.set.Told != nil {
		p.set.Told(p.untold["taken"], p.untold["given"], p.orders.Epoch)
	}
	clear(p.untold)
	p.toldAt = now
}
