package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// several publishes to every topic at every broker, round by round, and knows which
// broker took the message. Two in one round, a moment apart, are two owners.
type several struct {
	s      *stage
	topics []string
	end    context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	conns  map[string]*nats.Conn
	served map[string][]string // by topic, in the last round
	twice  []string
	rounds int
}

func (s *stage) publishToAll(topics []string) *several {
	p := &several{s: s, topics: topics, done: make(chan struct{}), conns: map[string]*nats.Conn{}, served: map[string][]string{}}
	ctx, cancel := context.WithCancel(s.ctx)
	p.end = cancel
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			for _, topic := range topics {
				p.round(ctx, topic)
			}
			p.mu.Lock()
			p.rounds++
			p.mu.Unlock()
		}
	}()
	s.t.Cleanup(func() { cancel(); <-p.done })
	return p
}

func (p *several) add(n *node) {
	n.t.Helper()
	c, err := n.nats.Connect()
	n.must(err)
	n.t.Cleanup(c.Close)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[n.id] = c
}

func (p *several) remove(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[id].Close()
	delete(p.conns, id)
}

func (p *several) round(ctx context.Context, topic string) {
	p.mu.Lock()
	conns := maps.Clone(p.conns)
	p.mu.Unlock()
	var mu sync.Mutex
	var took []string
	var asked sync.WaitGroup
	for id, c := range conns {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := harness.Publish(ctx, c, topic, []byte("x")); err == nil {
				mu.Lock()
				took = append(took, id)
				mu.Unlock()
			}
		})
	}
	asked.Wait()
	slices.Sort(took)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.served[topic] = took
	if len(took) > 1 {
		p.twice = append(p.twice, fmt.Sprintf("%s at %s: served by %s", time.Now().Format("15:04:05.000"), topic, strings.Join(took, " and ")))
	}
}

// settled waits until every topic is served by one broker for two whole rounds, and
// returns by which.
func (p *several) settled(brokers ...string) (by map[string]string) {
	p.s.t.Helper()
	from := -1
	p.s.must(harness.Await(p.s.ctx, 2*bound, "every topic to be served by one of "+strings.Join(brokers, ", "), func(context.Context) (bool, string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		by = map[string]string{}
		for _, topic := range p.topics {
			if len(p.served[topic]) == 1 && slices.Contains(brokers, p.served[topic][0]) {
				by[topic] = p.served[topic][0]
			}
		}
		if len(by) < len(p.topics) {
			from = -1
			return false, fmt.Sprint(p.served)
		}
		if from < 0 {
			from = p.rounds
		}
		return p.rounds >= from+3, "settling"
	}))
	return by
}

// shared waits until the newest of the brokers has its share and nothing moves any more,
// which is longer than a change of brokers takes to settle.
func (p *several) shared(brokers ...string) (by map[string]string) {
	p.s.t.Helper()
	since := time.Now()
	p.s.must(harness.Await(p.s.ctx, 4*bound, brokers[len(brokers)-1]+" to have its share", func(context.Context) (bool, string) {
		now := p.settled(brokers...)
		if !maps.Equal(now, by) {
			by, since = now, time.Now()
		}
		has := slices.Contains(slices.Collect(maps.Values(by)), brokers[len(brokers)-1])
		return has && time.Since(since) > 3*time.Second, fmt.Sprint(by)
	}))
	return by
}

func (p *several) never(what string) {
	p.s.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.twice {
		p.s.t.Errorf("%s: %s", what, t)
	}
}

// Three brokers share topics out among themselves. One joins, one is killed: each time
// only that broker's topics move, and no topic is ever served by two.
func TestRendezvousMovesOnlyTheTopicsOfWhoComesOrGoes(t *testing.T) {
	long(t)
	s := newStage(t)
	var topics []string
	for i := range 24 {
		topics = append(topics, fmt.Sprintf("/default/t%02d", i))
		_, err := s.etcd.Client().Put(s.ctx, "/topics"+topics[i], "{}")
		s.must(err)
	}
	o := nodeOptions{Topics: []string{}, Flags: []string{"--assignment", "rendezvous", "--failover", "move"}}
	traffic := s.publishToAll(topics)
	nodes := map[string]*node{}
	for _, id := range []string{"n1", "n2"} {
		nodes[id] = s.add(id, o)
		traffic.add(nodes[id])
	}
	two := traffic.shared("n1", "n2")

	nodes["n3"] = s.add("n3", o)
	traffic.add(nodes["n3"])
	three := traffic.shared("n1", "n2", "n3")
	for topic, by := range three {
		if by != two[topic] && by != "n3" {
			t.Errorf("n3 came, and %s moved from %s to %s", topic, two[topic], by)
		}
	}

	before := s.revision()
	traffic.remove("n1")
	nodes["n1"].kill()
	nodes["n1"].awaitExpiry(before)
	left := traffic.settled("n2", "n3")
	for topic, by := range left {
		if by != three[topic] && three[topic] != "n1" {
			t.Errorf("n1 went, and %s moved from %s to %s", topic, three[topic], by)
		}
	}
	traffic.never("two owners")
	t.Logf("two: %v\nthree: %v\nleft: %v", two, three, left)

	// What an operator drains is moved away, without anything served twice.
	if res, err := nodes["n2"].sidecar.Verb(s.ctx, "drain", "--reason", "e2e"); err != nil || res.Exit != 0 {
		t.Fatalf("drain: %+v, %v", res, err)
	}
	traffic.settled("n3")
	traffic.never("two owners after the drain")
}
