package agent

import (
	"testing"
	"time"

	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

var drainedByOperator = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}

// What an operator drained over the control socket is known before the watch shows it.
func TestAWatchThatLagsDoesNotUndoAnOperatorsDrain(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		active := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}
		l.inLoop(func() {
			l.setMode(drainedByOperator, 2_000_000, "")
			l.stateSeen(&active, "", 1_999_999, 1_999_999)
		})
		if got := l.view.Load().mode; got != drainedByOperator {
			t.Errorf("mode %+v", got)
		}
	})
}

// Whoever was detached may have been declared dead: what is right is for the registrar.
func TestTheModeIsNotAssertedWhileDetached(t *testing.T) {
	inLife(t, func(c *Config) { c.DetachmentRecoverWindow = time.Minute }, func(l *sidecarLife) {
		l.main = cluster.Over(cluster.Config{}, etcd.New(etcd.Config{}).Conn(nil), nil)
		asserts := func() (asserting bool) {
			l.inLoop(func() {
				l.reassert = true
				l.assertMode()
				asserting = l.reasserting
			})
			return asserting
		}
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Hour)
		l.set(func() { l.away = false })
		l.until(l.age() + 20*time.Second)
		if v := l.keeper.View(); v.FailureStreak > 0 || l.state() != recovery.Detached {
			t.Fatalf("%s after %d failures", l.state(), v.FailureStreak)
		}
		if asserts() {
			t.Error("asserted while detached")
		}
		l.becomes(recovery.Attached, time.Hour)
		if !asserts() {
			t.Error("not asserted although attached")
		}
	})
}

// The lease and the registration of a restored backup are ours as if nothing had been.
func TestAnEtcdThatWentBackIsLookedAt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		known := l.keeper.View().Grant.Revision
		for _, row := range []struct {
			listed int64
			looks  bool
		}{{known, false}, {known - 1, true}} {
			l.until(l.age() + 5*time.Second)
			before := l.asked
			l.inLoop(func() { l.storeSeen(row.listed) })
			l.until(l.age() + time.Second)
			if looked := l.asked > before; looked != row.looks {
				t.Errorf("a list of revision %d, where %d is known: looked %t", row.listed, known, looked)
			}
		}
	})
}
