package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/lease"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// shelf is a broker that serves what it is told to.
type shelf struct {
	mu      sync.Mutex
	serving map[string]bool
}

func (s *shelf) Topics(context.Context) (topics.Held, error) {
	return topics.Held{Serving: s.served()}, nil
}

func (s *shelf) served() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.serving))
}

func (s *shelf) Serve(_ context.Context, topic string, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving[topic] = true
	return nil
}

func (s *shelf) Withdraw(_ context.Context, topic string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.serving, topic)
	return nil
}

// owner is the part of a sidecar that has to do with locks, over an etcd in memory.
type owner struct {
	*agent
	t     *testing.T
	shelf *shelf
}

// inOwners runs claim beside sidecars of those ids, which run but are not registered yet.
func inOwners(t *testing.T, ids []string, claim func(t *testing.T, s *etcd.Server, owners []*owner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := etcd.New(etcd.Config{MinTTL: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		var owners []*owner
		for _, id := range ids {
			quiet := slog.New(slog.DiscardHandler)
			c := natsDefaults()
			c.OwnershipLocks = "on"
			o := &owner{t: t, shelf: &shelf{serving: map[string]bool{}}}
			o.agent = &agent{cfg: c.Effective(), log: quiet, identity: &identityCheck{}, main: cluster.Over(cluster.Config{}, server.Conn(nil), quiet)}
			o.brokerID, o.memory.Incarnation = id, "incarnation of "+id
			o.view.Store(&snapshot{Circumstances: recovery.Circumstances{Attachment: recovery.Attached}})
			reg := prometheus.NewPedanticRegistry()
			o.reconciler = topics.NewReconciler(topics.ReconcilerSettings{Concurrency: 16, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second, OwnershipLocks: o.locking(), MassChangeShare: o.cfg.MassChangeShare},
				o.shelf, o.main, quiet, reg)
			o.ownership = o.newOwnership(prometheus.NewRegistry())
			for _, run := range []func(context.Context) error{o.reconciler.Run, o.ownership.Run} {
				running.Go(func() {
					if err := run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			owners = append(owners, o)
		}
		claim(t, server, owners)
		cancel()
		running.Wait()
		for _, o := range owners {
			if err := o.main.Close(); err != nil && !errors.Is(err, cluster.ErrClosed) {
				t.Error(err)
			}
		}
	})
}

// register gives the broker a registration and a lease, which nobody renews.
func (o *owner) register(ttl time.Duration) {
	o.t.Helper()
	seen, err := o.main.Snapshot(o.t.Context(), o.brokerID)
	if err != nil {
		o.t.Fatal(err)
	}
	id, _, err := o.main.Grant(o.t.Context(), ttl)
	if err != nil {
		o.t.Fatal(err)
	}
	done, err := o.main.Register(o.t.Context(), cluster.RegisterRequest{
		LeaseID: id,
		Value:   []byte("{}"),
		Seen:    seen,
		Member:  cluster.Member{Incarnation: o.memory.Incarnation, At: time.Now()},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	o.grant = lease.Grant{LeaseID: id, Epoch: done.Revision}
	o.memory.Epoch, o.memory.Instance, o.mode.Mode = done.Revision, "process", recovery.Active
	o.setOrders(o.orders(true))
}

func (o *owner) wantServed(topics ...string) {
	o.t.Helper()
	if got := o.shelf.served(); !slices.Equal(got, topics) {
		o.t.Errorf("%s serves %v, want %v", o.brokerID, got, topics)
	}
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestASecondBrokerTakesATopicAtTheMomentItsLockEnds(t *testing.T) {
	inOwners(t, []string{"a", "b"}, func(t *testing.T, s *etcd.Server, owners []*owner) {
		a, b := owners[0], owners[1]
		a.register(time.Minute)
		b.register(time.Hour)
		a.setAssigned(1, true, []string{"/n/t"}, nil)
		after(time.Second)
		b.setAssigned(1, true, []string{"/n/t", "/n/u"}, nil)
		after(5 * time.Second)
		a.wantServed("/n/t")
		b.wantServed("/n/u")
		if has := b.topics(); len(has) != 2 || has[0].State != topics.TopicElsewhere || !strings.Contains(has[0].Error, "broker a") {
			t.Errorf("b tells of %+v, want the first held elsewhere, by broker a", has)
		}
		a.setAssigned(1, false, nil, []string{"/n/t"}) // moved on purpose
		after(1200 * time.Millisecond)                 // an orphan settles for a second
		a.wantServed()
		b.wantServed("/n/t", "/n/u")
	})
}

func TestAfterALostSessionTopicsAreOwnedAgainOrGivenUp(t *testing.T) {
	inOwners(t, []string{"a", "b"}, func(t *testing.T, s *etcd.Server, owners []*owner) {
		a, b := owners[0], owners[1]
		a.register(10 * time.Second)
		b.register(time.Hour)
		a.setAssigned(1, true, []string{"/n/free", "/n/ours", "/n/taken"}, nil)
		after(5 * time.Second)
		a.wantServed("/n/free", "/n/ours", "/n/taken")

		// The broker was cut off: it could not hear that its registration went.
		a.grant = lease.Grant{}
		a.setOrders(a.orders(false))
		after(6 * time.Second)
		b.setAssigned(1, true, []string{"/n/taken"}, nil)
		after(time.Second)
		b.wantServed("/n/taken")
		a.register(time.Hour)
		after(2 * time.Second)
		a.wantServed("/n/free", "/n/ours")
		b.wantServed("/n/taken")
		a.wantConflicts(t, 1)
	})
}

// wantConflicts checks what the journal would be told.
func (o *owner) wantConflicts(t *testing.T, want int) {
	t.Helper()
	if n := o.ownership.Conflicts(); n != want {
		t.Errorf("%d conflicts, want %d", n, want)
	}
}

func TestWithoutLocksTopicsAreLoadedAsTheyAreAssigned(t *testing.T) {
	c := natsDefaults()
	a := &agent{cfg: c.Effective(), log: slog.New(slog.DiscardHandler)}
	if a.locking() || a.newOwnership(prometheus.NewRegistry()) != nil {
		t.Error("locks are on with external assignments, want them off unless asked for")
	}
}

func TestALockIsTakenAtOnceAfterItsWatchWasLost(t *testing.T) {
	inOwners(t, []string{"a", "b"}, func(t *testing.T, s *etcd.Server, owners []*owner) {
		a, b := owners[0], owners[1]
		a.register(time.Hour)
		b.register(time.Hour)
		a.setAssigned(1, true, []string{"/n/t"}, nil)
		after(time.Second)
		b.setAssigned(1, true, []string{"/n/t"}, nil)
		after(10 * time.Second) // the retry window is over
		s.EndWatches(errors.New("etcd closed the stream"))
		after(time.Second) // b reads the lock and watches again
		if err := a.main.Revoke(t.Context(), a.grant.LeaseID); err != nil {
			t.Fatal(err)
		}
		a.grant = lease.Grant{}
		a.setOrders(a.orders(false))
		after(100 * time.Millisecond)
		b.wantServed("/n/t")
	})
}

func TestAnOldListIsNotTakenUpWhileANewOneIsAskedFor(t *testing.T) {
	const topics = 1000 // so that reading the list takes a while
	inOwners(t, []string{"n1"}, func(t *testing.T, _ *etcd.Server, owners []*owner) {
		o := owners[0]
		o.ids.assigned.set("n1")
		old := cluster.Update{Full: true}
		for i := range topics {
			old.Puts = append(old.Puts, cluster.KV{Key: o.main.Keys().Assignment("n1", fmt.Sprintf("/n/t%d", i))})
		}
		for i := range int64(200) {
			old.Revision = 10*i + 5
			var both sync.WaitGroup
			begun := make(chan struct{})
			both.Go(func() { close(begun); o.assignmentsSeen("n1", old) })
			<-begun
			for range 10 * i { // a little later in each round
				runtime.Gosched()
			}
			o.needAssignments("n1", 10*(i+1))
			both.Wait()
			if o.reconciler.Snapshot().AssignedKnown {
				t.Fatalf("round %d: assignments of revision %d are known, those of %d were asked for", i, old.Revision, 10*(i+1))
			}
		}
	})
}
