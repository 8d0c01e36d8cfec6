package guard

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/agent/lease"
)

const at = lease.Instant(1000 * time.Second)

func in(d time.Duration) lease.Instant { return at.Add(d) }

func TestAGuardDecides(t *testing.T) {
	armed := Orders{StopAt: in(10 * time.Second), KillAt: in(12 * time.Second)}
	due := Orders{StopAt: in(-time.Millisecond), KillAt: in(2 * time.Second)}
	overdue := Orders{StopAt: in(-3 * time.Second), KillAt: in(-time.Second)}
	for _, c := range []struct {
		name string
		see  Sight
		want Decision
	}{
		{"disarmed: it waits", Sight{}, Decision{Until: in(Look)}},
		{"disarmed without a sidecar: nobody can arm it", Sight{Orphaned: true}, Decision{Do: Leave, Why: Orphaned}},
		{"armed: it looks again long before", Sight{Orders: armed}, Decision{Until: in(Look)}},
		{"armed without a sidecar: it goes on", Sight{Orders: armed, Orphaned: true}, Decision{Until: in(Look)}},
		{"nearly due: it wakes on the moment", Sight{Orders: Orders{StopAt: in(time.Millisecond)}}, Decision{Until: in(time.Millisecond)}},
		{"due", Sight{Orders: due}, Decision{Do: Stop, Why: Fired}},
		{"due at this moment", Sight{Orders: Orders{StopAt: at}}, Decision{Do: Stop, Why: Fired}},
		{"due without a sidecar", Sight{Orders: due, Orphaned: true}, Decision{Do: Stop, Why: Fired}},
		{"long overdue, after a suspension", Sight{Orders: overdue}, Decision{Do: Stop, Why: Fired}},
		{"due and acted upon already", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-1)}}, Decision{Until: in(Look)}},
		{"acted upon already, without a sidecar", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-1)}, Orphaned: true}, Decision{Do: Leave, Why: Orphaned}},
		{"acted upon already, and armed again", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-2)}}, Decision{Do: Stop, Why: Fired}},
		{"due for a process that was started before the moment", Sight{Orders: due, Born: in(-time.Second)}, Decision{Do: Stop, Why: Fired}},
		{"due for a process that is gone: this one was started later", Sight{Orders: due, Born: in(0)}, Decision{Until: in(Look)}},
		{"goodbye", Sight{Orders: Orders{StopAt: in(-1), Goodbye: true}}, Decision{Do: Leave, Why: Farewell}},
		{"the broker ended by itself", Sight{Orders: due, Gone: true}, Decision{Do: Leave, Why: BrokerGone}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(c.see, at); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestTheGuardActsAfterTheLadderAndBeforeTheDeadline(t *testing.T) {
	v := lease.Validity{SentAt: at, TTL: 32 * time.Second, Margin: 12 * time.Second}
	stopAt, killAt := Points(v)
	if v.FencePoint() != in(20*time.Second) || stopAt != in(28*time.Second) || killAt != in(30*time.Second) || v.Deadline() != in(32*time.Second) {
		t.Errorf("stop at %v, kill at %v", stopAt.Sub(at), killAt.Sub(at))
	}
}

// machine is a model of a full machine: whoever wants to run waits for its turn.
type machine struct {
	rng   *rand.Rand
	usual time.Duration // mean of the waits
	rare  time.Duration // one in a hundred is up to this long
}

func (m machine) delay() time.Duration {
	d := time.Duration(m.rng.ExpFloat64() * float64(m.usual))
	if m.rng.IntN(100) == 0 {
		d += time.Duration(m.rng.Int64N(int64(m.rare)))
	}
	return d
}

// life plays a sidecar that renews and a guard beside it from 0 to until, and returns
// when the guard began to stop the broker, and what was its last word. The sidecar's
// last renewal begins before freeze.
func life(m machine, ttl, freeze, until time.Duration) (stopped lease.Instant, last lease.Validity) {
	interval, margin := ttl/8, ttl/3
	last = lease.Validity{SentAt: at, TTL: ttl, Margin: margin}
	next := last // the word that is on its way
	arrives := at
	send := at.Add(interval)
	word := func(now lease.Instant) Orders { // as the page has it at now
		for arrives <= now {
			last = next
			if send >= in(freeze) {
				arrives = in(until + time.Hour)
				break
			}
			sent := send.Add(m.delay())
			reply := sent.Add(m.delay() + m.delay()) // etcd's turn, and the reader's
			next = lease.Validity{SentAt: sent, TTL: ttl, Margin: margin}
			arrives = reply.Add(m.delay()) // the loop's turn
			send = sent.Add(interval)
			if send < reply {
				send = reply
			}
		}
		stopAt, killAt := Points(last)
		return Orders{StopAt: stopAt, KillAt: killAt}
	}
	for now := at; now < in(until); {
		d := Decide(Sight{Orders: word(now)}, now)
		if d.Do != Wait {
			return now, last
		}
		now = d.Until.Add(m.delay())
	}
	return 0, last
}

func seed(t *testing.T) uint64 {
	n := uint64(time.Now().UnixNano())
	t.Logf("seed %d", n)
	return n
}

// Waits of 50 ms on average and of up to 2 s now and then are far beyond what a
// scheduler does to a process that asks for little on a full machine.
func TestAGuardNeverStopsTheBrokerOfAHealthySidecarInAnHourOfLoad(t *testing.T) {
	first := seed(t)
	for i := range uint64(20) {
		for _, ttl := range []time.Duration{10 * time.Second, 32 * time.Second} {
			m := machine{rand.New(rand.NewPCG(first, i)), 50 * time.Millisecond, 2 * time.Second}
			if stopped, last := life(m, ttl, 2*time.Hour, time.Hour); stopped != 0 {
				t.Errorf("seed %d, %d: TTL %v: stopped after %v; the last word was sent at %v", first, i, ttl, stopped.Sub(at), last.SentAt.Sub(at))
			}
		}
	}
}

func TestAGuardStopsTheBrokerOfAFrozenSidecarBeforeTheDeadline(t *testing.T) {
	first := seed(t)
	for i := range uint64(500) {
		m := machine{rand.New(rand.NewPCG(first, i)), 20 * time.Millisecond, 300 * time.Millisecond}
		freeze := time.Duration(m.rng.Int64N(int64(10 * time.Minute)))
		stopped, last := life(m, 10*time.Second, freeze, 20*time.Minute)
		stopAt, _ := Points(last)
		if stopped < stopAt || stopped >= last.Deadline() {
			t.Errorf("seed %d, %d: %s", first, i, fmt.Sprintf("stopped at %v, to be done at %v, deadline %v", stopped.Sub(at), stopAt.Sub(at), last.Deadline().Sub(at)))
		}
	}
}
