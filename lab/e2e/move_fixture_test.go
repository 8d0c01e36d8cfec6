package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/agent/moving"
	"holdfast/lab/harness"
	"holdfast/lab/linear"
	"holdfast/recovery/moves"
)

// trio is three NATS servers that are no cluster, with a sidecar each: a client knows one of
// them, and goes to the next when a topic is not served there.
type trio struct {
	*stand
	topic   string // at n1 when it begins
	stream  string // what it is in JetStream, once it is served
	brokers []*couple
	links   map[string]harness.Link // from each sidecar to etcd
	conns   map[string]*nats.Conn
	js      map[string]jetstream.JetStream
}

func newTrio(t *testing.T, flags ...string) *trio {
	t.Helper()
	s := &trio{stand: newSharedStand(t), topic: "/default/orders", links: map[string]harness.Link{},
		conns: map[string]*nats.Conn{}, js: map[string]jetstream.JetStream{}}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", s.topic))
	for _, id := range []string{"n1", "n2", "n3"} {
		n, err := s.lab.NewNATS(harness.NATSOptions{Name: id})
		s.ok(err)
		s.ok(n.Launch())
		s.links[id], err = harness.NewProxyLink(s.lab, s.etcd)
		s.ok(err)
		sc, err := s.lab.NewSidecar(harness.SidecarOptions{Broker: n, Endpoints: []string{s.links[id].Endpoint()},
			Flags: slices.Concat(quickFlags(), s.flags, flags)})
		s.ok(err)
		s.brokers = append(s.brokers, &couple{Sidecar: sc, s: s.stand, id: id, nats: n})
		s.ok(sc.Start())
		c, err := n.Connect(nats.ReconnectBufSize(-1)) // what is published in vain never arrives later
		s.ok(err)
		t.Cleanup(c.Close)
		s.conns[id] = c
		s.js[id], err = jetstream.New(c)
		s.ok(err)
	}
	for _, c := range s.brokers {
		s.ok(c.AwaitReady(s.ctx, bound))
	}
	s.side("n1").serves(s.topic)
	var err error
	s.stream, err = s.js["n1"].StreamNameBySubject(s.ctx, harness.Subject(s.topic))
	s.ok(err)
	return s
}

func (s *trio) side(id string) *couple {
	i := slices.IndexFunc(s.brokers, func(c *couple) bool { return c.id == id })
	return s.brokers[i]
}

// streams are those of a server, by name.
func (s *trio) streams(id string) (names []string) {
	s.Helper()
	list := s.js[id].StreamNames(s.ctx)
	for name := range list.Name() {
		names = append(names, name)
	}
	s.ok(list.Err())
	return names
}

// unload runs the verb at a broker and returns its exit code and what it says of the move.
func (s *trio) unload(at string, args ...string) (harness.Result, moving.Shown) {
	s.Helper()
	res, err := s.side(at).Verb(s.ctx, "unload", append(args, "--output", "json")...)
	s.ok(err)
	var m moving.Shown
	if res.Exit == 0 {
		s.ok(json.Unmarshal([]byte(res.Stdout), &m))
	}
	return res, m
}

// moves is what a broker's sidecar says of all moves.
func (s *trio) moves(at string) (list []moving.Shown) {
	s.Helper()
	res, err := s.side(at).Verb(s.ctx, "moves", "--output", "json")
	s.ok(err)
	s.ok(json.Unmarshal([]byte(res.Stdout), &list))
	return list
}

// awaitPhase waits for the journal, later than a revision, to be in a phase.
func (s *trio) awaitPhase(after int64, is func(moves.Move) bool, what string) (m moves.Move, at harness.Change) {
	s.Helper()
	at = s.awaitChange("the move to be "+what, after, func(c harness.Change) bool {
		if c.Key != s.keys.Move(s.topic) || c.Deleted {
			return false
		}
		var err error
		if m, err = moves.Parse(s.topic, []byte(c.Value)); err != nil {
			s.Errorf("journal %s: %v", c.Value, err)
		}
		return is(m)
	})
	return m, at
}

// journal is what etcd has of the move, for messages.
func (s *trio) journal() string {
	res, err := s.etcd.Client().Get(s.ctx, s.keys.Move(s.topic))
	if err != nil || len(res.Kvs) == 0 {
		return fmt.Sprint("no journal: ", err)
	}
	return string(res.Kvs[0].Value)
}

// fill stores n messages of a size, which a snapshot cannot make smaller.
func (s *trio) fill(n, size int) {
	s.Helper()
	data := make([]byte, size)
	for range n {
		_, _ = rand.Read(data)
		_, err := harness.Publish(s.ctx, s.conns["n1"], s.topic, data)
		s.ok(err)
	}
}

func in(p moves.Phase) func(moves.Move) bool {
	return func(m moves.Move) bool { return m.Phase == p }
}

// assigned is who has the topic.
func (s *trio) assigned() (ids []string) {
	s.Helper()
	for _, c := range s.brokers {
		res, err := s.etcd.Client().Get(s.ctx, s.keys.Assignment(c.id, s.topic))
		s.ok(err)
		if len(res.Kvs) > 0 {
			ids = append(ids, c.id)
		}
	}
	return ids
}

// servedBy publishes once at each server, and checks that this one alone takes it.
func (s *trio) servedBy(id string) {
	s.Helper()
	s.side(id).serves(s.topic)
	for at, c := range s.conns {
		ctx, cancel := context.WithTimeout(s.ctx, bound)
		_, err := harness.Publish(ctx, c, s.topic, []byte("x"))
		cancel()
		if (err == nil) != (at == id) || err != nil && !errors.Is(err, nats.ErrNoResponders) {
			s.Errorf(harness.Violation+"%s is to be served by %s alone; a publisher at %s hears %v", s.topic, id, at, err)
		}
	}
	if got := s.assigned(); !slices.Equal(got, []string{id}) {
		s.Errorf("%s is assigned to %v, want %s", s.topic, got, id)
	}
}

// ack is JetStream's word that a message is stored.
type ack struct {
	id   string
	by   string
	Seq  uint64 `json:"seq"`
	Dup  bool   `json:"duplicate"` // an earlier try, of which nothing was heard, had stored it
	felt time.Duration
}

// producer publishes one message after the other, each until it is acknowledged: at the server
// that took the last one, then at the others in turn.
type producer struct {
	s    *trio
	name string
	size int
	log  *linear.History // nil: nobody judges it
	end  context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	acked []ack
	last  error
}

func (s *trio) produce(size int) *producer { return s.produceInto(nil, "p", size) }

// produceInto is produce for one of several, who is taken down.
func (s *trio) produceInto(log *linear.History, name string, size int) *producer {
	p := &producer{s: s, name: name, size: size, log: log, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(s.ctx)
	p.end = cancel
	go p.run(ctx)
	s.Cleanup(p.stop)
	return p
}

func (p *producer) stop() { p.end(); <-p.done }

func (p *producer) run(ctx context.Context) {
	defer close(p.done)
	pace := time.NewTicker(3 * time.Millisecond)
	defer pace.Stop()
	at := 0
	for n := 0; ; n++ {
		began, id := time.Now(), fmt.Sprintf("%s%06d", p.name, n)
		heard := p.log.Append(id)
		for {
			a, err := p.publish(ctx, p.s.brokers[at].id, id)
			p.mu.Lock()
			if p.last = err; err == nil {
				heard(a.Seq)
				a.felt = time.Since(began)
				p.acked = append(p.acked, a)
			}
			p.mu.Unlock()
			if err == nil {
				break
			}
			at = (at + 1) % len(p.s.brokers)
			select {
			case <-pace.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *producer) publish(ctx context.Context, at, id string) (ack, error) {
	c := p.s.conns[at]
	if !c.IsConnected() {
		return ack{}, fmt.Errorf("not connected to %s", at)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m := nats.NewMsg(harness.Subject(p.s.topic))
	m.Header.Set(nats.MsgIdHdr, id)
	m.Data = append([]byte(id), make([]byte, p.size)...)
	answer, err := c.RequestMsgWithContext(ctx, m)
	if err != nil {
		return ack{}, fmt.Errorf("%s: %w", at, err)
	}
	said := struct {
		ack
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}{ack: ack{id: id, by: at}}
	if err = json.Unmarshal(answer.Data, &said); err == nil && said.Error != nil {
		err = errors.New(said.Error.Description)
	}
	return said.ack, err
}

func (p *producer) acks() []ack {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.acked)
}

// awaitMore waits until n more messages are acknowledged, each by one of these, if any is named.
func (p *producer) awaitMore(n int, by ...string) {
	p.s.Helper()
	from := len(p.acks())
	what := fmt.Sprintf("%d more messages to be acknowledged by %v", n, by)
	p.s.ok(harness.Await(p.s.ctx, bound, what, func(context.Context) (bool, string) {
		found := 0
		for _, a := range p.acks()[from:] {
			if len(by) == 0 || slices.Contains(by, a.by) {
				found++
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return found >= n, fmt.Sprint(found, " ", p.last)
	}))
}

// allAt checks that the server has every acknowledged message once, where it was said to be.
func (p *producer) allAt(id string) {
	p.s.Helper()
	stream, err := p.s.js[id].Stream(p.s.ctx, p.s.stream)
	p.s.ok(err)
	state := stream.CachedInfo().State
	at, times := map[uint64]string{}, map[string]int{}
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(p.s.ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		p.s.ok(err)
		at[seq] = m.Header.Get(nats.MsgIdHdr)
		times[at[seq]]++
	}
	before := uint64(0)
	for _, a := range p.acks() {
		if at[a.Seq] != a.id || times[a.id] != 1 {
			p.s.Errorf(harness.Violation+"%s acknowledged %s as %d: %s has %q there, and it %d times",
				a.by, a.id, a.Seq, id, at[a.Seq], times[a.id])
		}
		if a.Seq <= before {
			p.s.Errorf(harness.Violation+"%s acknowledged %s as %d, after %d", a.by, a.id, a.Seq, before)
		}
		before = a.Seq
	}
	felt := slices.MaxFunc(p.acks(), func(a, b ack) int { return int(a.felt - b.felt) })
	p.s.Logf("%d messages acknowledged; the slowest, %s, after %s by %s", len(p.acks()), felt.id, felt.felt.Round(time.Millisecond), felt.by)
}

const durable = "work"

// reader is an application with a durable pull consumer. It knows what it was given and what it has
// acknowledged, and that the server had heard so.
type reader struct {
	s     *trio
	given map[uint64]int
	acked map[uint64]bool
}

// read makes the consumer at n1 and takes some messages, of which it leaves some unacknowledged.
func (s *trio) read(n int, leave func(i int) bool) *reader {
	s.Helper()
	r := &reader{s: s, given: map[uint64]int{}, acked: map[uint64]bool{}}
	c, err := s.js["n1"].CreateConsumer(s.ctx, s.stream, jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 3 * time.Second, MaxAckPending: 1 << 16})
	s.ok(err)
	s.ok(harness.Await(s.ctx, bound, fmt.Sprintf("%d messages", n), func(ctx context.Context) (bool, string) {
		return r.take(ctx, c, n-len(r.given), leave) && len(r.given) >= n, fmt.Sprint(len(r.given))
	}))
	return r
}

// take fetches at most n. What was acknowledged, and is given again, is more than at-least-once.
func (r *reader) take(ctx context.Context, c jetstream.Consumer, n int, leave func(i int) bool) bool {
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return false
	}
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			r.s.Error(err)
			return false
		}
		seq := meta.Sequence.Stream
		if r.given[seq]++; r.acked[seq] {
			r.s.Errorf(harness.Violation+"message %d was acknowledged, and is given again", seq)
		}
		if leave == nil || !leave(len(r.given)) {
			r.acked[seq] = m.DoubleAck(ctx) == nil
		}
	}
	return true
}

// finish goes on at a server, at the cursor, until all that is there was acknowledged, and checks
// that nothing was left out.
func (r *reader) finish(at string) {
	r.s.Helper()
	c, err := r.s.js[at].Consumer(r.s.ctx, r.s.stream, durable)
	r.s.ok(err)
	stream, err := r.s.js[at].Stream(r.s.ctx, r.s.stream)
	r.s.ok(err)
	last := stream.CachedInfo().State.LastSeq
	r.s.ok(harness.Await(r.s.ctx, bound, "the consumer to be done", func(ctx context.Context) (bool, string) {
		if !r.take(ctx, c, 500, nil) {
			return false, "no messages can be fetched"
		}
		for seq := uint64(1); seq <= last; seq++ {
			if !r.acked[seq] {
				return false, fmt.Sprintf("message %d of %d, given %d times", seq, last, r.given[seq])
			}
		}
		return true, ""
	}))
}

// pending is how many messages were given and not acknowledged.
func (r *reader) pending() (n int) {
	for seq := range r.given {
		if !r.acked[seq] {
			n++
		}
	}
	return n
}

// again is how many messages were given more than once.
func (r *reader) again() (n int) {
	for _, times := range r.given {
		if times > 1 {
			n++
		}
	}
	return n
}
