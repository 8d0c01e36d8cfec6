package topics

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

// Standing is the registration that locks are taken under.
type Standing struct {
	Epoch   int64 // its create revision
	LeaseID int64 // the lease that it stands under
}

// Lock is one topic's lock as the store tells it.
type Lock struct {
	State    recovery.LockState // never LockUnknown
	Owner    string             // who holds it, for people; empty: nobody
	Revision int64              // mod revision, which a rebind and a release rest on
}

// LockRequest asks for LockTake, LockRebind or LockRelease; the latter two are of the lock
// as seen at Revision, and do nothing if it is not that any more.
type LockRequest struct {
	Topic    string
	Step     recovery.LockStep
	Revision int64
}

// LockStore is where the locks are. Every call must return when its context ends, and a
// call that failed says nothing about any lock that it does not answer.
type LockStore interface {
	// Lock carries out the requests, each by itself, and returns the locks after it in
	// their order. It does nothing when the standing is not the broker's any more, which
	// is an error. With an error, the answers are those that came before it.
	Lock(ctx context.Context, s Standing, requests []LockRequest) ([]Lock, error)
	// Look reads the locks of topics, in their order.
	Look(ctx context.Context, s Standing, topics []string) ([]Lock, error)
	// Under lists the topics whose locks stand under the standing's lease.
	Under(ctx context.Context, s Standing) ([]string, error)
	// FollowFree tells of each of the topics whose lock is free or becomes free, until
	// its context ends.
	FollowFree(ctx context.Context, topics []string, free func(topics []string)) error
}

// OwnershipSettings tune the acquisition.
type OwnershipSettings struct {
	RetryInterval time.Duration // between attempts at a lock that another holds
	RetryWindow   time.Duration // for how long; then every AuditInterval. 0: no such retries
	Watch         bool          // take a lock at once when it goes
	AuditInterval time.Duration // between checks that the locks are still ours
}

// LockOrders are what locks are taken under. Any change to them makes every lock unknown.
type LockOrders struct {
	Standing
	Mode     recovery.Mode
	Attached bool
}

// Ownership holds the locks of the topics that are wanted here. It stands before the
// reconciler: a topic is loaded after its lock was got, is unloaded here before its lock
// is released, and is unloaded at once when its lock turns out to be another's.
//
// Guaranteed: after SetOrders has returned, every lock counts as unowned until etcd has
// shown otherwise under the new orders, and the answer to whatever was in flight is
// dropped. A rebind is of what was seen and creates nothing. No topic blocks another.
//
// Not guaranteed: that a call which was dropped did nothing. A lock that it took stands
// under our lease: it ends with that, or is found by the next audit and released. And an
// owner is not a fence: what serves past its lease is for the fence ladder.
//
// All methods are safe for concurrent use.
type Ownership struct {
	settings   OwnershipSettings
	store      LockStore
	reconciler *Reconciler
	log        *slog.Logger
	metrics    *ownershipMetrics
	wake       chan struct{}
	yields     chan struct{}

	mu    sync.Mutex
	base  context.Context // Run's
	tasks sync.WaitGroup  // goroutines begun while it runs

	orders LockOrders
	// generation grows with each change of orders; work carries the one it was begun
	// under, and runs under its context.
	generation uint64
	work       context.Context
	endWork    context.CancelFunc

	table       map[string]*lock
	open        map[*lock]struct{} // locks that are not as they should be, or not known to be
	wantedKnown bool

	call      calling
	auditAt   time.Time
	auditsBad int // failed in a row
	follow    following
	warned    bool // of locks held elsewhere past the window, since none was
	told      bool // of a conflict, under these orders

	conflicts int
}

// lock is all that is known of one topic's lock.
type lock struct {
	topic string
	Lock
	wanted bool
	yield  bool           // wanted, and on its way to another broker
	claim  recovery.Claim // as told to the reconciler
	asked  bool           // a call about it is in flight
	again  bool           // it went while that call was in flight
	doubt  bool           // a release was not answered, and may still come to pass
	since  time.Time      // when it was first found to be this other broker's
	next   time.Time      // not before, while it is another's
	over   bool           // the retry window is

	had      bool // it was ours, under whatever orders, and was not released
	conflict bool // and was found to be another's
}

// NewOwnership returns an ownership that does nothing until it has orders, knows what is
// wanted, and runs. The reconciler must have been made with OwnershipLocks.
func NewOwnership(s OwnershipSettings, store LockStore, r *Reconciler, log *slog.Logger, reg prometheus.Registerer) *Ownership {
	o := &Ownership{
		settings: s, store: store, reconciler: r, log: log,
		wake: make(chan struct{}, 1), yields: make(chan struct{}, 1), base: context.Background(),
		table: map[string]*lock{}, open: map[*lock]struct{}{},
	}
	o.work, o.endWork = context.WithCancel(o.base)
	o.metrics = newOwnershipMetrics(reg)
	return o
}

// SetOrders sets what locks are taken under. If they differ from those before, calls in
// flight are cancelled and no lock counts as ours before SetOrders returns: tell the
// reconciler of its new orders after that.
func (o *Ownership) SetOrders(orders LockOrders) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if orders == o.orders {
		return
	}
	standing := orders.Standing != o.orders.Standing || orders.Attached != o.orders.Attached
	o.orders = orders
	if standing {
		o.newGeneration()
	} else { // the mode alone: what is known stays known
		for _, l := range o.table {
			o.open[l] = struct{}{}
		}
	}
	o.poke()
}

// SetWanted takes a change of what is assigned here, as Reconciler.SetAssigned does.
func (o *Ownership) SetWanted(full bool, puts, deletes []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !full && !o.wantedKnown {
		return
	}
	for _, l := range takenOut(o.table, full, puts, deletes) {
		o.want(l, false)
	}
	for _, topic := range puts {
		o.want(o.lock(topic), true)
	}
	o.wantedKnown = true
	o.poke()
}

// Locked is a Reconciler of topics with locks. One that went with its topic to another broker is not
// believed any more.
type Locked struct {
	*Reconciler
	Locks *Ownership // nil: there are none
}

// SetElsewhere tells both.
func (l Locked) SetElsewhere(topic string, revision int64) {
	older := l.setElsewhere(topic, revision)
	if l.Locks != nil {
		l.Locks.setElsewhere(topic, older)
	}
}

// setElsewhere makes a topic's lock unknown; older: and the topic unwanted.
func (o *Ownership) setElsewhere(topic string, older bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok := o.table[topic]
	if !ok {
		return
	}
	o.want(l, l.wanted && !older)
	o.learn(l, Lock{})
	if l.claim != recovery.ClaimPending { // before a hold may end
		l.claim = recovery.ClaimPending
		o.reconciler.SetClaims([]TopicClaim{{Topic: topic, Claim: recovery.ClaimPending}})
	}
	o.poke()
}

// takenOut is what of a table a change takes out: those deleted, and of a full change all that is not put.
func takenOut[T any](table map[string]T, full bool, puts, deletes []string) (out []T) {
	if full {
		left := maps.Clone(table)
		for _, topic := range puts {
			delete(left, topic)
		}
		return slices.Collect(maps.Values(left))
	}
	for _, topic := range deletes {
		if t, ok := table[topic]; ok {
			out = append(out, t)
		}
	}
	return out
}

// ForgetWanted makes what is assigned here unknown until the next full set: no lock is
// taken or released on what was known of it.
func (o *Ownership) ForgetWanted() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wantedKnown = false
}

func (o *Ownership) want(l *lock, wanted bool) {
	if l.wanted == wanted {
		return
	}
	l.wanted, l.yield, l.since, l.over = wanted, false, time.Time{}, false
	o.open[l] = struct{}{}
}

// lock is the entry of that topic, made if there is none.
func (o *Ownership) lock(topic string) *lock {
	l, ok := o.table[topic]
	if !ok {
		l = &lock{topic: topic, claim: recovery.ClaimPending}
		o.table[topic] = l
		o.open[l] = struct{}{}
	}
	return l
}

// newGeneration ends all work and believes nothing any more (safety rule 9).
func (o *Ownership) newGeneration() {
	o.generation++
	o.endWork()
	o.work, o.endWork = context.WithCancel(o.base)
	var told []TopicClaim
	for topic, l := range o.table {
		l.Lock, l.asked, l.again = Lock{}, false, false
		l.since, l.over, l.next = time.Time{}, false, time.Time{}
		if l.claim != recovery.ClaimPending {
			l.claim = recovery.ClaimPending
			told = append(told, TopicClaim{Topic: topic, Claim: recovery.ClaimPending})
		}
		o.open[l] = struct{}{}
	}
	o.call, o.follow, o.warned, o.told = calling{}, following{}, false, false
	o.auditAt, o.auditsBad = time.Time{}, 0
	o.reconciler.SetClaims(told)
}

// Trouble is the last failure since the store answered, and how many topics another broker holds. It
// costs one pass over the topics.
func (o *Ownership) Trouble() (lastErr string, elsewhere int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.table {
		if l.State == recovery.LockForeign {
			elsewhere++
		}
	}
	return o.call.lastErr, elsewhere
}

// Conflicts counts the topics that were held or served here and turned out to be another
// broker's.
func (o *Ownership) Conflicts() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conflicts
}

// poke wakes the loop.
func (o *Ownership) poke() {
	signal(o.wake)
}
