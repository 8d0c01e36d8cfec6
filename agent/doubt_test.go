package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// paused is a virtual machine that did not run for d: each clock stood still, and then
// somebody sets the wall clock.
func (l *sidecarLife) paused(d time.Duration) { l.set(func() { l.moved += d }) }

// notReadyFor returns what keeps clients away, by name.
func (l *sidecarLife) notReadyFor() map[string]string {
	why := map[string]string{}
	for _, c := range l.notReady() {
		why[c.Name] = c.Message
	}
	return why
}

const unconfirmed = "this host did not run for a while, or its clock was set: no renewal was confirmed since"

func TestNobodyIsSentHereBetweenAPauseOfTheMachineAndTheNextRenewal(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		renewals := l.keeper.View().Renewals
		l.paused(time.Hour)
		if why := l.notReadyFor(); why["lease"] != unconfirmed {
			t.Errorf("in the very moment, before the loop has run: %v", why)
		}
		l.until(l.age() + loopEvery)
		if n := l.keeper.View().Renewals - renewals; n != 1 || l.state() != recovery.Attached {
			t.Errorf("%d renewals, %s", n, l.state())
		}
		l.until(l.age() + loopEvery)
		if why := l.notReadyFor(); len(why) > 0 {
			t.Errorf("renewed: %v", why)
		}
	})
}

// The clock that would show the pause was set back in it.
func TestNobodyIsSentHereAfterAPauseThatTheWallClockHides(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		renewals := l.keeper.View().Renewals
		l.paused(2*time.Second - time.Hour)
		if why := l.notReadyFor(); why["lease"] != unconfirmed {
			t.Errorf("in the very moment, before the loop has run: %v", why)
		}
		l.set(func() { l.slow = time.Second })
		l.until(l.age() + loopEvery)
		if why := l.notReadyFor(); why["lease"] != unconfirmed || l.state() != recovery.Attached {
			t.Errorf("before etcd has answered: %v, %s", why, l.state())
		}
		l.until(l.age() + 2*loopEvery)
		if why := l.notReadyFor(); len(why) > 0 || l.keeper.View().Renewals == renewals {
			t.Errorf("renewed: %v, %d renewals", why, l.keeper.View().Renewals-renewals)
		}
	})
}

// Whoever asks may do so at any moment of the loop's run: here, whenever anything reads a clock.
func TestNobodyIsSentHereWhileTheLoopFindsOutThatTheClocksJumped(t *testing.T) {
	for name, jump := range map[string]func(l *sidecarLife){
		"paused":    func(l *sidecarLife) { l.moved += time.Hour },
		"suspended": func(l *sidecarLife) { l.jumped += 5 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			var asking atomic.Bool // and a jump is not followed by a renewal yet
			var asked, ready atomic.Int64
			var sent atomic.Int64
			past := func(l *sidecarLife) {
				ask := func() {
					if l.keeper.View().Validity.SentAt != lease.Instant(sent.Load()) || !asking.CompareAndSwap(true, false) {
						return // the question reads clocks, too
					}
					asked.Add(1)
					if l.notReadyFor()["lease"] != unconfirmed {
						ready.Add(1)
					}
					asking.Store(true)
				}
				clock, clocks := l.clock, l.world.Clocks
				l.clock = func() lease.Instant { ask(); return clock() }
				l.world.Clocks = func() lease.Clocks { ask(); return clocks() }
			}
			inLifeAfter(t, nil, past, func(l *sidecarLife) {
				l.set(func() { l.slow = 500 * time.Millisecond })
				l.until(l.age() + loopEvery/2)
				sent.Store(int64(l.keeper.View().Validity.SentAt))
				l.set(func() { jump(l); asking.Store(true) })
				l.until(l.age() + 2*loopEvery)
				if asked.Load() < 10 || ready.Load() > 0 {
					t.Errorf("ready at %d of %d moments", ready.Load(), asked.Load())
				}
			})
		})
	}
}

func TestNothingIsLoadedBetweenAPauseOfTheMachineAndTheNextRenewal(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.slow = time.Second })
		l.paused(time.Hour)
		l.until(l.age() + loopEvery)
		loads := l.loads
		l.set(func() { l.serving = false })
		l.reconciler.Kick()
		moments := 0
		for ; l.notReadyFor()["lease"] == unconfirmed; moments++ {
			if l.loads != loads || l.state() != recovery.Attached {
				t.Fatalf("%d loads, %s", l.loads-loads, l.state())
			}
			l.until(l.age() + 10*time.Millisecond)
		}
		if moments < 10 {
			t.Errorf("a renewal was confirmed after %d moments", moments)
		}
		l.until(l.age() + 5*time.Second)
		if why := l.notReadyFor(); l.loads == loads || len(why) > 0 {
			t.Errorf("renewed: %d loads, %v", l.loads-loads, why)
		}
	})
}

// The answer to a renewal that was sent before the pause says nothing of the time after it.
func TestARenewalThatWasSentBeforeAPauseConfirmsNothing(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.slow = 1500 * time.Millisecond })
		sent := l.keeper.View().Validity.SentAt
		for l.asks() == l.answers() { // until one is on its way
			l.until(l.age() + 10*time.Millisecond)
		}
		l.paused(time.Hour)
		for l.keeper.View().Validity.SentAt == sent {
			l.until(l.age() + 10*time.Millisecond)
		}
		if why := l.notReadyFor(); why["lease"] != unconfirmed {
			t.Errorf("ready by an answer from before: %v", why)
		}
		l.until(l.age() + 3*time.Second)
		if why := l.notReadyFor(); len(why) > 0 {
			t.Errorf("%v", why)
		}
	})
}

// The lease may have ended while the machine was paused. Etcd could tell, and is silent.
// The broker was paused, too: nothing is renewed before it answers again.
func TestAPausedMachineIsFencedAfterOneAttemptAlsoIfNoneWasMade(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.frozen = true })
		l.becomes(recovery.Degraded, l.age()+10*time.Second)
		l.paused(time.Hour)
		l.set(func() { l.away = true })
		l.until(l.age() + l.cfg.Timing().AttemptTimeout() + loopEvery)
		if l.state() != recovery.Detached || l.serving {
			t.Errorf("%s, serving %t", l.state(), l.serving)
		}
	})
}

// A margin may be shorter than the time to the loop's next beat.
func TestAPausedMachineIsFencedAtTheMomentAndNotAtTheNextBeat(t *testing.T) {
	for _, by := range []time.Duration{3 * time.Second, 10 * time.Second, 10300 * time.Millisecond, 10700 * time.Millisecond, time.Hour} {
		inLife(t, stoppable, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			l.until(l.age() + 2500*time.Millisecond)
			l.paused(by)
			l.until(l.age() + loopEvery)
			var since time.Duration
			l.inLoop(func() { since = time.Duration(l.doubt.since) - time.Hour })
			want := max(l.fencePoint()-by, since+l.cfg.Timing().AttemptTimeout())
			if at := l.becomes(recovery.Detached, time.Hour); at-want > 50*time.Millisecond || at < want {
				t.Errorf("paused for %v: fenced %v after the moment", by, at-want)
			}
		})
	}
}

func TestAPausedMachineThatFindsNoEtcdFencesAfterOneAttempt(t *testing.T) {
	for name, row := range map[string]struct {
		by   time.Duration
		soon bool
	}{
		"for longer than the lease": {time.Hour, true},
		"for a moment":              {2 * time.Second, false},
		"set back":                  {-time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				at := l.fencePoint()
				l.set(func() { l.away = true })
				l.paused(row.by)
				l.until(l.age() + loopEvery)
				if l.state() == recovery.Detached {
					t.Error("detached by the clock alone")
				}
				l.until(l.age() + l.cfg.Timing().AttemptTimeout() + loopEvery)
				if got := l.state() == recovery.Detached; got != row.soon || l.serving == row.soon {
					t.Errorf("%s at %v, fence point %v, serving %t", l.state(), l.age(), at, l.serving)
				}
				l.until(at + time.Second)
				if got := l.why("attachment"); l.serving || got != "attached:registered degraded:renewals_failing detached:fence_point" {
					t.Errorf("serving %t, %s", l.serving, got)
				}
				l.set(func() { l.away = false })
				l.becomes(recovery.Attached, l.age()+time.Minute)
				l.until(l.age() + 5*time.Second)
				if why := l.notReadyFor(); len(why) > 0 {
					t.Errorf("%v", why)
				}
			})
		})
	}
}

func TestASuspensionKeepsClientsAwayUntilTheNextRenewal(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		asked := l.asked
		l.set(func() { l.jumped += 5 * time.Second })
		if why := l.notReadyFor(); why["lease"] != unconfirmed {
			t.Errorf("in the very moment: %v", why)
		}
		l.until(l.age() + 2*loopEvery)
		if why := l.notReadyFor(); len(why) > 0 || l.asked == asked {
			t.Errorf("%v, etcd was asked %d times", why, l.asked-asked)
		}
	})
}
