package simulation

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster/memory"
)

// storeFaults are what the store answers under storeErrors.
var storeFaults = []error{memory.ErrNoLeader, memory.ErrNoSpace, memory.ErrTimeout, memory.ErrLeaderChanged}

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
	// Drawn from the time: which of two requests of one moment comes first is not the seed's.
	if f.flaky > 0 && rand.New(rand.NewPCG(f.schedule.Seed, uint64(time.Since(f.born)))).IntN(2) == 0 {
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
	n.fleet.checks.network(n.index, 1, true)
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
	n.fleet.checks.network(n.index, -1, true)
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
			f.elect(func() { f.store.ChangeLeader(0) })
		}
	case storeErrors:
		err := storeFaults[e.Arg]
		silent := errors.Is(err, memory.ErrTimeout)
		f.checks.networks(1, silent)
		f.mu.Lock()
		f.faults = append(f.faults, err)
		f.mu.Unlock()
		time.Sleep(e.For)
		f.mu.Lock()
		at := slices.IndexFunc(f.faults, func(other error) bool { return errors.Is(other, err) })
		f.faults = slices.Delete(f.faults, at, at+1)
		f.mu.Unlock()
		f.checks.networks(-1, silent)
	case flakyStore:
		f.checks.networks(1, true)
		f.trouble(&f.flaky, e.For)
		f.checks.networks(-1, true)
	case busyStore:
		f.checks.networks(1, true)
		f.trouble(&f.busy, e.For)
		f.checks.networks(-1, true)
	case newLeader:
		f.store.EndWatches(memory.ErrNoLeader)
		f.elect(func() { f.store.ChangeLeader(0) })
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
	case leave:
		n.leave(e)
	case freezeSidecar:
		n.freezeSidecar(e.For)
	case crashBroker:
		n.broker.kill()
		if f.settings.Restarts {
			f.supervise(n)
		}
		time.Sleep(e.For)
		n.broker.start()
	case lameDuck:
		n.lameDuck(e)
	case freezeBroker:
		f.checks.unwell(e.Node, 1)
		n.broker.freeze()
		time.Sleep(e.For)
		n.broker.thaw()
		f.checks.unwell(e.Node, -1)
	case hang:
		f.hang(e)
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
	case pause:
		n.pause(e.For)
		time.Sleep(e.For)
	case resume:
		n.resume()
	case join:
		n.broker.start()
		n.startSidecar()
	case createTopic:
		f.admin(func() {
			_, _ = f.store.Put(f.life, &pb.PutRequest{Key: []byte(f.keys.TopicRecord(f.topic(e.Arg))), Value: []byte("null")})
		})
	case deleteTopic:
		f.deleteTopic(f.topic(e.Arg))
	case deleteRecord:
		f.delete(f.keys.TopicRecord(f.topic(e.Arg)))
	case crashNode:
		n.crashAll(e)
	case powerCut:
		for i, n := range f.nodes {
			// A host more is as good as random, and the same each time.
			later := e
			later.For += e.At * time.Duration(7*i+3) % (f.settings.TTL / 2)
			both.Go(func() { n.crashAll(later) })
		}
		if e.Arg == 1 {
			time.Sleep(e.For / 2)
			f.elect(func() { f.store.ChangeLeader(0) })
		}
	case restartFleet:
		for _, n := range f.nodes {
			both.Go(func() { n.crashAll(e) })
		}
	case roll:
		f.roll(e)
	default:
		f.misdo(e)
	}
}

func (n *node) crashAll(e event) {
	n.broker.kill()
	back := e.Arg
	if e.Do == powerCut {
		back = 0
	}
	n.crashSidecar(back)
	time.Sleep(e.For)
	n.broker.start()
	time.Sleep(e.At % (300 * time.Millisecond)) // as good as random, and the same each time
	n.startSidecar()
}

// atOnce is how long whatever restarts a broker at once takes.
const atOnce = 200 * time.Millisecond

// supervise starts a broker again that was stopped.
func (f *fleet) supervise(n *node) {
	wait := f.settings.margin() + time.Second
	if f.settings.Restarts {
		wait = atOnce
	}
	f.aside.Go(func() {
		select {
		case <-time.After(wait):
			if !n.hasEnded() { // else it was stopped for good
				n.broker.start()
			}
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
		stranded := f.checks.stranded()
		for _, topic := range slices.Sorted(maps.Keys(stranded)) {
			from := stranded[topic]
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
		if f.checks.owner(topic) < 0 { // else a backup brought it back
			f.note("%s is handed to %s", topic, to)
			f.txn(key, false, put(f.keys.Assignment(to, topic)))
		}
		f.isMoving(topic, false)
	})
}

// holds reports whether the broker serves the topic, or would after a start.
func (b *broker) holds(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[topic]
}
