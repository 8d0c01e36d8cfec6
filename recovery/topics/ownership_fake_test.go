package topics

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

var errStoreAway = errors.New("etcd has no leader")

// heldLock is one lock in a lockTable.
type heldLock struct {
	owner    string
	standing Standing
	revision int64
}

// lockTable is the locks of a cluster, as etcd keeps them.
type lockTable struct {
	mu       sync.Mutex
	revision int64
	locks    map[string]heldLock
	deletes  map[string]int
	standing map[string]Standing // the registration of each broker
	moved    chan struct{}       // closed, and replaced, at each deletion
}

func newLockTable() *lockTable {
	return &lockTable{locks: map[string]heldLock{}, deletes: map[string]int{}, standing: map[string]Standing{}, moved: make(chan struct{})}
}

func (t *lockTable) put(topic, owner string, s Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(topic, owner, s)
}

func (t *lockTable) write(topic, owner string, s Standing) {
	t.revision++
	t.locks[topic] = heldLock{owner, s, t.revision}
}

func (t *lockTable) remove(topics ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range topics {
		t.drop(topic)
	}
}

func (t *lockTable) drop(topic string) {
	if _, ok := t.locks[topic]; !ok {
		return
	}
	delete(t.locks, topic)
	t.deletes[topic]++
	t.revision++
	close(t.moved)
	t.moved = make(chan struct{})
}

// expire deletes what stands under a lease.
func (t *lockTable) expire(leaseID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic, k := range t.locks {
		if k.standing.LeaseID == leaseID {
			t.drop(topic)
		}
	}
}

func (t *lockTable) owner(topic string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locks[topic].owner
}

func (t *lockTable) ownedBy(owner string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var topics []string
	for topic, k := range t.locks {
		if k.owner == owner {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics
}

// fakeLocks is one broker's way to the lockTable.
type fakeLocks struct {
	*lockTable
	id string

	latency   time.Duration
	deaf      time.Duration // a call takes this long whatever its context says, and is carried out
	lost      time.Duration // a call is carried out after this long; its answer is never heard
	err       error
	asideErr  error // of Under
	partial   int   // with err: that many requests are carried out and answered
	calls     int
	asks      map[recovery.LockStep]int
	following int
	followed  int // follows begun
	onRelease func(topic string)
	onLock    func(requests []LockRequest) // before they are carried out
	stray     sync.WaitGroup
}

func (f *fakeLocks) pass(ctx context.Context) error {
	f.mu.Lock()
	f.calls++
	latency, deaf, err := f.latency, f.deaf, f.err
	f.mu.Unlock()
	if deaf > 0 {
		time.Sleep(deaf)
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(latency):
		return err
	}
}

func (f *fakeLocks) Lock(ctx context.Context, s Standing, requests []LockRequest) ([]Lock, error) {
	f.mu.Lock()
	lost, hook := f.lost, f.onLock
	for _, r := range requests {
		f.asks[r.Step]++
	}
	f.mu.Unlock()
	if lost > 0 {
		f.stray.Go(func() {
			time.Sleep(lost)
			f.carryOut(s, requests)
		})
		<-ctx.Done()
		return nil, ctx.Err()
	}
	err := f.pass(ctx)
	if hook != nil {
		hook(requests)
	}
	if err != nil {
		f.mu.Lock()
		n := min(f.partial, len(requests))
		f.mu.Unlock()
		answers, _ := f.carryOut(s, requests[:n])
		return answers, err
	}
	return f.carryOut(s, requests)
}

func (f *fakeLocks) carryOut(s Standing, requests []LockRequest) ([]Lock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.standing[f.id] != s {
		return nil, errors.New("changed in etcd since it was read")
	}
	answers := make([]Lock, len(requests))
	for i, r := range requests {
		k, there := f.locks[r.Topic]
		switch {
		case r.Step == recovery.LockTake && !there:
			f.write(r.Topic, f.id, s)
		case r.Step == recovery.LockRebind && there && k.revision == r.Revision:
			f.write(r.Topic, f.id, s)
		case r.Step == recovery.LockRelease && there && k.revision == r.Revision:
			if f.onRelease != nil {
				f.onRelease(r.Topic)
			}
			f.drop(r.Topic)
		}
		answers[i] = f.look(s, r.Topic)
	}
	return answers, nil
}

func (f *fakeLocks) look(s Standing, topic string) Lock {
	k, there := f.locks[topic]
	switch {
	case !there:
		return Lock{State: recovery.LockFree}
	case k.owner != f.id:
		return Lock{State: recovery.LockForeign, Owner: k.owner, Revision: k.revision}
	case k.standing != s:
		return Lock{State: recovery.LockStale, Owner: k.owner, Revision: k.revision}
	}
	return Lock{State: recovery.LockOurs, Owner: k.owner, Revision: k.revision}
}

func (f *fakeLocks) Look(ctx context.Context, s Standing, topics []string) ([]Lock, error) {
	if err := f.pass(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asks[recovery.LockLook] += len(topics)
	answers := make([]Lock, len(topics))
	for i, topic := range topics {
		answers[i] = f.look(s, topic)
	}
	return answers, nil
}

func (f *fakeLocks) Under(ctx context.Context, s Standing) ([]string, error) {
	if err := errors.Join(f.pass(ctx), value(f, &f.asideErr)); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var topics []string
	for topic, k := range f.locks {
		if k.standing.LeaseID == s.LeaseID {
			topics = append(topics, topic)
		}
	}
	return topics, nil
}

func (f *fakeLocks) FollowFree(ctx context.Context, topics []string, free func([]string)) error {
	f.set(func() { f.following++; f.followed++ })
	defer f.set(func() { f.following-- })
	was := map[string]bool{}
	for {
		f.mu.Lock()
		moved := f.moved
		var gone []string
		for _, topic := range topics {
			_, there := f.locks[topic]
			if !there && !was[topic] {
				gone = append(gone, topic)
			}
			was[topic] = !there
		}
		f.mu.Unlock()
		if len(gone) > 0 {
			free(gone)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

func (f *fakeLocks) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// value reads something that calls in flight may write.
func value[T any](f *fakeLocks, of *T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *of
}

func (f *fakeLocks) asked(step recovery.LockStep) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asks[step]
}

// owners is a running ownership before a running reconciler, in virtual time.
type owners struct {
	*world
	own *Ownership
	l   *fakeLocks
}

var (
	testOwnership = OwnershipSettings{RetryInterval: 200 * time.Millisecond, RetryWindow: 2 * time.Second, Watch: true, AuditInterval: 30 * time.Second}
	firstStanding = Standing{Epoch: 1, LeaseID: 11}
	nextStanding  = Standing{Epoch: 2, LeaseID: 12}
)

// stand gives the broker a registration and both parts their orders, in the order that
// safety asks for.
func (o *owners) stand(s Standing, mode recovery.Mode, attached bool) {
	if attached {
		o.l.set(func() { o.l.standing[o.l.id] = s })
	}
	o.own.SetOrders(LockOrders{Standing: s, Mode: mode, Attached: attached})
	o.Reconciler.SetOrders(recovery.Orders{Epoch: s.Epoch, Mode: mode, Attached: attached, Instance: "a"})
}

// begin attaches the broker, to which these topics are assigned, and lets virtual time pass.
func (o *owners) begin(d time.Duration, topics ...string) {
	o.stand(firstStanding, recovery.Active, true)
	o.assign(true, topics, nil)
	o.after(d)
}

func (o *owners) assign(full bool, puts, deletes []string) {
	o.SetAssigned(1, full, puts, deletes)
	o.own.SetWanted(full, puts, deletes)
}

func (o *owners) wantOwned(topics ...string) {
	o.t.Helper()
	slices.Sort(topics)
	if got := o.l.ownedBy(o.l.id); !slices.Equal(got, topics) {
		o.t.Errorf("owned %s, want %s", brief(got), brief(topics))
	}
}

func (o *owners) state(topic string) TopicState {
	for _, s := range o.Topics() {
		if s.Topic == topic {
			return s
		}
	}
	return TopicState{}
}

// newOwners starts both parts; end ends them and waits.
func newOwners(t *testing.T, id string, s OwnershipSettings, b *fakeBroker, table *lockTable) (o *owners, end func()) {
	t.Helper()
	w := &world{t: t, b: b, rec: &fakeRecords{}, reg: prometheus.NewPedanticRegistry(), log: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	rs := testSettings
	rs.OwnershipLocks = true
	w.Reconciler = NewReconciler(rs, b, w.rec, log, w.reg)
	l := &fakeLocks{lockTable: table, id: id, latency: time.Millisecond, asks: map[recovery.LockStep]int{}}
	o = &owners{world: w, own: NewOwnership(s, l, w.Reconciler, log, w.reg), l: l}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{w.Reconciler.Run, o.own.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("Run returned %v, want nil", err)
			}
		})
	}
	return o, func() {
		cancel()
		running.Wait()
		l.stray.Wait()
	}
}

// inOwners runs a claim in virtual time with broker "me" attached.
func inOwners(t *testing.T, s OwnershipSettings, b *fakeBroker, claim func(o *owners)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o, end := newOwners(t, "me", s, b, newLockTable())
		defer end()
		claim(o)
	})
}

func (b *fakeBroker) serves(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.serving[topic]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
