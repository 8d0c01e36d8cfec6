package guard

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/internal/testseed"
)

const at = lease.Instant(1000 * time.Second)

func in(d time.Duration) lease.Instant { return at.Add(d) }

func TestAGuardDecides(t *testing.T) {
	armed := Orders{StopAt: in(10 * time.Second), KillAt: in(12 * time.Second)}
	due := Orders{StopAt: in(-time.Millisecond), KillAt: in(2 * time.Second)}
	beating := due
	beating.Beat = at
	overdue := Orders{StopAt: in(-3 * time.Second), KillAt: in(-time.Second)}
	for _, c := range []struct {
		name string
		see  Sight
		want Decision
	}{
		{"disarmed: it waits", Sight{}, Decision{Until: in(Look)}},
		{"disarmed without a sidecar: nobody can arm it", Sight{Orphaned: true}, Decision{Do: Leave}},
		{"armed: it looks again long before", Sight{Orders: armed}, Decision{Until: in(Look)}},
		{"armed, and told how long it may sleep", Sight{Orders: Orders{StopAt: in(10 * time.Second), Nap: 5 * time.Second}}, Decision{Until: in(5 * time.Second)}},
		{"armed without a sidecar: it goes on", Sight{Orders: armed, Orphaned: true}, Decision{Until: in(Look)}},
		{"armed, and its process has ended: it goes on", Sight{Orders: armed, Gone: true}, Decision{Until: in(Look)}},
		{"nearly due: it wakes on the moment", Sight{Orders: Orders{StopAt: in(time.Millisecond), Nap: time.Hour}}, Decision{Until: in(time.Millisecond)}},
		{"due", Sight{Orders: due}, Decision{Do: Stop}},
		{"due, and the loop runs", Sight{Orders: beating, Born: in(-time.Minute)}, Decision{Do: Stop}},
		{"due at this moment", Sight{Orders: Orders{StopAt: at}}, Decision{Do: Stop}},
		{"due without a sidecar", Sight{Orders: due, Orphaned: true}, Decision{Do: Stop}},
		{"long overdue, after a suspension", Sight{Orders: overdue}, Decision{Do: Stop}},
		{"stopped, and still there: it goes on", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-1)}, Born: in(-time.Minute)}, Decision{Do: Stop}},
		{"the command was run, and the loop runs", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-1), Beat: at}}, Decision{Until: in(Look)}},
		{"the command was run, and the word is another", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-2)}}, Decision{Do: Stop}},
		{"a process that was started after the moment, and the loop runs", Sight{Orders: beating, Born: in(0)}, Decision{Until: in(Look)}},
		{"a process that was started after the moment, and the loop is silent", Sight{Orders: due, Born: in(0)}, Decision{Do: Stop}},
		{"it has ended, and the loop runs: it may be started again", Sight{Orders: beating, Gone: true}, Decision{Until: in(Look)}},
		{"it has ended, and the loop is about to be silent", Sight{Orders: Orders{StopAt: in(-1), Beat: in(time.Millisecond - Silence)}, Gone: true}, Decision{Until: in(time.Millisecond)}},
		{"it has ended, and the loop is silent", Sight{Orders: Orders{StopAt: in(-1), Beat: in(-Silence)}, Gone: true}, Decision{Do: Seek, Until: in(SeekEvery)}},
		{"it has ended, the loop is silent, and the moment is to come", Sight{Orders: armed, Gone: true, Orphaned: true}, Decision{Until: in(Look)}},
		{"it was stopped, and there is no sidecar: it stands", Sight{Orders: Orders{StopAt: in(-1), Spent: in(-1)}, Gone: true, Orphaned: true}, Decision{Do: Seek, Until: in(SeekEvery)}},
		{"goodbye", Sight{Orders: Orders{StopAt: in(-1), Goodbye: true}}, Decision{Do: Leave}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(c.see, at); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAProofMovesTheMomentLaterAndNeverNearer(t *testing.T) {
	word := Orders{StopAt: in(10 * time.Second), KillAt: in(12 * time.Second)}
	if got := word.Postponed(in(9 * time.Second)); got != word {
		t.Errorf("nearer: %+v", got)
	}
	later := word.Postponed(in(15 * time.Second))
	if later.StopAt != in(15*time.Second) || later.KillAt != later.StopAt.Add(Grace) {
		t.Errorf("later: %+v", later)
	}
	if d := Decide(Sight{Orders: later, Born: 1}, in(14*time.Second)); d.Do != Wait {
		t.Errorf("%+v before the moment", d)
	}
	if d := Decide(Sight{Orders: later, Born: 1}, in(15*time.Second)); d.Do != Stop {
		t.Errorf("%+v at the moment: nobody proved it again", d)
	}
	if got := (Orders{}).Postponed(in(0)); got.StopAt != in(0) {
		t.Errorf("never armed, and it is not now: %+v", got)
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

// Waits of 50 ms on average and of up to 2 s now and then are far beyond what a
// scheduler does to a process that asks for little on a full machine.
func TestAGuardNeverStopsTheBrokerOfAHealthySidecarInAnHourOfLoad(t *testing.T) {
	first := testseed.Value()
	for i := range uint64(20) {
		for _, ttl := range []time.Duration{10 * time.Second, 32 * time.Second} {
			m := machine{rand.New(rand.NewPCG(first, i)), 50 * time.Millisecond, 2 * time.Second}
			if stopped, last := life(m, ttl, 2*time.Hour, time.Hour); stopped != 0 {
				t.Errorf("HOLDFAST_SEED=%d, %d: TTL %v: stopped after %v; the last word was sent at %v", first, i, ttl, stopped.Sub(at), last.SentAt.Sub(at))
			}
		}
	}
}

func TestAGuardStopsTheBrokerOfAFrozenSidecarBeforeTheDeadline(t *testing.T) {
	first := testseed.Value()
	for i := range uint64(500) {
		m := machine{rand.New(rand.NewPCG(first, i)), 20 * time.Millisecond, 300 * time.Millisecond}
		freeze := time.Duration(m.rng.Int64N(int64(10 * time.Minute)))
		stopped, last := life(m, 10*time.Second, freeze, 20*time.Minute)
		stopAt, _ := Points(last)
		if stopped < stopAt || stopped >= last.Deadline() {
			t.Errorf("HOLDFAST_SEED=%d, %d: %s", first, i, fmt.Sprintf("stopped at %v, to be done at %v, deadline %v", stopped.Sub(at), stopAt.Sub(at), last.Deadline().Sub(at)))
		}
	}
}
