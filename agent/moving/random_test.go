package moving

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery"
	"holdfast/recovery/moves"
	"holdfast/recovery/topics"
)

var seeds = flag.Int("moving-seeds", 30, "how many random schedules of moves are played")

// kept is a topic at a broker of a random schedule.
type kept struct {
	is   string // served, withdrawn, sealed, half, whole
	move string // that has sealed or copied it last
	msgs []int
}

// node is a broker with its reconciler and its worker; the broker outlives both.
type node struct {
	id     string
	f      *field
	link   *memory.Link
	client *cluster.Client
	orders Orders
	rec    *topics.Reconciler
	worker *Worker
	end    func()
	topics map[string]*kept // under f.mu
}

// field is some brokers on one etcd, and what has been acknowledged to producers.
type field struct {
	t     *testing.T
	store *memory.Server
	story *locked

	mu    sync.Mutex
	rng   *rand.Rand
	rough bool // things go wrong
	nodes map[string]*node
	acked map[string][]int
	next  int
	late  sync.WaitGroup // of acts that come through after their context ended
}

func (f *field) tell(format string, args ...any) {
	fmt.Fprintf(f.story, "%s "+format+"\n", append([]any{time.Now().Format("04:05.000")}, args...)...)
}

// roll is below n, at random.
func (f *field) roll(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

// pass takes a call's time and has things go wrong with it. What bears a
// move's ID may come through long after its caller has gone.
func (n *node) pass(ctx context.Context, what, topic string, do func() error) error {
	locked := func() error {
		n.f.mu.Lock()
		defer n.f.mu.Unlock()
		err := do()
		n.f.tell("%s %s %s: %v", n.id, what, topic, err)
		return err
	}
	wait := time.Duration(1+n.f.roll(2000)) * time.Millisecond
	fate := n.f.roll(20)
	n.f.mu.Lock()
	rough := n.f.rough
	n.f.mu.Unlock()
	switch {
	case !rough:
		fate, wait = 9, time.Millisecond
	case fate == 0:
		return errors.New("no answer")
	case fate == 1: // carried out, and nobody heard of it
		return errors.Join(locked(), errors.New("no answer"))
	case fate == 2:
		wait = time.Duration(n.f.roll(40)) * time.Second
	}
	select {
	case <-time.After(wait):
		return locked()
	case <-ctx.Done():
		if fate < 6 && strings.Contains(what, " by ") { // it is on its way, and bears the move's ID
			n.f.late.Go(func() {
				time.Sleep(wait)
				_ = locked()
			})
		}
		return ctx.Err()
	}
}

// told is what a call has brought; nothing with an error: it may be carried out yet, and write v then.
func told[T any](v *T, err error) (none T, _ error) {
	if err != nil {
		return none, err
	}
	return *v, nil
}

func (k *kept) extent() moves.Extent {
	n := uint64(len(k.msgs))
	return moves.Extent{Empty: n == 0, First: 1, Last: n, Count: n, Bytes: 10 * n}
}

func (n *node) Extent(ctx context.Context, topic string) (moves.Extent, error) {
	var e moves.Extent
	return told(&e, n.pass(ctx, "extent", topic, func() error {
		if n.topics[topic] == nil {
			return refused("not here")
		}
		e = n.topics[topic].extent()
		return nil
	}))
}

func (n *node) Accept(ctx context.Context, topic string, _ []byte, _ moves.Extent, _ brokerapi.Peer) error {
	return n.pass(ctx, "accept", topic, func() error {
		if k := n.topics[topic]; k != nil && k.is != "half" && k.is != "whole" {
			return refused("%s: is here", topic)
		}
		return nil
	})
}

func (n *node) Seal(ctx context.Context, topic, move string, _ bool) (moves.Extent, error) {
	var e moves.Extent
	return told(&e, n.pass(ctx, "seal by "+move, topic, func() error {
		switch k := n.topics[topic]; {
		case k == nil || k.is == "half" || k.is == "whole":
			return refused("%s: not here", topic)
		case k.move > move, k.is == "sealed" && k.move != move, k.is != "sealed" && k.move == move:
			return refused("%s: of move %s", topic, k.move)
		default:
			k.is, k.move = "sealed", move
			e = k.extent()
			return nil
		}
	}))
}

func (n *node) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Extent, error) {
	var e moves.Extent
	whole := false
	err := n.pass(ctx, "copy by "+move, topic, func() error {
		switch k := n.topics[topic]; {
		case k != nil && k.is == "whole" && k.move == move:
			whole, e = true, k.extent()
			return nil
		case k != nil && (k.is != "half" && k.is != "whole" || k.move > move):
			return refused("%s: is here", topic)
		}
		n.topics[topic] = &kept{is: "half", move: move}
		return nil
	})
	if err != nil || whole {
		return told(&e, err)
	}
	if err := meter(ctx, int(sealed.Bytes)); err != nil {
		return moves.Extent{}, err
	}
	return told(&e, n.pass(ctx, "whole copy by "+move, topic, func() error {
		k, source := n.topics[topic], n.f.nodes[from.ID].topics[topic]
		if k == nil || k.is != "half" || k.move != move || source == nil || source.is != "sealed" || source.move != move {
			return errors.New("what was copied is not there any more")
		}
		k.is, k.msgs = "whole", slices.Clone(source.msgs)
		e = k.extent()
		return nil
	}))
}

func (n *node) Resume(ctx context.Context, topic, move string, _ []byte, sealed *moves.Extent) (moves.Extent, error) {
	var e moves.Extent
	return told(&e, n.pass(ctx, "resume by "+move, topic, func() error {
		k := n.topics[topic]
		switch {
		case k == nil || k.is == "half":
			return refused("%s: not here", topic)
		case sealed == nil && (k.is == "served" || k.is == "withdrawn"):
		case k.move != move:
			return refused("%s: of move %s", topic, k.move)
		}
		n.serve(topic, k)
		e = k.extent()
		return nil
	}))
}

// serve serves what nobody else does. The caller holds the mutex.
func (n *node) serve(topic string, k *kept) {
	k.is = "served"
	for _, other := range n.f.nodes {
		if o := other.topics[topic]; other != n && o != nil && o.is == "served" {
			n.f.t.Errorf("%s is served by %s and %s", topic, n.id, other.id)
		}
	}
}

func (n *node) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent, _ brokerapi.Meter) (moves.Content, error) {
	var c moves.Content
	return told(&c, n.pass(ctx, "compare", topic, func() error {
		k, source := n.topics[topic], n.f.nodes[from.ID].topics[topic]
		if k == nil || source == nil {
			return errors.New("one of them is not there")
		}
		c.Compared = sealed.Count
		if !slices.Equal(k.msgs[:sealed.Last], source.msgs[:sealed.Last]) {
			c.Differs = "a message"
		}
		return nil
	}))
}

func (n *node) Remove(ctx context.Context, topic, move string) error {
	return n.pass(ctx, "remove by "+move, topic, func() error {
		if k := n.topics[topic]; k != nil && (k.is == "served" || k.is == "withdrawn" || k.move != move) {
			return refused("%s: is of move %s", topic, k.move)
		}
		delete(n.topics, topic)
		return nil
	})
}

func (n *node) Topics(ctx context.Context) (topics.Held, error) {
	var h topics.Held
	return told(&h, n.pass(ctx, "topics", "", func() error {
		for topic, k := range n.topics {
			if k.is == "served" {
				h.Serving = append(h.Serving, topic)
			} else {
				h.Withdrawn = append(h.Withdrawn, topic)
			}
		}
		return nil
	}))
}

func (n *node) Serve(ctx context.Context, topic string, _ []byte) error {
	return n.pass(ctx, "serve", topic, func() error {
		k := n.topics[topic]
		switch {
		case k == nil: // a broker would make it, empty
			n.f.t.Errorf("%s was asked to make %s anew", n.id, topic)
			return errors.New("not here")
		case k.is == "half":
			return errors.New("half a copy")
		}
		n.serve(topic, k)
		return nil
	})
}

func (n *node) Withdraw(ctx context.Context, topic string) error {
	return n.pass(ctx, "withdraw", topic, func() error {
		if k := n.topics[topic]; k != nil && k.is == "served" {
			k.is = "withdrawn"
		}
		return nil
	})
}

// start runs the sidecar's parts, as a new process does.
func (n *node) start() {
	quiet, reg := slog.New(slog.DiscardHandler), prometheus.NewPedanticRegistry()
	n.rec = topics.NewReconciler(topics.ReconcilerSettings{Concurrency: 4, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second, Moves: true}, n, n.client, quiet, reg)
	n.worker = New(Settings{Me: func() string { return n.id }, Mover: n, AtOnce: 2, DrainsAtOnce: 1, Sync: unseen, Drained: func(context.Context, string) error { return nil },
		Told: func(m moves.Move) { n.f.tell("%s: %s %s %s %s", n.id, m.Topic, m.ID, m.Phase, m.Error) }}, n.client, n.rec, quiet, reg)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	prefix := "/cluster/brokers/" + n.id
	assignments := func(ctx context.Context) error {
		return n.client.Follow(ctx, cluster.Target{Key: prefix + "/", Prefix: true}, func(u cluster.Update) {
			names := func(keys []string) (topics []string) {
				for _, key := range keys {
					if topic := strings.TrimPrefix(key, prefix); strings.Count(topic, "/") == 2 {
						topics = append(topics, topic)
					}
				}
				return topics
			}
			if n.f.roll(4) == 0 { // what goes on is heard late, while journals are heard at once
				time.Sleep(time.Duration(n.f.roll(5000)) * time.Millisecond)
			}
			n.rec.SetAssigned(u.Revision, u.Full, names(u.PutKeys()), names(u.Deletes))
		}, nil)
	}
	for _, run := range []func(context.Context) error{n.rec.Run, n.worker.Run, assignments} {
		running.Go(func() { _ = run(ctx) })
	}
	n.end = func() { cancel(); running.Wait() }
	n.order(n.orders)
}

// order tells orders in the order in which a sidecar does.
func (n *node) order(o Orders) {
	n.orders = o
	n.worker.SetOrders(o)
	n.rec.SetOrders(recovery.Orders{Epoch: o.Who.Epoch, Mode: recovery.Mode(o.Mode), Attached: o.Attached, Instance: "p"})
}

func (n *node) register() {
	ctx := n.f.t.Context()
	direct := cluster.Over(cluster.Config{}, n.f.store.Conn(nil), slog.New(slog.DiscardHandler))
	defer func() { _ = direct.Close() }()
	seen, err := direct.Snapshot(ctx, n.id)
	if err != nil {
		n.f.t.Fatal(err)
	}
	lease, _, err := direct.Grant(ctx, 24*time.Hour)
	if err != nil {
		n.f.t.Fatal(err)
	}
	done, err := direct.Register(ctx, cluster.RegisterRequest{LeaseID: lease, Seen: seen, Value: []byte(`{"broker_url":"x://` + n.id + `"}`),
		Member: cluster.Member{Incarnation: "i", At: time.Now()}})
	if err != nil {
		n.f.t.Fatal(err)
	}
	n.order(Orders{Attached: true, Mode: cluster.ModeActive, Who: cluster.Claimant{BrokerID: n.id, Incarnation: "i", Epoch: done.Revision, LeaseID: lease}})
}

// fence is what a sidecar does that has lost its lease: afterwards nothing is served here.
func (n *node) fence() {
	lease := n.orders.Who.LeaseID
	n.order(Orders{Mode: cluster.ModeActive})
	ctx, cancel := context.WithTimeout(n.f.t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := n.rec.Fence(ctx); err == nil {
			break
		}
	}
	n.f.store.Revoke(lease)
}

// event is one of the things that happen.
func (f *field) event() {
	topic := fmt.Sprintf("/n/%d", f.roll(topicsMoved))
	n := f.nodes[[]string{"a", "b", "c"}[f.roll(len(f.nodes))]]
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	switch f.roll(12) {
	case 0, 1, 2:
		to := []string{"", "a", "b", "c"}[f.roll(len(f.nodes)+1)]
		p, err := n.worker.Prepare(ctx, moves.Move{Topic: topic, To: to, By: "chance"}, nil)
		if err == nil && !p.UnderWay {
			err = n.worker.Begin(ctx, p)
		}
		f.tell("%s begins %s: %v", n.id, topic, err)
	case 3:
		list, _ := n.worker.List(ctx, "")
		for _, s := range list {
			if s.Topic == topic {
				_, err := n.worker.Cancel(ctx, s.ID, "chance")
				f.tell("%s cancels %s: %v", n.id, topic, err)
			}
		}
	case 4:
		f.tell("the way of %s is cut", n.id)
		n.link.Cut([]memory.Direction{memory.Requests, memory.Replies, memory.BothWays}[f.roll(3)])
	case 5:
		n.link.Break()
	case 6, 7:
		for _, n := range f.nodes {
			n.link.Heal()
		}
	case 8:
		f.tell("%s starts anew", n.id)
		n.end()
		n.start()
	case 9:
		f.tell("%s is fenced", n.id)
		n.fence()
		time.Sleep(time.Duration(f.roll(20)) * time.Second)
		n.register()
	case 10: // another process of the broker: it serves nothing before it is told to
		f.tell("the broker of %s starts anew", n.id)
		f.mu.Lock()
		for _, k := range n.topics {
			if k.is == "served" {
				k.is = "withdrawn"
			}
		}
		f.mu.Unlock()
		n.rec.Kick()
	case 11:
		var err error
		if f.roll(3) == 0 {
			err = n.worker.EndDrain(ctx, "chance")
		} else {
			err = n.worker.BeginDrain(ctx, moves.Drain{By: "chance", Deadline: time.Now().Add(time.Duration(f.roll(120)) * time.Second)})
		}
		f.tell("%s is drained, or not any more: %v", n.id, err)
	}
}

// publish adds a message wherever a topic is served.
func (f *field) publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		for topic, k := range n.topics {
			if k.is == "served" {
				f.next++
				k.msgs = append(k.msgs, f.next)
				f.acked[topic] = append(f.acked[topic], f.next)
			}
		}
	}
}

const topicsMoved = 5

func play(t *testing.T, seed uint64) {
	story := &bytes.Buffer{}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d:\n%s", seed, story)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		f := &field{t: t, store: memory.New(memory.Config{}), story: &locked{w: story}, rng: rand.New(rand.NewPCG(seed, 1)), nodes: map[string]*node{}, acked: map[string][]int{}, rough: true}
		for _, id := range []string{"a", "b", "c"}[:2+f.roll(2)] {
			n := &node{id: id, f: f, link: memory.NewLink(), topics: map[string]*kept{}}
			n.client = cluster.Over(cluster.Config{}, f.store.Conn(n.link), slog.New(slog.DiscardHandler))
			f.nodes[id] = n
			f.put("/cluster/brokers/"+id+"/state", `{"mode":"active"}`)
		}
		for i := range topicsMoved {
			topic := fmt.Sprintf("/n/%d", i)
			f.nodes["a"].topics[topic] = &kept{is: "served"}
			f.put("/cluster/brokers/a"+topic, "null")
		}
		for _, n := range f.nodes {
			n.link.SetDelay(func(memory.Direction) time.Duration { return time.Duration(f.roll(20)) * time.Millisecond })
			n.start()
			n.register()
		}
		for range 60 {
			f.event()
			for range f.roll(10) {
				time.Sleep(time.Duration(f.roll(1000)) * time.Millisecond)
				f.publish()
			}
		}
		f.mu.Lock()
		f.rough = false
		f.mu.Unlock()
		for _, n := range f.nodes {
			n.link.Heal()
		}
		f.tell("nothing goes wrong any more")
		time.Sleep(10 * time.Minute)
		f.late.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		f.judge()
		for _, n := range f.nodes {
			n.end()
			_ = n.client.Close()
		}
		synctest.Wait()
	})
}

func (f *field) put(key, value string) {
	if _, err := f.store.Put(f.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		f.t.Fatal(err)
	}
}

// judge looks at the end, when everything is well: every topic is served by the one to whom it is
// assigned, with everything that was acknowledged, and no move goes on.
func (f *field) judge() {
	var anyone *node
	for _, anyone = range f.nodes {
		break
	}
	list, err := anyone.worker.List(f.t.Context(), "")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range list {
		if !s.Phase.Over() {
			f.t.Errorf("move %s of %s is not over: %s, %s", s.ID, s.Topic, s.Phase, s.Error)
		}
	}
	for id, n := range f.nodes {
		if d := n.worker.Drain(); !d.State.Over() {
			f.t.Errorf("the drain of %s is not over: %s", id, d.Line())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range topicsMoved {
		topic := fmt.Sprintf("/n/%d", i)
		var owners, servers []string
		for id, n := range f.nodes {
			if r, _ := f.store.Range(f.t.Context(), &pb.RangeRequest{Key: []byte("/cluster/brokers/" + id + topic)}); len(r.Kvs) > 0 {
				owners = append(owners, id)
			}
			if k := n.topics[topic]; k != nil && k.is == "served" {
				servers = append(servers, id)
				if !slices.Equal(k.msgs, f.acked[topic]) {
					f.t.Errorf("%s at %s: %d messages, acknowledged were %d", topic, id, len(k.msgs), len(f.acked[topic]))
				}
			}
		}
		if len(owners) != 1 || !slices.Equal(owners, servers) {
			f.t.Errorf("%s: assigned to %q, served by %q", topic, owners, servers)
		}
	}
}

func TestRandomSchedulesOfMovesLoseNothing(t *testing.T) {
	for s := range *seeds {
		t.Run(fmt.Sprint(s+1), func(t *testing.T) { play(t, uint64(s+1)) })
	}
}
