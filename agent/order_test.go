package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// What follows are rules about what comes first. Each is easily broken by moving a line.

// The reconciler loads as soon as it may, on a goroutine of its own.
func TestTheReconcilerIsLetLooseOnlyAfterTheGuardIsArmed(t *testing.T) {
	slow := func(l *sidecarLife) { l.arming, l.serving = time.Second, false }
	inLifeAfter(t, stoppable, slow, func(l *sidecarLife) {
		l.until(l.age() + 5*time.Second)
		words := strings.Split(l.said(), ", ")
		armed := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "arm ") })
		load := slices.Index(words, "load")
		if armed < 0 || load < armed {
			t.Errorf("armed and loaded in this order: %v", words)
		}
	})
}

// stopInTurn is a stopper that notes what the guard has been told before it stops.
type stopInTurn struct {
	life *sidecarLife
	err  error
	saw  string
}

func (s *stopInTurn) Stop(context.Context) (string, error) {
	s.saw = s.life.said()
	return "SIGTERM", s.err
}

func TestTheEndOfASessionLetsTheGuardGoOnlyWhenTheBrokerIsStopped(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"it is stopped":        {nil, "disarm"},
		"it cannot be stopped": {context.DeadlineExceeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				s := &stopInTurn{life: l, err: row.err}
				l.inLoop(func() {
					l.stopper = s
					l.set(func() { l.words = nil })
					_ = l.endSession(&registration.SessionEnd{Reason: recovery.ReasonRetriesUsedUp, Detail: "etcd did not answer"})
				})
				if got := l.said(); strings.Contains(s.saw, "disarm") || !strings.Contains(got, row.want) || row.want == "" && strings.Contains(got, "disarm") {
					t.Errorf("before the stop %q, after it %q", s.saw, got)
				}
			})
		})
	}
}

// The ladder pauses between two rounds, and waits for a broker that does not answer.
func TestTheGuardIsNotLetGoWhileTheLadderMerelyWaits(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away, l.refuses, l.immortal = true, 1000, true })
		at := l.fencePoint()
		l.until(at - time.Millisecond)
		l.set(func() { l.words = nil })
		waited := map[recovery.Fence]bool{}
		for l.age() < at+time.Minute {
			l.until(l.age() + 50*time.Millisecond)
			waited[l.view.Load().fence] = true
		}
		if got := l.said(); got != "" || !waited[recovery.FencePausing] {
			t.Errorf("%s, the ladder was %v", got, waited)
		}
	})
	inLife(t, func(c *config.Config) { stoppable(c); c.Fence, c.Guard = []string{"ready", "quiesce"}, "off" }, func(l *sidecarLife) {
		l.set(func() { l.away, l.frozen, l.words = true, true, nil })
		l.until(l.fencePoint() + 10*time.Second)
		if got := l.said(); got != "" || l.view.Load().fence != recovery.FenceAwaiting {
			t.Errorf("%s, the ladder is %s", got, l.view.Load().fence)
		}
	})
}

// Etcd answers again, and the sidecar waits for the recover window: it may have been
// declared dead, and somebody may have decided otherwise.
func TestTheModeIsNotAssertedWhileDetached(t *testing.T) {
	inLife(t, func(c *config.Config) { c.DetachmentRecoverWindow = time.Hour }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Minute)
		l.set(func() { l.away = false })
		l.until(l.age() + time.Minute)
		l.inLoop(func() {
			if v := l.keeper.View(); v.Phase != lease.Holding || v.FailureStreak > 0 || l.attachment != recovery.Detached {
				t.Errorf("%s, %d failures, %s", v.Phase, v.FailureStreak, l.attachment)
				return
			}
			l.reassert = true
			l.assertMode()
			if l.reasserting {
				t.Error("the mode is written")
			}
			l.reassert = false
		})
	})
}

// A watch that lags shows what was true before an operator's drain was taken up.
func TestAStateThatTheWatchBringsLateIsNotTakenUp(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
		active := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}
		l.inLoop(func() {
			l.setMode(drained, 2_000_001, "")
			l.stateSeen(&active, "", 2_000_000, 2_000_000, 2_000_000)
			l.stateSeen(&active, "", 2_000_001, 2_000_001, 2_000_001)
		})
		if got := l.view.Load().Mode; got != drained {
			t.Errorf("mode %+v", got)
		}
		l.inLoop(func() { l.stateSeen(&active, "", 2_000_002, 2_000_002, 2_000_002) })
		if got := l.view.Load().Mode; got != active {
			t.Errorf("newer, and not taken up: %+v", got)
		}
	})
}

// The operator spoke between the Registrar's look and its answer.
func TestAnAnswerThatIsOlderThanAnOperatorsDrainDoesNotLiftIt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
		active := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonFleetExpired, By: recovery.ByHoldfast}
		answer := func(revision int64) {
			l.takeUp(registration.Outcome{Decision: recovery.Decision{Step: recovery.Keep, Mode: active}, Grant: l.grant, Instance: l.memory.Instance, StateRevision: revision})
		}
		l.inLoop(func() {
			l.setMode(drained, 2_000_001, "")
			answer(2_000_000)
		})
		if got := l.view.Load().Mode; got != drained {
			t.Errorf("mode %+v", got)
		}
		l.inLoop(func() { answer(2_000_002) })
		if got := l.view.Load().Mode; got != active {
			t.Errorf("newer, and not taken up: %+v", got)
		}
	})
}

// The watch was faster than the Registrar's answer: the key went after that one was written.
func TestALossThatTheWatchSawBeforeTheAnswerIsNotForgotten(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.inLoop(func() {
			l.seenKey = &keySeen{id: l.ids.registered.now(), revision: 2_000_001}
			l.takeUp(registration.Outcome{Decision: recovery.Decision{Step: recovery.Keep, Mode: l.mode}, Grant: l.grant, Value: l.value,
				Instance: l.memory.Instance, StateRevision: l.modeRev, SeenAt: 2_000_000})
		})
		if got := l.why("registration"); !strings.Contains(got, "lost:key_deleted") {
			t.Errorf("%s, %s", l.state(), got)
		}
	})
}

// What etcd lists is older than what a renewal told: it was restored from a backup.
func TestAnEtcdThatWasRestoredIsLookedAt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		known, asked := l.keeper.View().Grant.Revision, l.asked
		l.inLoop(func() { l.storeSeen(known) })
		l.until(l.age() + time.Second)
		if l.asked != asked {
			t.Errorf("asked though nothing is older: %d times", l.asked-asked)
		}
		l.inLoop(func() { l.storeSeen(known - 1) })
		l.until(l.age() + time.Second)
		if l.asked != asked+1 {
			t.Errorf("asked %d times", l.asked-asked)
		}
	})
}
