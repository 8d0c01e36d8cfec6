package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// warmUp is the time before the schedule begins, in which everybody registers.
const warmUp = 6 * time.Second

// storeFaults are what the store answers under storeErrors.
var storeFaults = []error{memory.ErrNoLeader, memory.ErrNoSpace, memory.ErrTimeout, memory.ErrLeaderChanged}

// fleet is one simulated cluster and the schedule that happens to it.
type fleet struct {
	schedule schedule
	settings settings
	keys     cluster.Keys
	store    *memory.Server
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
		f := &fleet{schedule: s, settings: s.Settings, keys: cluster.NewKeys("", ""), born: time.Now(), trace: trace,
			random: rand.New(rand.NewPCG(s.Seed, 2)), moving: map[string]bool{}, log: slog.New(slog.DiscardHandler)}
		if trace {
			f.log = slog.New(slog.NewTextHandler(teller{f}, &slog.HandlerOptions{Level: slog.LevelInfo}))
		}
		f.live(dir)
		o = outcome{f.checks.found(), f.story}
	})
	return o
}

// teller puts the sidecars' logs into the story.
type teller struct{ f *fleet }

func (t teller) Write(p []byte) (int, error) {
	t.f.note("    %s", p[min(len(p), 41):max(min(len(p), 41), len(p)-1)])
	return len(p), nil
}

func (f *fleet) clock() lease.Instant { return lease.Instant(bootOffset + time.Since(f.born)) }

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

// live is the whole simulation.
func (f *fleet) live(dir string) {
	f.store = memory.New(memory.Config{})
	f.checks = newChecks(f)
	f.store.Observe(f.checks.stored)
	f.store.SetFault(f.fault)
	var end context.CancelFunc
	f.life, end = context.WithCancel(context.Background())
	f.aside.Go(func() { _ = f.store.Run(f.life) })
	f.aside.Go(func() { f.checks.run(f.life) })
	late := f.intN(2) == 0
	for i := range f.settings.Nodes {
		n := &node{fleet: f, index: i, id: fmt.Sprintf("n%d", i), link: memory.NewLink(), healed: make(chan struct{})}
		n.dir = filepath.Join(dir, n.id)
		n.broker = newBroker(n.id, f.settings.Forgets)
		n.broker.changed = func(why string) { f.checks.broker(i, n.broker, why) }
		n.link.SetLate(late)
		n.delays()
		n.guard = &guardian{n: n}
		f.aside.Go(func() { n.guard.run(f.life) })
		f.nodes = append(f.nodes, n)
	}
	f.checks.begin()
	for i := range f.settings.Topics {
		f.admin(func() {
			_, _ = f.store.Put(f.life, &pb.PutRequest{
				Key: []byte(f.keys.Assignment(f.nodes[i%len(f.nodes)].id, f.topic(i))), Value: []byte("null")})
		})
	}
	for _, n := range f.nodes {
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
			f.do(e)
		})
	}
	events.Wait()
	f.note("--- quiet")
	for _, n := range f.nodes {
		n.startSidecar()
		n.broker.start()
	}
	f.settle("after the quiet time")
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
	end()
	f.aside.Wait()
	for _, n := range f.nodes {
		n.link.Break()
	}
	f.store.Wait()
}

// settle waits until everybody is as the store asks, and stays so.
func (f *fleet) settle(when string) {
	bound := time.Now().Add(2*f.settings.TTL + 45*time.Second)
	for {
		wrong := f.unsettled()
		if wrong == "" {
			time.Sleep(3 * time.Second)
			if wrong = f.unsettled(); wrong == "" {
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
		s, ok := n.status()
		switch {
		case !ok:
			return n.id + " has no sidecar"
		case !want.registered:
			return n.id + " is not registered: " + s.Summary
		case s.Attachment != "attached" || s.Epoch != want.create:
			return fmt.Sprintf("%s is %s under epoch %d, and registered with %d: %s", n.id, s.Attachment, s.Epoch, want.create, s.Summary)
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
	return ""
}

// admin writes to the store as no sidecar does, through whatever is wrong with it.
func (f *fleet) admin(do func()) {
	f.stranger.Store(true)
	defer f.stranger.Store(false)
	do()
}

func (f *fleet) fault(method string) error {
	if f.stranger.Load() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) > 0 {
		return f.faults[len(f.faults)-1]
	}
	if f.busy > 0 && !strings.Contains(method, "Lease/") {
		return memory.ErrTimeout
	}
	if f.flaky > 0 && f.random.IntN(2) == 0 {
		return memory.ErrTimeout
	}
	return nil
}

// trouble counts one more of a kind for a time.
func (f *fleet) trouble(kind *int, d time.Duration) {
	add := func(n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		*kind += n
	}
	add(1)
	time.Sleep(d)
	add(-1)
}

// delays sets what the node's link delays, and how it is cut.
func (n *node) delays() {
	n.mu.Lock()
	defer n.mu.Unlock()
	base := n.fleet.settings.Latency
	requests, replies := base+n.slowness[0], base+n.slowness[1]
	n.link.SetDelay(func(d memory.Direction) time.Duration {
		if d == memory.Requests {
			return requests
		}
		return replies
	})
}

// obstruct makes the way to etcd worse for a time.
func (n *node) obstruct(d time.Duration, requests, replies int, slow [2]time.Duration) {
	n.fleet.checks.network(n.index, 1)
	change := func(sign int) {
		n.mu.Lock()
		n.cuts[0] += sign * requests
		n.cuts[1] += sign * replies
		n.slowness[0] += time.Duration(sign) * slow[0]
		n.slowness[1] += time.Duration(sign) * slow[1]
		var cut memory.Direction
		if n.cuts[0] > 0 {
			cut |= memory.Requests
		}
		if n.cuts[1] > 0 {
			cut |= memory.Replies
		}
		n.link.Cut(cut)
		if cut == 0 && requests+replies > 0 {
			close(n.healed)
			n.healed = make(chan struct{})
		}
		n.mu.Unlock()
		n.delays()
	}
	change(1)
	time.Sleep(d)
	change(-1)
	n.fleet.checks.network(n.index, -1)
}

// do makes one event happen, and returns when it is over.
func (f *fleet) do(e event) {
	n := f.nodes[e.Node]
	slow := time.Duration(e.Arg) * time.Millisecond
	var both sync.WaitGroup
	defer both.Wait()
	switch e.Do {
	case cut:
		n.obstruct(e.For, 1, 1, [2]time.Duration{})
	case cutRequests:
		n.obstruct(e.For, 1, 0, [2]time.Duration{})
	case cutReplies:
		n.obstruct(e.For, 0, 1, [2]time.Duration{})
	case slowNetwork:
		n.obstruct(e.For, 0, 0, [2]time.Duration{slow, slow})
	case slowReplies:
		n.obstruct(e.For, 0, 0, [2]time.Duration{0, slow})
	case freezeStore:
		for _, n := range f.nodes {
			both.Go(func() { n.obstruct(e.For, 1, 1, [2]time.Duration{}) })
		}
		if e.Arg == 1 {
			time.Sleep(e.For)
			f.store.ChangeLeader(0)
			f.checks.elected()
		}
	case storeErrors:
		err := storeFaults[e.Arg]
		f.checks.networks(1)
		f.mu.Lock()
		f.faults = append(f.faults, err)
		f.mu.Unlock()
		time.Sleep(e.For)
		f.mu.Lock()
		at := slices.IndexFunc(f.faults, func(other error) bool { return errors.Is(other, err) })
		f.faults = slices.Delete(f.faults, at, at+1)
		f.mu.Unlock()
		f.checks.networks(-1)
	case flakyStore:
		f.checks.networks(1)
		f.trouble(&f.flaky, e.For)
		f.checks.networks(-1)
	case busyStore:
		f.checks.networks(1)
		f.trouble(&f.busy, e.For)
		f.checks.networks(-1)
	case newLeader:
		f.store.EndWatches(memory.ErrNoLeader)
		f.store.ChangeLeader(0)
		f.checks.elected()
	case revokeLease:
		if id := f.checks.wanted(e.Node).lease; id != 0 {
			f.admin(func() { f.store.Revoke(id) })
		}
	case deleteKey:
		f.delete(f.keys.Registration(n.id))
	case deleteState:
		f.delete(f.keys.State(n.id))
	case crashSidecar:
		n.crashSidecar(e.Arg)
		time.Sleep(e.For)
		n.startSidecar()
	case stopSidecar:
		n.stopSidecar()
		time.Sleep(e.For)
		n.startSidecar()
	case freezeSidecar:
		n.freezeSidecar(e.For)
	case crashBroker:
		n.broker.kill()
		time.Sleep(e.For)
		n.broker.start()
	case freezeBroker:
		f.checks.unwell(e.Node, 1)
		n.broker.freeze()
		time.Sleep(e.For)
		n.broker.thaw()
		f.checks.unwell(e.Node, -1)
	case slowBroker:
		f.checks.unwell(e.Node, 1)
		n.broker.set(func() { n.broker.slow += slow })
		time.Sleep(e.For)
		n.broker.set(func() { n.broker.slow -= slow })
		f.checks.unwell(e.Node, -1)
	case refuseQuiesce:
		f.checks.unwell(e.Node, 1)
		f.checks.stubbornly(e.Node, e.For)
		n.broker.set(func() { n.broker.refusing++ })
		time.Sleep(e.For)
		n.broker.set(func() { n.broker.refusing-- })
		f.checks.unwell(e.Node, -1)
	case drain:
		n.steer("drain")
	case activate:
		n.steer("activate")
	case drainKey:
		f.admin(func() {
			_, _ = f.store.Put(f.life, &pb.PutRequest{Key: []byte(f.keys.State(n.id)),
				Value: []byte(`{"mode":"drained","reason":"drill","by":"operator"}`)})
		})
		f.checks.forgot(e.Node)
	case move:
		f.hand(f.topic(e.Arg), n.id)
	case crashNode:
		n.crashAll(e)
	case restartFleet:
		for _, n := range f.nodes {
			both.Go(func() { n.crashAll(e) })
		}
	}
}

func (n *node) crashAll(e event) {
	n.broker.kill()
	n.crashSidecar(e.Arg)
	time.Sleep(e.For)
	n.broker.start()
	time.Sleep(e.At % (300 * time.Millisecond)) // as good as random, and the same each time
	n.startSidecar()
}

// supervise starts a broker again that was stopped.
func (f *fleet) supervise(n *node) {
	f.aside.Go(func() {
		select {
		case <-time.After(f.settings.margin() + time.Second):
			n.broker.start()
		case <-f.life.Done():
		}
	})
}

func (f *fleet) delete(key string) {
	f.admin(func() { _, _ = f.store.DeleteRange(f.life, &pb.DeleteRangeRequest{Key: []byte(key)}) })
}

// txn commits ops if the key is absent, or is there.
func (f *fleet) txn(key string, present bool, ops ...*pb.RequestOp) {
	compare := &pb.Compare{Key: []byte(key), Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_CreateRevision{}}
	if present {
		compare.Result = pb.Compare_GREATER
	}
	f.admin(func() { _, _ = f.store.Txn(f.life, &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: ops}) })
}

func put(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("null")}}}
}

func del(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

// place moves the topics of brokers that are not registered to one that is, at once, and
// in a transaction that proves it.
func (f *fleet) place() {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-f.life.Done():
			return
		case <-tick.C:
		}
		for topic, from := range f.checks.stranded() {
			if to := f.checks.taker(f.intN(f.settings.Nodes)); to != "" && to != from && !f.isMoving(topic, true) {
				f.note("placer: %s from %s to %s", topic, from, to)
				f.txn(f.keys.Registration(from), false, del(f.keys.Assignment(from, topic)), put(f.keys.Assignment(to, topic)))
				f.isMoving(topic, false)
			}
		}
	}
}

// isMoving reports whether somebody moves the topic, and takes it or gives it back.
func (f *fleet) isMoving(topic string, take bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.moving[topic]
	f.moving[topic] = take
	return was && take
}

// hand moves a topic in order: its broker knows, and has stopped serving it, before it is
// assigned again.
func (f *fleet) hand(topic, to string) {
	if f.isMoving(topic, true) {
		return
	}
	from := f.checks.owner(topic)
	if from < 0 || f.nodes[from].id == to {
		f.isMoving(topic, false)
		return
	}
	old := f.nodes[from]
	key := f.keys.Assignment(old.id, topic)
	f.txn(key, true, del(key))
	deleted := time.Now()
	f.aside.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for old.broker.holds(topic) || !f.checks.reached(from, deleted) {
			select {
			case <-f.life.Done():
				return
			case <-tick.C:
			}
		}
		f.note("%s is handed to %s", topic, to)
		next := f.keys.Assignment(to, topic)
		f.txn(next, false, put(next))
		f.isMoving(topic, false)
	})
}

// holds reports whether the broker serves the topic, or would after a start.
func (b *broker) holds(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[topic]
}
