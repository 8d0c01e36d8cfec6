//go:build pulsar

package pulsar

import (
	"fmt"
	"sync"
	"time"
)

// Tally is what became of the messages of one topic. Where Hung: Pulsar 4.0.7 confirms a
// subscription to a topic that it is just closing, and forgets it ("Dispatcher is already
// closed"): the client waits for ever. (2026-11-25)
type Tally struct {
	Topic                string
	Acknowledged         int
	Received, Duplicated int
	Lost                 int           // acknowledged, and never received
	Gap                  time.Duration // the longest between two acknowledgements
	// Hung: the consumer received nothing any more until it subscribed again, and what it had not
	// received was there.
	Hung bool
}

func (t Tally) String() string {
	text := fmt.Sprintf("%s: %d acknowledged, %d received, %d lost, %d duplicated, longest gap %v",
		t.Topic, t.Acknowledged, t.Received, t.Lost, t.Duplicated, t.Gap.Round(time.Millisecond))
	if t.Hung {
		text += ", its consumer hung until it subscribed again"
	}
	return text
}

// Ledger keeps account of the numbered messages of one topic. Safe for concurrent use.
type Ledger struct {
	topic string

	mu    sync.Mutex
	acked []int
	got   map[int]int // how often each message was received
	gap   pause
	hung  bool
}

// pause is the longest between two of something. Without a last one there is none.
type pause struct {
	longest time.Duration
	last    time.Time
}

func (p *pause) end(now time.Time) { p.longest, p.last = p.lasting(now), now }

func (p *pause) lasting(now time.Time) time.Duration {
	if p.last.IsZero() {
		return p.longest
	}
	return max(p.longest, now.Sub(p.last))
}

// NewLedger begins with none.
func NewLedger(topic string) *Ledger { return &Ledger{topic: topic, got: map[int]int{}} }

// Acknowledged says that the broker has the message.
func (l *Ledger) Acknowledged(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap.end(time.Now())
	l.acked = append(l.acked, n)
}

// Received says that the consumer has the message.
func (l *Ledger) Received(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got[n]++
}

// Hang says that the consumer hung.
func (l *Ledger) Hang() { l.mu.Lock(); l.hung = true; l.mu.Unlock() }

// Forget has gaps count from now on.
func (l *Ledger) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap = pause{last: time.Now()}
}

// End says that there is nothing more to come: no gap lasts.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap = pause{longest: l.gap.lasting(time.Now())}
}

// Tally is what became of the messages so far.
func (l *Ledger) Tally() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := Tally{Topic: l.topic, Acknowledged: len(l.acked), Gap: l.gap.lasting(time.Now()), Hung: l.hung}
	for _, n := range l.got {
		t.Received++
		t.Duplicated += n - 1
	}
	for _, n := range l.acked {
		if l.got[n] == 0 {
			t.Lost++
		}
	}
	return t
}
