package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// lists counts the listings that the broker was asked for.
func (l *sidecarLife) lists() (n int) {
	l.set(func() { n = l.listed })
	return n
}

// quiescedInAnOutage runs claim beside a broker that was quiesced some time ago.
func quiescedInAnOutage(t *testing.T, change func(*config.Config), claim func(l *sidecarLife)) {
	t.Helper()
	inLife(t, change, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() + 10*time.Second)
		if got := l.why("fence"); got != "quiesced:" || l.serving {
			t.Errorf("%s, serving %t", got, l.serving)
			return
		}
		claim(l)
	})
}

// An operator restores a subject, a stream is created, a client's lookup brings a bundle
// back: whoever it was, the broker serves, and no step of ours failed.
func TestWhatOtherHandsBringBackDuringAnOutageIsQuiescedAgain(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		for range 3 {
			l.set(func() { l.serving = true })
			l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
			if l.serving {
				t.Fatal("served for longer than a health interval")
			}
			l.until(l.age() + time.Minute)
		}
		if got := l.why("fence"); got != "quiesced: quiesced: quiesced: quiesced:" || len(l.stops) > 0 {
			t.Errorf("%s, stopped at %v", got, l.stops)
		}
	})
}

func TestWhatIsBroughtBackAndCannotBeQuiescedAgainIsStopped(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.serving, l.refuses = true, 1000 })
		l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
		if got := l.why("fence"); got != "quiesced: failed:quiesce stopped:" || l.serving {
			t.Errorf("%s, serving %t", got, l.serving)
		}
	})
	quiescedInAnOutage(t, nil, func(l *sidecarLife) { // nothing here can stop it
		l.set(func() { l.serving, l.refuses = true, 1000 })
		l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
		if code, body := l.brokerLive(); code != http.StatusServiceUnavailable || !strings.Contains(body, "could not be quiesced") {
			t.Errorf("/broker/live: %d %q", code, body)
		}
	})
}

func TestABrokerThatHangsAfterItWasQuiescedIsStopped(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.frozen = true })
		begun, every := l.age(), l.cfg.HealthInterval
		l.until(begun + every)
		if len(l.stops) > 0 {
			t.Errorf("stopped at %v, froze at %v: the last proof still counts", l.stops, begun)
		}
		l.until(begun + (recovery.ProofLooks+1)*every)
		if got := l.why("fence"); got != "quiesced: stopped:" || !l.ended {
			t.Error(got)
		}
	})
}

// One answer that stays out is no reason to stop a broker.
func TestABrokerThatIsSlowOnceAfterItWasQuiescedIsLeftAlone(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		for range 5 {
			l.set(func() { l.frozen = true })
			l.until(l.age() + 2*l.cfg.HealthInterval - 50*time.Millisecond)
			l.set(func() { l.frozen = false })
			l.until(l.age() + 10*time.Second)
		}
		if got := l.why("fence"); got != "quiesced:" || len(l.stops) > 0 {
			t.Errorf("%s, stopped at %v", got, l.stops)
		}
	})
}

func TestABrokerThatSaysNothingIsStoppedOnlyWhenTheLastProofIsOld(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		every := l.cfg.HealthInterval
		l.set(func() { l.mumbles = true })
		l.until(l.age() + 2*every - 50*time.Millisecond)
		l.set(func() { l.mumbles = false })
		l.until(l.age() + 10*time.Second)
		if got := l.why("fence"); got != "quiesced:" {
			t.Errorf("after a moment: %s", got)
		}
		l.set(func() { l.mumbles = true })
		l.until(l.age() + 3*every + 50*time.Millisecond)
		if got := l.why("fence"); got != "quiesced: stopped:" {
			t.Errorf("after three intervals: %s", got)
		}
	})
}

// An outage may last for days: a look costs one listing, and nobody hears of it.
func TestALookThatFindsNothingCostsOneListing(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		lists, quiesces, fences := l.lists(), l.quiesces, l.reconciler.Snapshot()
		const long = 10 * time.Minute
		l.until(l.age() + long)
		if n, want := l.lists()-lists, int(long/l.cfg.HealthInterval); n > want+want/10 || n < want/2 {
			t.Errorf("%d listings in %v, one each %v", n, long, l.cfg.HealthInterval)
		}
		if got := l.why("fence"); got != "quiesced:" || l.quiesces != quiesces || l.view.Load().fence != recovery.FenceQuiesced {
			t.Errorf("%s, %d quiesces, %+v", got, l.quiesces-quiesces, fences)
		}
	})
}

// The guard is to be told until when the last proof counts.
func TestAProofCountsForThreeHealthIntervals(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		until := func() (at time.Duration) {
			l.inLoop(func() { at = time.Duration(l.provenUntil()) - time.Hour })
			return at
		}
		if at := until(); at != -time.Hour {
			t.Errorf("attached: %v", at)
		}
		l.set(func() { l.away, l.refuses = true, 2 })
		l.until(l.fencePoint() - time.Millisecond)
		l.set(func() { l.immortal = true })
		l.until(l.fencePoint() + time.Millisecond)
		if at := until(); at != -time.Hour {
			t.Errorf("nothing is proven: %v", at)
		}
		l.set(func() { l.immortal, l.refuses = false, 0 })
		l.until(l.fencePoint() + 20*time.Second)
		for range 5 {
			if at, least := until()-l.age(), 2*l.cfg.HealthInterval-100*time.Millisecond; at < least || at > 3*l.cfg.HealthInterval {
				t.Errorf("%v from now", at)
			}
			l.until(l.age() + 10*time.Second)
		}
	})
}

// The guard's moment is moved by what was seen, not by the time that passes.
func TestTheGuardIsPutOffByProofsAlone(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		every := l.cfg.HealthInterval
		for range 5 {
			l.until(l.age() + 10*time.Second)
			if left := l.moment.Sub(l.clock()); left < 2*every-100*time.Millisecond || left > 3*every {
				t.Errorf("the guard acts in %v", left)
			}
		}
		froze := l.clock()
		l.set(func() { l.frozen, l.immortal = true, true })
		l.until(l.age() + time.Minute)
		if late := l.moment.Sub(froze); late > 3*every {
			t.Errorf("the guard acts %v after the broker froze", late)
		}
	})
}

// The guard stops what was there at its moment, and a stop may take longer than a process
// takes to answer.
func TestAProofBringsTheGuardsMomentBackOnlyForABrokerThatIsUp(t *testing.T) {
	quiescedInAnOutage(t, stoppable, func(l *sidecarLife) {
		l.identity.forget()
		l.breaks.Add(1)
		l.set(func() { l.ended = true })
		l.lostLine <- struct{}{}
		l.until(l.age() + 10*time.Second)
		moment := l.moment
		if moment > l.clock() || len(l.stops) > 0 {
			t.Errorf("the guard acts in %v, stopped at %v", moment.Sub(l.clock()), l.stops)
		}
		l.start()
		for quiesces := l.quiesces; l.health.Snapshot().At(time.Now()) != probes.Up; l.until(l.age() + 10*time.Millisecond) {
			if l.moment != moment {
				t.Errorf("the guard acts in %v, %d quiesces", l.moment.Sub(l.clock()), l.quiesces-quiesces)
				return
			}
		}
		l.until(l.age() + time.Second)
		if l.moment < l.clock() || l.serving {
			t.Errorf("the guard acts in %v, serving %t", l.moment.Sub(l.clock()), l.serving)
		}
	})
}

// It is not looked at any more, since it may serve what it is given; so the last proof grows
// old. Stopped, the broker would lose the registration that it has, and begin anew.
func TestTheGuardLeavesABrokerAloneThatIsRegisteredAndWaitsToBeAttached(t *testing.T) {
	quiescedInAnOutage(t, func(c *config.Config) { stoppable(c); c.DetachmentRecoverWindow = time.Minute }, func(l *sidecarLife) {
		l.set(func() { l.away = false })
		for range 500 {
			l.until(l.age() + 100*time.Millisecond)
			if left := l.moment.Sub(l.clock()); left < l.cfg.HealthInterval {
				t.Errorf("%s, the guard acts in %v", l.state(), left)
				return
			}
		}
		if l.state() != recovery.Detached || l.keeper.View().Phase != lease.Holding {
			t.Errorf("%s, %s", l.state(), l.keeper.View().Phase)
		}
		froze := l.clock()
		l.set(func() { l.away, l.frozen, l.immortal = true, true, true })
		l.until(l.age() + time.Minute)
		if v := l.keeper.View().Validity; l.moment > max(v.StopAt(), froze.Add(3*l.cfg.HealthInterval)) {
			t.Errorf("the guard acts at %v, the lease is held until %v", l.moment, v.Deadline())
		}
	})
}

// What is owned by locks is given to it by nobody but us, so what hands bring back is theirs.
func TestABrokerThatWaitsToBeAttachedIsLookedAtWhereTopicsAreOwnedByLocks(t *testing.T) {
	for locks, looked := range map[string]bool{"on": true, "off": false} {
		quiescedInAnOutage(t, func(c *config.Config) {
			stoppable(c)
			c.DetachmentRecoverWindow, c.OwnershipLocks = time.Minute, locks
		}, func(l *sidecarLife) {
			l.set(func() { l.away = false })
			for !l.isRegistered() {
				l.until(l.age() + 10*time.Millisecond)
			}
			l.set(func() { l.serving = true })
			l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
			if l.state() != recovery.Detached || l.serving == looked || len(l.stops) > 0 {
				t.Errorf("locks %s: %s, serving %t, stopped at %v", locks, l.state(), l.serving, l.stops)
			}
		})
	}
}

// It was not looked at while it was registered, so the last proof is old when etcd goes
// away again. That is a reason to look, not to stop it.
func TestABrokerWhoseRegistrationCameForAMomentIsQuiescedAnewAndNotStopped(t *testing.T) {
	for _, brought := range []bool{false, true} {
		quiescedInAnOutage(t, func(c *config.Config) { stoppable(c); c.DetachmentRecoverWindow = 10 * time.Second }, func(l *sidecarLife) {
			l.set(func() { l.away = false })
			for !l.isRegistered() {
				l.until(l.age() + 10*time.Millisecond)
			}
			l.set(func() { l.away = true })
			l.until(l.fencePoint() - time.Second)
			l.set(func() { l.serving = brought })
			l.until(l.deadline())
			if l.state() != recovery.Detached || l.serving || len(l.stops) > 0 {
				t.Errorf("%s, serving %t, stopped at %v", l.state(), l.serving, l.stops)
			}
			l.until(l.deadline() + time.Minute)
			if len(l.stops) > 0 {
				t.Errorf("stopped at %v", l.stops)
			}
		})
	}
}

func (l *sidecarLife) isRegistered() (is bool) {
	l.inLoop(func() { is = l.registered() })
	return is
}

// A look that ends after the broker was attached again must not hold what it may load.
func TestALookHoldsNothingThatIsAttachedAgain(t *testing.T) {
	quiescedInAnOutage(t, func(c *config.Config) { c.DetachmentRecoverWindow = 0 }, func(l *sidecarLife) {
		l.set(func() { l.away = false })
		l.becomes(recovery.Attached, l.age()+time.Minute)
		l.until(l.age() + 10*time.Second)
		if causes := l.notReady(); len(causes) > 0 || !l.serving || l.health.Snapshot().At(time.Now()) != probes.Up {
			t.Errorf("%v, serving %t", causes, l.serving)
		}
	})
}
