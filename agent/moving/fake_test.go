package moving

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery/moves"
)

// stored is a topic as a broker has it.
type stored struct {
	messages []string
	floor    uint64
	served   bool
	half     bool   // a copy that is not whole
	move     string // that has sealed or copied it
	resumed  bool   // by that move
}

// side is one broker with its worker, and the rest of the sidecar as the worker sees it.
type side struct {
	id     string
	stage  *stage
	client *cluster.Client
	lose   func(*pb.TxnRequest) bool // the answer to a transaction; under mu
	blind  string                    // key whose reading fails
	worker *Worker
	orders Orders
	end    func() // of the worker; it waits

	mu       sync.Mutex
	topics   map[string]*stored
	faults   map[moves.Act]func(ctx context.Context, do func() error) error
	acts     []moves.Act // begun
	told     []moves.Phase
	held     []string
	heldTold int
	unmoved  []string // that SetElsewhere was told of
	busy     bool     // something else is asked of the broker
	foreign  bool     // locks are of others
	foreseen error    // what would fail once a topic is withdrawn
	crowded  string   // a topic with very many consumers
}

// pass does an act, as the fault wants it if there is one.
func (s *side) pass(ctx context.Context, act moves.Act, do func() error) error {
	s.mu.Lock()
	s.acts = append(s.acts, act)
	fault := s.faults[act]
	s.mu.Unlock()
	locked := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return do()
	}
	if fault == nil {
		return locked()
	}
	return fault(ctx, locked)
}

func refused(format string, args ...any) error {
	return brokerapi.Errorf(brokerapi.ErrRefused, format, args...)
}

func (t *stored) extent() moves.Extent {
	e := moves.Extent{Empty: len(t.messages) == 0, First: 1, Last: uint64(len(t.messages)), Count: uint64(len(t.messages)),
		Floors: map[string]uint64{"c": t.floor}, Config: "k", Rests: "on a slice"}
	for _, m := range t.messages {
		e.Bytes += uint64(len(m))
	}
	return e
}

func (s *side) Extent(ctx context.Context, topic string) (e moves.Extent, err error) {
	return e, s.pass(ctx, moves.HandOver, func() error {
		if s.topics[topic] == nil {
			return refused("%s: not here", topic)
		}
		e = s.topics[topic].extent()
		for i := range 20_000 {
			if topic != s.crowded {
				break
			}
			e.Floors[fmt.Sprintf("consumer-%010d", i)] = 2
		}
		return nil
	})
}

func (s *side) Accept(ctx context.Context, topic string, _ []byte, _ moves.Extent, _ brokerapi.Peer) error {
	return s.pass(ctx, moves.Accept, func() error {
		if s.foreseen != nil {
			return s.foreseen
		}
		if t := s.topics[topic]; t != nil && (t.resumed || t.move == "") {
			return refused("%s: is here already", topic)
		}
		return nil
	})
}

func (s *side) Seal(ctx context.Context, topic, move string, _ bool) (e moves.Extent, err error) {
	return e, s.pass(ctx, moves.Seal, func() error {
		t := s.topics[topic]
		if t == nil || t.move == move && t.resumed || t.move != "" && t.move != move && !t.served {
			return refused("%s: not here, or another move's", topic)
		}
		t.served, t.resumed, t.move = false, false, move
		e = t.extent()
		return nil
	})
}

func (s *side) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, _ moves.Extent, meter brokerapi.Meter) (e moves.Extent, err error) {
	source := s.stage.sides[from.ID].peek(topic)
	err = s.pass(ctx, moves.Copy, func() error {
		if t := s.topics[topic]; t != nil && (t.served || t.resumed) {
			return refused("%s: is served here", topic)
		}
		s.topics[topic] = &stored{move: move, half: true, floor: source.floor}
		return nil
	})
	if err != nil {
		return e, err
	}
	for _, m := range source.messages {
		if err := meter(ctx, len(m)); err != nil {
			return e, err
		}
		s.change(func() { s.topics[topic].messages = append(s.topics[topic].messages, m) })
	}
	s.change(func() { s.topics[topic].half = false; e = s.topics[topic].extent() })
	return e, nil
}

func (s *side) Resume(ctx context.Context, topic, move string, _ []byte, sealed *moves.Extent) (e moves.Extent, err error) {
	act := moves.Resume
	if s.id == "a" {
		act = moves.Restore
	}
	return e, s.pass(ctx, act, func() error {
		t := s.topics[topic]
		if t == nil || t.half || t.move != move && sealed != nil {
			return refused("%s: not what was sealed", topic)
		}
		for _, other := range s.stage.sides {
			if u := other.peekFrom(s, topic); u.served {
				s.stage.t.Errorf("%s serves %s, and %s resumes it", other.id, topic, s.id)
			}
		}
		t.served, t.resumed = true, true
		e = t.extent()
		return nil
	})
}

func (s *side) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (c moves.Content, err error) {
	source := s.stage.sides[from.ID].peek(topic)
	err = s.pass(ctx, moves.Compare, func() error {
		if mine := s.topics[topic].messages; !slices.Equal(mine[:min(len(mine), len(source.messages))], source.messages) {
			c.Differs = "a message"
		}
		c.Compared, c.Hash = sealed.Count, "h"
		return nil
	})
	return c, errors.Join(err, meter(ctx, int(sealed.Bytes)))
}

func (s *side) Remove(ctx context.Context, topic, move string) error {
	act := moves.Discard
	if s.id == "a" {
		act = moves.Remove
	}
	return s.pass(ctx, act, func() error {
		if t := s.topics[topic]; t != nil && (t.served || t.move != move) {
			return refused("%s: served here, or another move's", topic)
		}
		delete(s.topics, topic)
		return nil
	})
}

// peek is a topic as the side has it; nothing if it has not.
func (s *side) peek(topic string) (t stored) {
	s.change(func() {
		if s.topics[topic] != nil {
			t = *s.topics[topic]
			t.messages = slices.Clone(t.messages)
		}
	})
	return t
}

func (s *side) peekFrom(who *side, topic string) stored {
	if who == s {
		return stored{}
	}
	return s.peek(topic)
}

func (s *side) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// loses has answers to transactions lost.
func (s *side) loses(which func(*pb.TxnRequest) bool) { s.change(func() { s.lose = which }) }

func (s *side) SetHeld(topics, _ []string) {
	s.change(func() { s.held = topics; s.heldTold++ })
}

func (s *side) SetElsewhere(topic string, _ int64) {
	s.change(func() {
		if !slices.Contains(s.unmoved, topic) {
			s.unmoved = append(s.unmoved, topic)
		}
	})
}

func (s *side) Calm(string) (calm, ours bool) {
	s.change(func() { calm, ours = !s.busy, !s.foreign })
	return calm, ours
}

func (s *side) Kick() {}

func (s *side) count(act moves.Act) (n int) {
	s.change(func() {
		for _, a := range s.acts {
			if a == act {
				n++
			}
		}
	})
	return n
}

// fault has an act done as f wants it; nil: as ever.
func (s *side) fault(act moves.Act, f func(ctx context.Context, do func() error) error) {
	s.change(func() { s.faults[act] = f })
}

// once has the next such act done as f wants it.
func (s *side) once(act moves.Act, f func(ctx context.Context, do func() error) error) {
	s.fault(act, func(ctx context.Context, do func() error) error {
		s.fault(act, nil)
		return f(ctx, do)
	})
}

func hangs(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// forgetful loses answers as the side's lose wants it.
type forgetful struct {
	*memory.Conn
	s *side
}

func (f forgetful) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	blind := ""
	f.s.change(func() { blind = f.s.blind })
	if blind != "" && strings.Contains(fmt.Sprint(args), "request_range:{key:\""+blind) {
		return status.Error(codes.Unavailable, "connection reset by peer")
	}
	err := f.Conn.Invoke(ctx, method, args, reply, opts...)
	if txn, ok := args.(*pb.TxnRequest); ok && err == nil {
		lost := false
		f.s.change(func() { lost = f.s.lose != nil && f.s.lose(txn) })
		if lost {
			return status.Error(codes.Unavailable, "connection reset by peer")
		}
	}
	return err
}

// stage is two brokers, a and b, on an etcd in memory.
type stage struct {
	t     *testing.T
	store *memory.Server
	links map[string]*memory.Link
	sides map[string]*side
	log   *bytes.Buffer // read it after synctest.Wait
	set   Settings
}

// onStage runs a claim in virtual time; a has those topics, and is assigned them. Whatever was
// begun has to end by itself after it.
func onStage(t *testing.T, set Settings, topics []string, claim func(g *stage, a, b *side)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &stage{t: t, store: memory.New(memory.Config{}), links: map[string]*memory.Link{}, sides: map[string]*side{}, log: &bytes.Buffer{}, set: set}
		for _, id := range []string{"a", "b"} {
			g.links[id] = memory.NewLink()
			s := &side{id: id, stage: g, topics: map[string]*stored{}, faults: map[moves.Act]func(context.Context, func() error) error{}}
			s.client = cluster.Over(cluster.Config{}, forgetful{g.store.Conn(g.links[id]), s}, slog.New(slog.DiscardHandler))
			defer func() { _ = s.client.Close() }()
			g.sides[id] = s
			s.start()
			s.register()
		}
		a, b := g.sides["a"], g.sides["b"]
		for _, topic := range topics {
			a.topics[topic] = &stored{messages: []string{"one", "two", "three"}, floor: 2, served: true}
			g.put("/cluster/brokers/a"+topic, "null")
		}
		claim(g, a, b)
		a.end()
		b.end()
	})
}

// start runs a worker, as a sidecar's process does.
func (s *side) start() {
	set := s.stage.set
	set.Me, set.AtOnce = func() string { return s.id }, max(set.AtOnce, 1)
	if set.Mover == nil && set.Sender == nil {
		set.Mover = s
	}
	if set.DrainsAtOnce = max(set.DrainsAtOnce, 1); set.Drained == nil {
		set.Drained = func(context.Context, string) error { return nil }
	}
	if set.Sync == nil {
		set.Sync = unseen
	}
	set.Told = func(m moves.Move) { s.change(func() { s.told = append(s.told, m.Phase) }) }
	w := New(set, s.client, s, slog.New(slog.NewTextHandler(&locked{w: s.stage.log}, nil)), prometheus.NewPedanticRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
			s.stage.t.Errorf("Run returned %v", err)
		}
	}()
	w.SetOrders(s.orders)
	s.worker, s.end = w, func() { cancel(); <-ended }
}

// unseen is the Sync of a sidecar that does not see its broker's data.
func unseen() (dir string, err error) { return "", nil }

// locked is a buffer for loggers of several workers.
type locked struct{ w *bytes.Buffer }

var logging sync.Mutex

func (l *locked) Write(p []byte) (int, error) {
	logging.Lock()
	defer logging.Unlock()
	return l.w.Write(p)
}

// register gives the broker a registration, which is a new one each time, and orders to act.
func (s *side) register() {
	t, ctx := s.stage.t, s.stage.t.Context()
	seen, err := s.client.Snapshot(ctx, s.id)
	if err != nil {
		t.Fatal(err)
	}
	lease, _, err := s.client.Grant(ctx, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	done, err := s.client.Register(ctx, cluster.RegisterRequest{LeaseID: lease, Seen: seen, Value: []byte(`{"broker_url":"nats://` + s.id + `:4222"}`),
		Member: cluster.Member{Incarnation: "i", At: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	s.stage.put("/cluster/brokers/"+s.id+"/state", `{"mode":"active"}`)
	s.order(Orders{Attached: true, Mode: cluster.ModeActive, Who: cluster.Claimant{BrokerID: s.id, Incarnation: "i", Epoch: done.Revision, LeaseID: lease}})
}

func (s *side) order(o Orders) {
	s.orders = o
	s.worker.SetOrders(o)
}

// detach is what a fence is to the worker; the registration ends.
func (s *side) detach() {
	lease := s.orders.Who.LeaseID
	s.order(Orders{Mode: cluster.ModeActive})
	s.stage.store.Revoke(lease)
}

func (g *stage) put(key, value string) {
	g.t.Helper()
	if _, err := g.store.Put(g.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *stage) get(key string) string {
	g.t.Helper()
	r, err := g.store.Range(g.t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		g.t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// begin begins to move a topic from a to b.
func (g *stage) begin(topic string) {
	g.t.Helper()
	e := g.sides["a"].topics[topic].extent()
	m := moves.Move{ID: "m" + strings.ReplaceAll(topic, "/", "-"), Topic: topic, From: "a", To: "b", By: "operator", Planned: &e}
	if g.set.Sender != nil {
		m.Sent, m.Planned = true, nil
	}
	if err := g.sides["a"].worker.Begin(g.t.Context(), Shown{Move: m}); err != nil {
		g.t.Fatal(err)
	}
}

// after lets virtual time pass.
func (g *stage) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (g *stage) journal(topic string) moves.Move {
	g.t.Helper()
	m, err := moves.Parse(topic, []byte(g.get("/cluster/moves"+topic)))
	if err != nil {
		g.t.Fatal(err)
	}
	return m
}

// wantPhase looks where a move is.
func (g *stage) wantPhase(topic string, want moves.Phase) moves.Move {
	g.t.Helper()
	m := g.journal(topic)
	if m.Phase != want {
		g.t.Errorf("%s: phase %s, error %q; want %s", topic, m.Phase, m.Error, want)
	}
	return m
}

// wantServed looks who serves a topic, whole, and whose it is in etcd.
func (g *stage) wantServed(topic, by string) {
	g.t.Helper()
	for id, s := range g.sides {
		t := s.peek(topic)
		if t.served != (id == by) {
			g.t.Errorf("%s: served at %s: %v; want it served at %s", topic, id, t.served, by)
		}
		if id == by && (fmt.Sprint(t.messages) != "[one two three]" || t.floor != 2) {
			g.t.Errorf("%s at %s: messages %q, floor %d", topic, id, t.messages, t.floor)
		}
		if mine := g.get("/cluster/brokers/"+id+topic) != ""; mine != (id == by) {
			g.t.Errorf("%s: assigned to %s: %v; want it assigned to %s", topic, id, mine, by)
		}
	}
}

// wantFree looks that nothing is held.
func (g *stage) wantFree() {
	g.t.Helper()
	for id, s := range g.sides {
		s.change(func() {
			if len(s.held) > 0 {
				g.t.Errorf("%s holds %q, want nothing", id, s.held)
			}
		})
	}
}

func (g *stage) cancel(topic string) {
	g.t.Helper()
	if _, err := g.sides["b"].worker.Cancel(g.t.Context(), g.journal(topic).ID, "by an operator"); err != nil {
		g.t.Fatal(err)
	}
}
