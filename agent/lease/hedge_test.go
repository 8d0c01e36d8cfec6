package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// several is a Line over endpoints of one store. As the real one does, it stays with the
// endpoint that answered last, and goes to another one when asked to or when one refuses.
type several struct {
	*world
	ways []way

	mu        sync.Mutex
	inUse     int
	confirmed []time.Duration // ages at which answers arrived
	sends     []time.Duration
}

// way is the way to one endpoint.
type way struct {
	latency time.Duration // one way
	holes   []cut         // times in which nothing comes through
	refuses []cut         // times in which it refuses at once
}

func in(cuts []cut, age time.Duration) bool {
	for _, c := range cuts {
		if age >= c.from && age < c.to {
			return true
		}
	}
	return false
}

func (s *several) KeepAlive(ctx context.Context, id int64, fresh bool) (Renewal, error) {
	s.note("keepalive", id, fresh)
	s.mu.Lock()
	e := s.inUse
	if fresh {
		e = (e + 1) % len(s.ways)
	}
	s.sends = append(s.sends, s.age())
	s.mu.Unlock()
	if in(s.ways[e].refuses, s.age()) {
		s.mu.Lock()
		s.inUse = (e + 1) % len(s.ways)
		s.mu.Unlock()
		return Renewal{}, errRefused
	}
	for range 2 { // there, where the store acts, and back
		if in(s.ways[e].holes, s.age()) {
			<-ctx.Done()
			return Renewal{}, ctx.Err()
		}
		select {
		case <-time.After(s.ways[e].latency):
		case <-ctx.Done():
			return Renewal{}, ctx.Err()
		}
	}
	var err error
	s.lock(func() {
		if !s.alive(id) {
			err = fmt.Errorf("%w: %d", ErrLost, id)
			return
		}
		// The store acted a latency ago, at the earliest.
		s.leases[id] = max(s.leases[id], s.now().Add(s.set.Timing.TTL-s.ways[e].latency))
	})
	if err != nil {
		return Renewal{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse = e
	s.confirmed = append(s.confirmed, s.age())
	return Renewal{Granted: s.set.Timing.TTL, Term: 2}, nil
}

// overWays runs claim in a bubble with a Keeper that renews over several endpoints.
func overWays(t *testing.T, timing Timing, ways []way, claim func(s *several)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &several{world: newStillWorld(t), ways: ways}
		s.set.Timing = timing
		s.k = NewKeeper(s.set, s, s.world, 0, slog.New(slog.NewTextHandler(s.log, nil)), prometheus.NewPedanticRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.k.Run(ctx) }()
		s.k.Order(Renew)
		synctest.Wait()
		claim(s)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		s.dials.Wait()
	})
}

func (s *several) hedges(won string) float64 {
	return testutil.ToFloat64(s.k.metrics.hedges.WithLabelValues(won))
}

// longestGap is the longest time without a confirmation up to now.
func (s *several) longestGap() (gap, at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last time.Duration
	for _, c := range append(s.confirmed, s.age()) {
		if c-last > gap {
			gap, at = c-last, last
		}
		last = c
	}
	return gap, at
}

func near(latency time.Duration) []way {
	return []way{{latency: latency}, {latency: latency}, {latency: latency}}
}

const forever = 1 << 60

func TestOneBlackHoleOfThreeDelaysNoRenewalByASecond(t *testing.T) {
	for _, c := range []struct {
		name    string
		timing  Timing
		latency time.Duration
	}{
		{"the defaults", defaults, time.Millisecond},
		{"the defaults, far away", defaults, 100 * time.Millisecond},
		{"the shortest TTL", Timing{TTL: time.Second, RenewInterval: 125 * time.Millisecond, Margin: time.Second / 3,
			BackoffInitial: 250 * time.Millisecond, BackoffMax: 5 * time.Second}, time.Millisecond},
		{"TTL 5 s", Timing{TTL: 5 * time.Second, RenewInterval: 625 * time.Millisecond, Margin: 5 * time.Second / 3,
			BackoffInitial: 250 * time.Millisecond, BackoffMax: 5 * time.Second}, time.Millisecond},
		{"rare renewals", Timing{TTL: time.Minute, RenewInterval: 25 * time.Second, Margin: 20 * time.Second,
			BackoffInitial: 2 * time.Minute, BackoffMax: 5 * time.Minute}, 10 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			every := c.timing.RenewInterval
			// From the first moments, with nothing known yet, and later; at the send, on the
			// way there, on the way back, and between two renewals.
			for _, round := range []int{0, 1, 40} {
				for _, phase := range []time.Duration{0, 1, c.latency, c.latency + 1, 2 * c.latency, every / 3, every / 2, every - 1} {
					ways := near(c.latency)
					ways[0].holes = []cut{{time.Duration(round)*every + phase, forever}}
					overWays(t, c.timing, ways, func(s *several) {
						for range 50 * 8 {
							s.after(every / 8)
							s.nothingFalse()
						}
						if gap, at := s.longestGap(); gap >= every+time.Second {
							t.Errorf("black hole in round %d after %v: %v without a confirmation after %v, want less than %v",
								round, phase, gap, at, every+time.Second)
						}
						if v := s.k.View(); v.FailureStreak != 0 || v.Losses != 0 {
							t.Errorf("black hole in round %d after %v: streak %d, losses %d", round, phase, v.FailureStreak, v.Losses)
						}
						if n := s.log.count("renewals fail"); n != 0 {
							t.Errorf("black hole in round %d after %v: renewals failed %d times", round, phase, n)
						}
					})
				}
			}
		})
	}
}

// A second question counts from its own send if it is answered first, and changes nothing else.
func TestWhenARenewalIsHedged(t *testing.T) {
	for _, c := range []struct {
		name      string
		latency   time.Duration
		hole      bool // the endpoint in use goes silent
		until     time.Duration
		won, lost float64
		counts    time.Duration // send of the renewal that counts; 0: any
	}{
		{"etcd is quiet", 2 * time.Millisecond, false, time.Hour, 0, 0, 0},
		{"it is only slow", 350 * time.Millisecond, false, time.Minute, 0, 0, 0},
		{"it is too slow, and answers first all the same", 400 * time.Millisecond, false, 5 * time.Second, 0, 1, 4 * time.Second},
		{"it is silent", time.Millisecond, true, 5 * time.Second, 1, 0, 4*time.Second + RetryCeiling},
	} {
		t.Run(c.name, func(t *testing.T) {
			ways := near(c.latency)
			if c.hole {
				ways[0].holes = []cut{{time.Second, forever}}
			}
			overWays(t, defaults, ways, func(s *several) {
				s.until(c.until)
				if won, lost := s.hedges("true"), s.hedges("false"); won != c.won || lost != c.lost {
					t.Errorf("hedges won %v and lost %v, want %v and %v", won, lost, c.won, c.lost)
				}
				calls := s.made("keepalive", 0)
				for i, call := range calls {
					if call.fresh && (c.won+c.lost == 0 || call.at-calls[i-1].at != RetryCeiling) {
						t.Errorf("%+v: a second question", call)
					}
				}
				// The grant took its time before the first send.
				late := 2 * c.latency
				if got := s.k.View().Validity.Deadline().Sub(Instant(time.Hour + c.counts + 32*time.Second)); c.counts > 0 && (got < 0 || got > late) {
					t.Errorf("the deadline is %v from that of the send that counts", got)
				}
				if v := s.k.View(); v.FailureStreak != 0 {
					t.Errorf("streak %d", v.FailureStreak)
				}
				s.until(c.until + 3*time.Minute)
				s.nothingFalse()
			})
		})
	}
}

func TestAHedgeThatFailsIsNoFailedRenewal(t *testing.T) {
	ways := near(400 * time.Millisecond)
	ways[1].refuses = []cut{{0, forever}}
	overWays(t, defaults, ways[:2], func(s *several) {
		s.until(4900 * time.Millisecond)
		if n := len(s.made("keepalive", 0)); n != 2 {
			t.Fatalf("%d requests, want the renewal and its hedge", n)
		}
		s.until(10 * time.Second)
		if v := s.k.View(); v.FailureStreak != 0 || v.LastError != "" || v.Renewals != 2 {
			t.Errorf("streak %d, error %q, %d renewals", v.FailureStreak, v.LastError, v.Renewals)
		}
		if n := testutil.ToFloat64(s.k.metrics.renewals.WithLabelValues("failed")); n != 0 {
			t.Errorf("%v failed renewals counted", n)
		}
	})
}

func TestAnOutageOfAllIsHedgedOnce(t *testing.T) {
	ways := near(time.Millisecond)
	for i := range ways {
		ways[i].holes = []cut{{5 * time.Second, 15 * time.Second}}
	}
	overWays(t, defaults, ways, func(s *several) {
		s.until(14900 * time.Millisecond)
		// At 8 s, then one every 750 ms.
		if n := len(s.made("keepalive", 6*time.Second)); n != 10 {
			t.Errorf("%d requests in 7 s without an answer, want 10", n)
		}
		s.until(16100 * time.Millisecond)
		s.nothingFalse()
		if v := s.k.View(); v.FailureStreak != 0 {
			t.Errorf("still failing %v after the heal", s.age()-15*time.Second)
		}
	})
}

func TestReconnectionStartsTheBackoffOver(t *testing.T) {
	inWorld(t, func(w *world) {
		w.refuses = true
		w.cuts = []cut{{5 * time.Second, time.Hour}}
		w.redial = time.Hour
	}, func(w *world) {
		w.until(50 * time.Second) // past the deadline: 5 s between two attempts
		w.reconnected()
		synctest.Wait()
		w.after(2 * time.Second)
		calls := w.made("keepalive", 50*time.Second)
		establishes := w.made("establish", 50*time.Second)
		if n := len(calls) + len(establishes); n < 3 {
			t.Errorf("%d attempts in the 2 s after the connection came back, want the first, short pauses", n)
		}
	})
}
