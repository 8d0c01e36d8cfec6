package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/agent/moving"
	"holdfast/lab/harness"
)

const (
	enough  = 20 // messages of each topic that are acknowledged before its move, and after it
	atFirst = 5  // of those are consumed before it
	billing = "billing"
)

// shop is the clients of one topic: a producer that tries each server until one has taken its
// message, and a consumer that stands somewhere in the midst.
type shop struct {
	topic string
	acked atomic.Int64   // the messages 1 to this one
	seen  map[string]int // what was consumed, how often
	gap   time.Duration  // the longest between two acknowledgements
	conns map[string]*nats.Conn
}

// open connects to all brokers, and makes the consumer at one.
func (p *shop) open(ctx context.Context, nodes []*node, at string) (err error) {
	p.conns, p.seen = map[string]*nats.Conn{}, map[string]int{}
	for _, n := range nodes {
		if p.conns[n.id], err = n.nats.Connect(nats.ReconnectBufSize(-1)); err != nil {
			return err
		}
	}
	js, stream, err := p.stream(ctx, at)
	if err == nil {
		_, err = js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: billing, DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy})
	}
	return err
}

func (p *shop) close() {
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *shop) stream(ctx context.Context, at string) (js jetstream.JetStream, name string, err error) {
	if js, err = jetstream.New(p.conns[at]); err == nil {
		name, err = js.StreamNameBySubject(ctx, harness.Subject(p.topic))
	}
	return js, name, err
}

// produce publishes until ctx ends.
func (p *shop) produce(ctx context.Context, ids []string) {
	last := time.Now()
	for ctx.Err() == nil {
		n := p.acked.Load() + 1
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := harness.Publish(try, p.conns[ids[0]], p.topic, []byte(strconv.FormatInt(n, 10)))
		cancel()
		if err == nil {
			p.acked.Store(n)
			p.gap, last = max(p.gap, time.Since(last)), time.Now()
		} else { // not here: perhaps at the next
			ids = append(ids[1:], ids[0])
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// consume takes so many messages, or all that there are, and acknowledges them.
func (p *shop) consume(ctx context.Context, at string, most int) error {
	js, stream, err := p.stream(ctx, at)
	if err != nil {
		return err
	}
	c, err := js.Consumer(ctx, stream, billing)
	for got := 1; err == nil && got > 0 && most > 0; most -= got {
		var batch jetstream.MessageBatch
		if batch, err = c.FetchNoWait(min(most, 500)); err != nil {
			break
		}
		got = 0
		for m := range batch.Messages() {
			p.seen[string(m.Data())]++
			err = errors.Join(err, m.Ack())
			got++
		}
		err = errors.Join(err, batch.Error(), p.conns[at].FlushTimeout(comeBack))
	}
	return err
}

// judge compares what was consumed with what was acknowledged.
func (p *shop) judge(t *trial) (twice int) {
	for n := int64(1); n <= p.acked.Load(); n++ {
		times := p.seen[strconv.FormatInt(n, 10)]
		t.must(times > 0, harness.Violation+"message %d of %s was acknowledged and is lost", n, p.topic)
		twice += max(times-1, 0)
	}
	return twice
}

// drainMoves: all topics of one node go to the others while clients are at work.
func (s *stage) drainMoves(ctx context.Context, t *trial, n *node) error {
	ids := []string{n.id}
	for _, other := range s.nodes {
		if other != n {
			ids = append(ids, other.id)
		}
	}
	var shops []*shop
	for _, topic := range n.topics {
		p := &shop{topic: topic}
		defer p.close()
		if err := p.open(ctx, s.nodes, n.id); err != nil {
			return err
		}
		shops = append(shops, p)
	}
	working, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for _, p := range shops {
		work.Go(func() { p.produce(working, slices.Clone(ids)) })
	}
	more := func() error {
		for _, p := range shops {
			until := p.acked.Load() + enough
			if err := harness.Await(ctx, comeBack, "messages in "+p.topic, func(context.Context) (bool, string) {
				return p.acked.Load() >= until, fmt.Sprint(p.acked.Load())
			}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := more(); err != nil {
		return err
	}
	for _, p := range shops {
		if err := p.consume(ctx, n.id, atFirst); err != nil {
			return err
		}
	}
	s.say("a client publishes into each topic of %s, and tries the next broker when one refuses; a consumer has taken %d messages", n.id, atFirst)
	s.say("holdfast drain --move --reason \"new disk\", on %s", n.id)
	res, err := n.sidecar.Verb(ctx, "drain", "--move", "--reason", "new disk")
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("drain --move: exit code %d: %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(res.Stdout), "\n")
	s.say("  %s", lines[len(lines)-1])
	if err := more(); err != nil {
		return err
	}
	stop()
	work.Wait()
	return s.received(ctx, t, n, shops)
}

// received checks what has become of the topics, and prints a receipt.
func (s *stage) received(ctx context.Context, t *trial, n *node, shops []*shop) error {
	res, err := n.sidecar.Verb(ctx, "moves", "-o", "json")
	if err != nil {
		return err
	}
	var moved []moving.Shown
	if err := json.Unmarshal([]byte(res.Stdout), &moved); err != nil {
		return fmt.Errorf("read moves %q: %w", res.Stdout, err)
	}
	messages, twice, gap := int64(0), 0, time.Duration(0)
	for _, p := range shops {
		i := slices.IndexFunc(moved, func(m moving.Shown) bool { return m.Topic == p.topic })
		if i < 0 {
			return fmt.Errorf("no move of %s: %s", p.topic, res.Stdout)
		}
		m := moved[i]
		t.must(m.Phase == "done" && m.From == n.id, "%s: from %s to %s: %s: %s", p.topic, m.From, m.To, m.Phase, m.Error)
		if err := p.consume(ctx, m.To, 1<<20); err != nil {
			return err
		}
		twice += p.judge(t)
		messages += p.acked.Load()
		gap = max(gap, p.gap)
	}
	receipt, err := n.sidecar.Verb(ctx, "moves", moved[len(moved)-1].ID)
	if err != nil {
		return err
	}
	s.say("the receipt of one of them, holdfast moves %s:", moved[len(moved)-1].ID)
	for line := range strings.Lines(receipt.Stdout) {
		s.say("  %s", strings.TrimRight(line, "\n"))
	}
	s.say("all %d messages that were acknowledged are there, %d twice; the longest that a client waited was %d ms", messages, twice, gap.Milliseconds())
	t.saw("%d topics moved, %d messages, none lost, clients waited for %d ms at most", len(shops), messages, gap.Milliseconds())
	if err := n.sidecar.Activate(ctx, "demo"); err != nil {
		return err
	}
	return n.sidecar.AwaitReady(ctx, comeBack)
}
