package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// warmUp is the time before the schedule begins, in which everybody registers.
const warmUp = 6 * time.Second

// fleet is one simulated cluster and the schedule that happens to it.
type fleet struct {
	schedule schedule
	settings settings
	keys     cluster.Keys
	store    *memory.Server
	members  []*memory.Member
	nodes    []*node
	checks   *checks
	log      *slog.Logger
	born     time.Time
	aside    sync.WaitGroup  // what runs beside the schedule
	life     context.Context // of what runs beside
	stranger atomic.Bool     // somebody who is no sidecar writes

	mu     sync.Mutex
	random *rand.Rand
	faults []error
	flaky  int
	busy   int
	moving map[string]bool
	begun  int       // deeds so far
	going  int       // those that are not over
	done   time.Time // when the last of the others was
	trace  bool
	story  []string
}

// outcome of one run.
type outcome struct {
	Violations []string
	Story      []string
}

// run lets the schedule happen in a bubble of its own, with state directories in dir.
func run(t *testing.T, s schedule, dir string, trace bool) (o outcome) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(*testing.T) {
		f := newFleet(s)
		if f.trace = trace; trace {
			f.log = slog.New(slog.NewTextHandler(teller{f}, &slog.HandlerOptions{Level: slog.LevelInfo}))
		}
		f.live(dir)
		o = outcome{f.checks.found(), f.story}
	})
	return o
}

func newFleet(s schedule) *fleet {
	return &fleet{schedule: s, settings: s.Settings, keys: cluster.NewKeys(""), born: time.Now(),
		random: rand.New(rand.NewPCG(s.Seed, 2)), moving: map[string]bool{}, log: slog.New(slog.DiscardHandler)}
}

// teller puts the sidecars' logs into the story.
type teller struct{ f *fleet }

func (t teller) Write(p []byte) (int, error) {
	t.f.note("    %s", p[min(len(p), 41):max(min(len(p), 41), len(p)-1)])
	return len(p), nil
}

func (f *fleet) note(format string, args ...any) {
	if !f.trace {
		return
	}
	line := fmt.Sprintf("%9.3fs  ", time.Since(f.born).Seconds()) + fmt.Sprintf(format, args...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.story = append(f.story, line)
}

func (f *fleet) intN(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

func (f *fleet) topic(i int) string { return fmt.Sprintf("/sim/t%d", i) }

// build makes etcd and all nodes; end ends what runs beside them.
func (f *fleet) build(dir string) (end context.CancelFunc) {
	f.store = memory.New(memory.Config{MinTTL: f.settings.MinTTL})
	for range members {
		f.members = append(f.members, f.store.Member())
	}
	f.checks = newChecks(f)
	f.store.Observe(f.checks.stored)
	f.store.SetFault(f.fault)
	if f.settings.Lag > 0 {
		lag := rand.New(rand.NewPCG(f.schedule.Seed, 7))
		f.store.SetLag(func() time.Duration {
			return pick(lag, 0, 0, time.Duration(lag.Int64N(int64(f.settings.Lag))))
		})
	}
	f.life, end = context.WithCancel(context.Background())
	f.aside.Go(func() { _ = f.store.Run(f.life) })
	f.aside.Go(func() { f.checks.run(f.life) })
	late := f.intN(2) == 0
	for i := range f.settings.Nodes {
		n := &node{fleet: f, index: i, id: fmt.Sprintf("n%d", i), link: memory.NewLink(), healed: make(chan struct{})}
		n.dir = filepath.Join(dir, n.id)
		n.broker = newBroker(n.id, f.settings.Boot, f.settings.Forgets)
		n.broker.clock, n.broker.beside = n.clock, func(do func()) { f.aside.Go(do) }
		n.broker.ended = func() { f.supervise(n) }
		n.broker.changed = func(why string) { f.checks.broker(i, n.broker, why) }
		n.link.SetLate(late)
		n.delays()
		n.guard = &guardian{n: n}
		f.aside.Go(func() { n.guard.run(f.life) })
		f.nodes = append(f.nodes, n)
	}
	f.checks.begin()
	return end
}

// close ends it all once the sidecars have ended.
func (f *fleet) close(end context.CancelFunc) {
	end()
	f.aside.Wait()
	for _, n := range f.nodes {
		n.link.Break()
	}
	f.store.Wait()
}

// live is the whole simulation.
func (f *fleet) live(dir string) {
	end := f.build(dir)
	for i := range f.settings.Topics {
		key := f.keys.Assignment(f.nodes[i%len(f.nodes)].id, f.topic(i))
		if f.settings.Failover != "" {
			key = f.keys.TopicRecord(f.topic(i))
		}
		f.admin(func() { _, _ = f.store.Put(f.life, &pb.PutRequest{Key: []byte(key), Value: []byte("null")}) })
	}
	for _, n := range f.nodes[:len(f.nodes)-f.settings.Late] {
		broker, sidecar := time.Duration(f.intN(500))*time.Millisecond, time.Duration(f.intN(500))*time.Millisecond
		f.aside.Go(func() {
			time.Sleep(broker)
			n.broker.start()
		})
		f.aside.Go(func() {
			time.Sleep(sidecar)
			n.startSidecar()
		})
	}
	if f.settings.Placer {
		f.aside.Go(f.place)
	}
	time.Sleep(warmUp)
	var events sync.WaitGroup
	for _, e := range f.schedule.Events {
		events.Go(func() {
			time.Sleep(e.At)
			for _, n := range f.nodes {
				n.keepFile()
			}
			f.note("--- %s", e)
			f.counted(func() { f.do(e) })
		})
	}
	events.Wait()
	f.note("--- quiet")
	for _, n := range f.nodes {
		if n.hasEnded() && f.intN(2) == 0 { // its person has not come yet
			n.broker.kill()
			continue
		}
		n.startSidecar()
		n.broker.start()
	}
	f.settle("after the quiet time")
	if slices.ContainsFunc(f.nodes, (*node).hasEnded) {
		for _, n := range f.nodes {
			n.broker.start()
			n.startSidecar()
		}
		f.settle("after those that had ended were started")
	}
	for _, n := range f.nodes {
		if s, ok := n.status(); ok && s.Mode != string(recovery.Active) {
			n.steer("activate")
		}
	}
	f.settle("after all were activated")
	for _, n := range f.nodes {
		if s, _ := n.status(); s.Mode != string(recovery.Active) {
			f.checks.fail("%s is %s (%s) although a person activated it", n.id, s.Mode, s.Reason)
		}
	}
	var stops sync.WaitGroup
	for _, n := range f.nodes {
		stops.Go(n.stopSidecar)
	}
	stops.Wait()
	f.close(end)
}

// settle waits until everybody is as the store asks, and stays so.
func (f *fleet) settle(when string) {
	bound := time.Now().Add(2*f.settings.TTL + 45*time.Second + 4*(f.settings.granted()*5/4+5*time.Second)) // a question may begin anew three times
	for {
		wrong, placed := f.unsettled(), f.checks.placements()
		if wrong == "" {
			time.Sleep(3 * time.Second)
			if wrong = f.unsettled(); wrong == "" && f.checks.placements() != placed {
				wrong = "topics move"
			}
			if wrong == "" {
				return
			}
		}
		if time.Now().After(bound) {
			f.checks.fail("%s: %s", when, wrong)
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// unsettled says what is not as it must be; empty: nothing.
func (f *fleet) unsettled() string {
	for i, n := range f.nodes {
		want := f.checks.wanted(i)
		if n.hasEnded() {
			if want.registered || want.serves && !f.settings.Restarts { // what restarts a broker at once may have begun to when the sidecar ended
				return fmt.Sprintf("%s has ended, and is registered (%v) or serves (%v)", n.id, want.registered, want.serves)
			}
			continue
		}
		s, ok := n.status()
		switch {
		case !ok:
			return n.id + " has no sidecar"
		case !want.registered:
			return n.id + " is not registered: " + s.Summary
		case want.suspect:
			return n.id + " is a suspect still: " + s.Summary
		case want.left:
			return n.id + " is registered, and its member record says that it left on purpose"
		case s.Attachment != "attached" || s.Epoch != want.create:
			return fmt.Sprintf("%s is %s under epoch %d, and registered with %d: %s", n.id, s.Attachment, s.Epoch, want.create, s.Summary)
		case s.Mode == string(recovery.Drained) && want.mode == string(recovery.Active) && want.restored:
			// The drain went with the backup, and what is there now counts as far as what is
			// remembered: nothing tells the two apart. See README.md.
		case s.Mode != want.mode || s.Mode == "":
			return fmt.Sprintf("%s is %s, and %s in the store", n.id, s.Mode, want.mode)
		}
		topics := want.assigned
		if s.Mode == string(recovery.Drained) {
			topics = nil
		}
		if !slices.Equal(want.serving, topics) {
			return fmt.Sprintf("%s is %s and serves %v, not %v: %s", n.id, s.Mode, want.serving, topics, s.Summary)
		}
		if ready := n.ready(); ready != (s.Mode == string(recovery.Active)) {
			return fmt.Sprintf("%s is %s, and ready is %v: %s", n.id, s.Mode, ready, n.why())
		}
	}
	return f.checks.misplaced()
}
