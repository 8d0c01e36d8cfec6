package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"holdfast/internal/raced"
	"holdfast/internal/testseed"
)

// watch lets virtual time run to the age and asks at every step whether what the
// Keeper believes is true.
func (w *world) watch(age, step time.Duration, each func(v View)) {
	w.t.Helper()
	for w.age() < age && !w.t.Failed() {
		w.after(step)
		w.nothingFalse()
		if each != nil {
			each(w.k.View())
		}
	}
}

// At any phase: 15 s neither detach nor expire, SCENARIOS, TestScenario1_GlitchShorterThanTTL, in
// virtual time. 25 s detach, and do not expire.
func TestWhatACutShorterThanTheTTLCosts(t *testing.T) {
	for _, path := range []struct {
		name     string
		lasts    time.Duration
		detaches bool
		refuses  bool
		latency  time.Duration
		jitter   time.Duration
	}{
		{"15 s, packets dropped", 15 * time.Second, false, false, time.Millisecond, 0},
		{"15 s, packets dropped, with jitter", 15 * time.Second, false, false, time.Millisecond, defaults.RenewInterval / 10},
		{"15 s, packets dropped on a slow path", 15 * time.Second, false, false, 75 * time.Millisecond, 0},
		{"15 s, refused", 15 * time.Second, false, true, time.Millisecond, 0},
		{"15 s, refused, with jitter", 15 * time.Second, false, true, time.Millisecond, defaults.RenewInterval / 10},
		{"25 s, packets dropped", 25 * time.Second, true, false, time.Millisecond, 0},
		{"25 s, refused", 25 * time.Second, true, true, time.Millisecond, 0},
	} {
		for phase := time.Duration(0); phase < 4*time.Second; phase += 250 * time.Millisecond {
			t.Run(fmt.Sprintf("%s, %v after a renewal", path.name, phase), func(t *testing.T) {
				from := 8*time.Second + phase
				to := from + path.lasts
				inWorld(t, func(w *world) {
					w.refuses, w.latency, w.set.Timing.Jitter = path.refuses, path.latency, path.jitter
					w.cuts = []cut{{from, to}}
				}, func(w *world) {
					w.until(time.Second)
					detached, before := false, 0
					w.watch(to+time.Second, 10*time.Millisecond, func(v View) {
						if v.Validity.ExpiredAt(w.now()) {
							t.Fatalf("at %v: the deadline has passed", w.age())
						}
						detached = detached || !v.Validity.HeldAt(w.now())
						if w.age() < to {
							before = v.Renewals
						}
					})
					if detached != path.detaches {
						t.Errorf("detached: %v", detached)
					}
					if v := w.k.View(); v.FailureStreak != 0 || v.Losses != 0 || v.Grant.LeaseID != 101 || v.Renewals == before {
						t.Errorf("not renewed within 1 s of the heal: %+v", v)
					}
				})
			})
		}
	}
}

// The question to the Registrar is on its way when the network goes.
func TestAFifteenSecondCutDuringAQuestionDoesNotDetach(t *testing.T) {
	for phase := time.Duration(0); phase < 4*time.Second; phase += 250 * time.Millisecond {
		t.Run(fmt.Sprintf("%v after a renewal", phase), func(t *testing.T) {
			from := 8*time.Second + phase
			inWorld(t, func(w *world) { w.cuts = []cut{{from, from + 15*time.Second}} }, func(w *world) {
				w.until(from + time.Millisecond)
				w.k.Reestablish()
				w.watch(from+16*time.Second, 10*time.Millisecond, func(v View) {
					if !v.Validity.HeldAt(w.now()) {
						t.Fatalf("at %v: the fence point has passed", w.age())
					}
				})
				if v := w.k.View(); v.FailureStreak != 0 {
					t.Errorf("not held again within 1 s of the heal: %+v", v)
				}
			})
		})
	}
}

func TestACutPastTheTTLIsALossThatEtcdDecides(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		inWorld(t, func(w *world) { w.refuses, w.cuts = refuses, []cut{{9 * time.Second, 60 * time.Second}} }, func(w *world) {
			w.watch(59*time.Second, 50*time.Millisecond, nil)
			if v := w.k.View(); v.Losses != 0 || v.Grant.LeaseID != 101 {
				t.Errorf("lost before etcd said so: %+v", v)
			}
			w.watch(66*time.Second, 50*time.Millisecond, nil)
			if v := w.k.View(); v.Losses != 1 || v.Grant.LeaseID != 102 || v.Phase != Holding || v.FailureStreak != 0 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// etcd refreshes leases when it elects a leader: then nobody was declared dead.
func TestALeaseThatSurvivedPastItsDeadlineGoesOn(t *testing.T) {
	inWorld(t, func(w *world) { w.refuses, w.cuts = true, []cut{{9 * time.Second, 60 * time.Second}} }, func(w *world) {
		w.until(30 * time.Second)
		w.lock(func() { w.leases[101] = w.now().Add(time.Hour) })
		w.until(66 * time.Second)
		if v := w.k.View(); v.Losses != 0 || v.Grant.LeaseID != 101 || !v.Validity.HeldAt(w.now()) {
			t.Errorf("%+v", v)
		}
	})
}

// Whatever happens, the Keeper never believes in a lease longer than it lives, and
// when the trouble is over it holds one.
func TestNoScheduleMakesTheKeeperBelieveTooMuch(t *testing.T) {
	if raced.Enabled {
		t.Skip("too slow with the race detector, which sees the same code in other tests")
	}
	seed := testseed.Value()
	for i := range 150 {
		t.Run(fmt.Sprintf("HOLDFAST_SEED=%d", seed+uint64(i)), func(t *testing.T) { randomSchedule(t, seed+uint64(i)) })
	}
}

func randomSchedule(t *testing.T, seed uint64) {
	rng, answers := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex // of answers, which the Keeper's goroutines draw
	answer := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return answers.IntN(n)
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	const trouble = 5 * time.Minute
	inWorld(t, func(w *world) {
		w.refuses = rng.IntN(2) == 0
		w.latency = time.Millisecond + upTo(200*time.Millisecond) // a round trip within the shortest attempt
		w.redial = time.Millisecond + upTo(300*time.Millisecond)
		w.set.Timing.TTL = 2*time.Second + upTo(40*time.Second).Truncate(time.Second)
		w.set.Timing.RenewInterval = w.set.Timing.TTL/8 + upTo(w.set.Timing.TTL/4)
		w.set.Timing.Margin = w.set.Timing.TTL / 3
		w.set.Timing.Jitter = w.set.Timing.RenewInterval / 10
		if rng.IntN(2) == 0 {
			w.set.RestartGrace = time.Second + upTo(10*time.Second)
		}
		for at := upTo(30 * time.Second); at < trouble; {
			to := at + upTo(45*time.Second)
			w.cuts = append(w.cuts, cut{at, min(to, trouble)})
			at = to + upTo(30*time.Second)
		}
		w.onEstablish = func(context.Context, int) error {
			switch answer(6) {
			case 0:
				return ErrConflict
			case 1:
				return errRefused
			}
			return nil
		}
		w.onRevoke = func(context.Context) error {
			if answer(2) == 0 {
				return errUnanswered
			}
			return nil
		}
	}, func(w *world) {
		open := true
		for w.age() < trouble && !t.Failed() {
			switch rng.IntN(8) {
			case 0:
				open = !open
				if w.k.Order(Rest); open {
					w.k.Order(Renew)
				}
			case 1:
				w.k.Reestablish()
			case 2:
				w.reconnected()
			}
			w.watch(w.age()+upTo(3*time.Second), 20*time.Millisecond, nil)
		}
		w.k.Order(Renew)
		w.scriptEstablish(nil)
		w.watch(trouble+30*time.Second, 100*time.Millisecond, nil)
		v := w.k.View()
		holds := v.Validity.HeldAt(w.now())
		// A renewal and its proof are four ways, and the next follows when they are over.
		if set, takes := w.set.Timing, 4*w.latency; max(set.RenewInterval, takes)+takes+w.redial > set.TTL-set.Margin {
			holds = !v.Validity.ExpiredAt(w.now()) // the fence point comes before the answer
		}
		if v.Phase != Holding || !holds || v.FailureStreak != 0 {
			t.Errorf("after the trouble: %+v", v)
		}
	})
}

// The first: a question of the Registrar that got no answer left renewals on the connection
// that was asleep, and the two took turns on it for ever. The second: the way is so long that
// the fence point comes before the answer of each renewal.
func TestNoScheduleThatOnceMisledTheKeeperDoesAgain(t *testing.T) {
	for _, seed := range []uint64{1795208398900385430, 1795377386173961796} {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { randomSchedule(t, seed) })
	}
}

// A fleet that was cut off renews in step afterwards, and so once more: the next renewal falls anywhere in the interval.
// Not where two renewals that were under way are answered one after the other, which some of these lives meet.
func TestAFleetThatWasCutOffIsSpread(t *testing.T) {
	spread := 0
	for range 8 {
		inWorld(t, func(w *world) {
			w.refuses, w.set.Timing.Jitter, w.cuts = true, defaults.RenewInterval/10, []cut{{6 * time.Second, 13 * time.Second}}
		}, func(w *world) {
			w.until(13*time.Second + time.Second)
			v := w.k.View()
			w.after(defaults.RenewInterval)
			next := w.set.Timing.untilNext(v.Grant.LeaseID, v.Validity.SentAt, true)
			if got := w.made("keepalive", v.Validity.SentAt.Sub(Instant(time.Hour))+1); len(got) > 0 && got[0].at == v.Validity.SentAt.Add(next).Sub(Instant(time.Hour)) {
				spread++
			}
		})
	}
	if spread < 4 {
		t.Errorf("%d of 8 were spread, want nearly all", spread)
	}
}
