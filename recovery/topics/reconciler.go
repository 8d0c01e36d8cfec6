// Package topics carries out what package recovery decides about a broker's topics: it loads and
// withdraws them, takes and gives their ownership locks, places them, and fences the broker.
//
// Guaranteed: nothing is loaded, and nothing that is already on its way is kept on, once the
// broker is detached; a broker with a mode of its own is given no topic before it has taken
// active; no topic's data is deleted here. Not guaranteed: that the broker still is as it was
// when it last answered.
package topics

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"holdfast/recovery"
)

// Held is what a broker holds.
type Held struct {
	Serving    []string // clients can use it
	Withdrawn  []string // it is here and quiesced
	Unreadable []string // served, or may be, under what is no name here: shown, and left alone
}

// ErrRefused is wrapped by Serve's errors after which trying again changes nothing, for as long as
// nobody mends what they name.
var ErrRefused = errors.New("refused")

// Broker is what the reconciler needs of a broker. Every call must return when its
// context ends, and Serve and Withdraw must bear repetition.
type Broker interface {
	// Topics lists what the broker holds.
	Topics(ctx context.Context) (Held, error)
	// Serve makes the broker serve the topic; record is nil if the topic has none.
	Serve(ctx context.Context, topic string, record []byte) error
	// Withdraw stops producers with an error that they retry; data stays.
	Withdraw(ctx context.Context, topic string) error
}

// Records reads the topics' own records from etcd. A topic that has none is not in
// the answer; a read that failed is an error, never a gap.
type Records interface {
	Records(ctx context.Context, topics []string) (map[string][]byte, error)
}

// ReconcilerSettings tune the reconciler.
type ReconcilerSettings struct {
	Concurrency     int           // calls to the broker at a time
	Rate            float64       // loads per second; 0: no limit
	LoadTimeout     time.Duration // of one call, and of the startup gate without progress
	AuditInterval   time.Duration // between listings, and the mass-change guard's window
	MassChangeShare float64       // of topics, above which a sudden loss is not believed; 0: off
	OwnershipLocks  bool          // topics are loaded only after SetClaims said that they are ours
	// Assigns: the broker's own cluster decides which topics it serves. What it lists is
	// wanted, nothing is missing or an orphan, and assignments in etcd say nothing.
	Assigns bool
	// Moves: nothing is loaded before SetHeld was told which topics are being moved.
	Moves bool
	// Drain empties a broker that cannot be emptied topic by topic, because its cluster
	// would give it others; nil: Withdraw does. It must return when its context ends.
	Drain func(ctx context.Context) error
}

// Reconciler brings the broker to what etcd asks of it, for ever. Run's loop alone
// decides; the setters record what changed, end what must end, and wake it.
//
// Guaranteed: after SetOrders has returned, no call to the broker begins under
// older orders, and the result of one that was in flight is dropped; one topic has
// at most one call in flight, Fence apart; nothing happens before the assignments
// were read whole. Not guaranteed: that a call whose context was cancelled did
// nothing: the broker is listed again before anything rests on it.
//
// All methods are safe for concurrent use.
type Reconciler struct {
	settings ReconcilerSettings
	broker   Broker
	records  Records
	log      *slog.Logger
	metrics  *reconcileMetrics
	limiter  *rate.Limiter // nil: no limit
	wake     chan struct{}
	changes  chan struct{}

	settlings chan struct{}

	mu    sync.Mutex
	base  context.Context // Run's
	tasks sync.WaitGroup  // goroutines begun while it runs

	orders recovery.Orders
	// generation grows with each change of orders and with each fence; work carries
	// the one it was begun under, and runs under its context.
	generation uint64
	work       context.Context
	endWork    context.CancelFunc
	fences     uint64
	fencing    int  // Fence calls under way
	afterFence bool // fenced, and not attached anew since

	table         map[string]*topic
	counts        recovery.Counts
	conflicts     []string // topics found served here and owned by another, not told yet
	failed        map[*topic]struct{}
	assignedKnown bool
	assignedAt    int64  // the store revision of what was told of them last
	lists         uint64 // full sets of them so far
	movesKnown    bool
	moving        []string // that SetHeld was told of
	parted        []string // of those
	lost          lostTopics
	mass          recovery.MassChange
	clock         uint64 // counts own changes, so that a listing does not undo later ones

	plan    planning
	list    listing
	load    loading
	gate    gate
	pass    time.Time // begin of the pass under way; zero: none
	success time.Time
	lastErr string

	lastChange    time.Time
	changePending bool
	armed         time.Time // when the loop wakes by itself
	loggedFailure bool      // a failed topic was logged since the last success
}

// NewReconciler returns a reconciler that does nothing until it has orders, the
// assignments, and runs.
func NewReconciler(s ReconcilerSettings, b Broker, rec Records, log *slog.Logger, reg prometheus.Registerer) *Reconciler {
	r := &Reconciler{
		settings: s,
		broker:   b,
		records:  rec,
		log:      log,
		wake:     make(chan struct{}, 1),
		changes:  make(chan struct{}, 1),

		settlings: make(chan struct{}, 1),

		table:  map[string]*topic{},
		failed: map[*topic]struct{}{},
		base:   context.Background(),
	}
	r.load.flights = map[*topic]flight{}
	r.assignedKnown, r.movesKnown = s.Assigns, !s.Moves
	r.limiter = newLimiter(s.Rate)
	r.work, r.endWork = context.WithCancel(r.base)
	r.metrics = newReconcileMetrics(reg, r.auditInterval, r.Snapshot)
	return r
}

// SetOrders sets what the reconciler acts under. If they differ from those before,
// work in flight is cancelled before SetOrders returns, and its results are dropped.
func (r *Reconciler) SetOrders(o recovery.Orders) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.orders
	if o == old {
		return
	}
	now := time.Now()
	r.orders = o
	r.newGeneration()
	if o.Attached && (!old.Attached || o.Epoch != old.Epoch) {
		r.afterFence = false
	}
	if o.Instance != old.Instance {
		r.forgetServed()
	}
	if !o.Attached || o.Instance != old.Instance || o.Mode == recovery.Drained {
		r.gate.close()
	}
	r.lookAnew(now)
}

// lookAnew has the broker listed, and what follows from that planned.
func (r *Reconciler) lookAnew(now time.Time) {
	r.list.askAt(now)
	r.planSoon(now)
	r.changed(now)
	r.poke()
}

// SetAssigned takes a change of the assignments. full replaces the whole set by
// puts; changes that come before the first full set are ignored, since it holds them. They are
// as of that revision of the store; it returns those puts that are not older than what SetElsewhere told.
func (r *Reconciler) SetAssigned(revision int64, full bool, puts, deletes []string) (assigned []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settings.Assigns || !full && !r.assignedKnown {
		return puts
	}
	now := time.Now()
	first := !r.assignedKnown
	for _, t := range takenOut(r.table, full, puts, deletes) {
		if first {
			t.UnassignedAt = now
		}
		r.unassign(t, now)
	}
	if full {
		r.lists++
	}
	for _, name := range puts {
		if t := r.topic(name, now); !r.isElsewhere(t, revision) {
			r.assign(t, now, first)
			assigned = append(assigned, name)
		}
	}
	r.assignedKnown, r.assignedAt = true, revision
	r.planSpaced(now)
	r.changed(now)
	r.poke()
	return assigned
}

// SetElsewhere tells that a topic was not assigned here at that revision of the store, whatever was told
// of an older one, or is yet. What is told of a later one counts, and the second full set from now on,
// which was read after this: of a store that was restored since all revisions may be older.
func (r *Reconciler) SetElsewhere(name string, revision int64) { r.setElsewhere(name, revision) }

// setElsewhere reports whether what is known of assignments is older.
func (r *Reconciler) setElsewhere(name string, revision int64) (older bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settings.Assigns || revision <= r.assignedAt {
		return false
	}
	now := time.Now()
	t := r.topic(name, now)
	if t.elsewhere, t.elsewhereTo = revision, r.lists+2; t.Assigned {
		r.unassign(t, now)
		r.setWant(t, actNone)
		r.planSpaced(now)
		r.changed(now)
		r.poke()
	}
	return true
}

// isElsewhere reports whether what is told of that revision is older than that the topic was elsewhere.
func (r *Reconciler) isElsewhere(t *topic, revision int64) bool {
	return t.elsewhere > revision && r.lists < t.elsewhereTo
}

// ForgetAssigned makes the assignments unknown until the next full set: nothing is
// loaded or quarantined on what was known of them.
func (r *Reconciler) ForgetAssigned() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settings.Assigns || !r.assignedKnown {
		return
	}
	now := time.Now()
	r.assignedKnown = false
	r.newGeneration()
	r.gate.close()
	r.lookAnew(now)
}

// ForgetServed makes what the broker serves unknown until the next listing: another process
// answers, and nothing of what the one before served is its own.
func (r *Reconciler) ForgetServed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.newGeneration()
	r.forgetServed()
	r.gate.close()
	r.lookAnew(now)
}

func (r *Reconciler) assign(t *topic, now time.Time, first bool) {
	if t.Assigned {
		return
	}
	r.update(t, func(f *recovery.PlanFacts) {
		switch {
		case first:
			f.AssignedAt = time.Time{}
		case f.Lost && now.Sub(f.UnassignedAt) <= r.settings.AuditInterval:
			// It came back within the window: as if it had never gone.
		default:
			f.AssignedAt = now
		}
		f.Assigned, f.Lost, f.UnassignedAt = true, false, time.Time{}
	})
}

func (r *Reconciler) unassign(t *topic, now time.Time) {
	if !t.Assigned {
		return
	}
	r.update(t, func(f *recovery.PlanFacts) {
		// What we gave to another ourselves is no loss that the guard must watch for.
		f.Assigned, f.Lost, f.UnassignedAt = false, f.Claim != recovery.ClaimYielded && !f.Held, now
	})
}

// Kick has the broker listed at once.
func (r *Reconciler) Kick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list.askAt(time.Now())
	r.poke()
}

// Confirm lets a tripped mass-change guard proceed with what has happened until
// now. It does nothing if the guard has not tripped.
func (r *Reconciler) Confirm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mass.Tripped() {
		return
	}
	now := time.Now()
	r.log.Info("mass change confirmed", "topics", r.mass.Count, "of", r.mass.Of, "epoch", r.orders.Epoch)
	r.mass = r.mass.Confirm(now)
	r.planSoon(now)
	r.changed(now)
	r.poke()
}

// Changes receives a value after Snapshot may have changed, at most every 100 ms.
// It has room for one.
func (r *Reconciler) Changes() <-chan struct{} { return r.changes }

// newGeneration ends all work. What was in flight runs out under a cancelled context.
func (r *Reconciler) newGeneration() {
	r.generation++
	r.endWork()
	r.work, r.endWork = context.WithCancel(r.base)
	for _, t := range r.table {
		r.setWant(t, actNone)
		t.attempt = 0
	}
	r.load.reset()
	r.list.fresh = false
	r.pass = time.Time{}
}

func (r *Reconciler) forgetServed() {
	for _, t := range r.table {
		r.update(t, func(f *recovery.PlanFacts) { f.Serving, f.Quiesced = false, false })
	}
	r.list.ever, r.list.unreadable = false, nil
}

// topic is the entry of that name, made if there is none.
func (r *Reconciler) topic(name string, now time.Time) *topic {
	t, ok := r.table[name]
	if !ok {
		t = &topic{name: name, PlanFacts: recovery.PlanFacts{UnassignedAt: now}, due: -1}
		if r.settings.OwnershipLocks {
			t.Claim = recovery.ClaimPending
		}
		r.table[name] = t
	}
	return t
}

// update changes a topic's facts and keeps the counts right, at a cost that does
// not depend on the number of topics.
func (r *Reconciler) update(t *topic, change func(*recovery.PlanFacts)) {
	r.counts.Add(t.PlanFacts, -1)
	change(&t.PlanFacts)
	if r.settings.Assigns {
		t.Assigned = t.Serving || t.Quiesced
	}
	r.counts.Add(t.PlanFacts, 1)
	if t.Foreign() {
		r.conflicts = append(r.conflicts, t.name)
	}
}

// setWant records what the last plan asks of the topic. A call in flight is left to
// end; whoever ends it looks at the want again.
func (r *Reconciler) setWant(t *topic, a act) {
	if t.want == a {
		return
	}
	if t.want != actNone {
		r.load.wanting--
	}
	if a != actNone {
		r.load.wanting++
	}
	t.want = a
	if t.phase == phaseFlying {
		return
	}
	if t.phase == phaseWaiting {
		heap.Remove(&r.load.waiting, t.due)
	}
	t.phase, t.attempt, t.record = phaseIdle, 0, nil
	r.setError(t, "")
	r.enqueue(t)
}

func (r *Reconciler) setError(t *topic, text string) {
	t.err = text
	if text == "" {
		delete(r.failed, t)
	} else {
		r.failed[t] = struct{}{}
	}
}

// poke wakes the loop.
func (r *Reconciler) poke() {
	signal(r.wake)
}

// topic is all that the reconciler knows of one topic.
type topic struct {
	name string
	recovery.PlanFacts
	want    act
	phase   phase
	round   uint64 // the plan or listing that saw it last
	changed uint64 // the clock at the last change of our own
	attempt int    // failed calls in a row
	retryAt time.Time
	due     int // index among the waiting
	record  []byte
	since   int64 // store revision since when it is assigned here; 0: not told
	// elsewhere is a store revision at which it was not assigned here; what is older says nothing.
	elsewhere   int64
	elsewhereTo uint64 // until there were so many full sets
	err         string
	refused     bool   // err is for good
	undone      bool   // quiesced after a load that outlived a fence
	unsure      bool   // a call failed or was dropped, and the broker was not listed since
	owner       string // who holds the lock, when another does
}

func byName(a, b *topic) int { return cmp.Compare(a.name, b.name) }

// firstFailed is the first failed topic by name, and why; empty: none has failed.
func (r *Reconciler) firstFailed() string {
	if len(r.failed) == 0 {
		return ""
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(r.failed)), byName)
	return first.name + ": " + first.err
}
