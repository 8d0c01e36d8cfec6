package compare

import (
	"fmt"
	"sync"
	"time"
)

// Tally is what became of the messages of one topic.
type Tally struct {
	Topic                string
	Acknowledged         int
	Received, Duplicated int
	Lost                 int           // acknowledged, and never received
	Gap                  time.Duration // the longest between two acknowledgements
	Deaf                 time.Duration // the longest between two that were received
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

	mu         sync.Mutex
	acked      []int
	got        map[int]int // how often each message was received
	gap, deaf  pause
	unanswered int       // acknowledged since the last that was received
	heard      time.Time // when that was, or when gaps were forgotten
	hung       bool
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
	l.unanswered++
}

// Received says that the consumer has the message.
func (l *Ledger) Received(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf.end(time.Now())
	l.got[n]++
	l.unanswered, l.heard = 0, time.Now()
}

// Unheard is how long nothing was received, and how many were acknowledged meanwhile.
func (l *Ledger) Unheard() (since time.Duration, messages int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard.IsZero() {
		return 0, l.unanswered
	}
	return time.Since(l.heard), l.unanswered
}

// Hang says that the consumer hung.
func (l *Ledger) Hang() { l.mu.Lock(); l.hung = true; l.mu.Unlock() }

// Forget has gaps count from now on.
func (l *Ledger) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.gap, l.deaf, l.heard = pause{last: now}, pause{last: now}, now
}

// ForgetDeaf is Forget for what is received alone.
func (l *Ledger) ForgetDeaf() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf, l.heard = pause{last: time.Now()}, time.Now()
}

// End says that there is nothing more to come: no gap lasts.
func (l *Ledger) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.gap, l.deaf = pause{longest: l.gap.lasting(now)}, pause{longest: l.deaf.lasting(now)}
}

// Tally is what became of the messages so far.
func (l *Ledger) Tally() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	t := Tally{Topic: l.topic, Acknowledged: len(l.acked), Gap: l.gap.lasting(now), Deaf: l.deaf.lasting(now), Hung: l.hung}
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
