package agent

import (
	"context"
	"testing"
	"time"

	"holdfast/recovery"
)

func TestABrokerThatEndsDuringAPauseHasLeftOnPurpose(t *testing.T) {
	pause := func(l *leaver) {
		l.inLoop(func() {
			l.beginPause(recovery.NewPause("ops", "disk swap", time.Hour, time.Now(), "", time.Duration(l.clock())))
		})
	}
	drained := func(l *leaver) {
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, l.modeRev+1, "")
		})
	}
	ends := func(l *leaver) { endProcess(l.sidecarLife) }
	for _, row := range []struct {
		name  string
		do    []func(l *leaver)
		notes int
	}{
		{"during a pause", []func(*leaver){pause, ends}, 1},
		{"without one", []func(*leaver){ends}, 0},
		{"before one", []func(*leaver){ends, pause}, 0},
		{"drained", []func(*leaver){pause, drained, ends}, 0},
		{"it is not seen to end", []func(*leaver){pause, func(l *leaver) { l.set(func() { l.ended = true }) }}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, kind{}, stoppable, func(l *leaver) {
				note := l.note
				l.note = func(ctx context.Context, d departure) error {
					if !l.life.Load().leaves {
						t.Error("the next process may be registered before the note is written")
					}
					return note(ctx, d)
				}
				for _, do := range row.do {
					do(l)
					l.until(l.age() + 2*time.Second)
				}
				l.until(l.age() + 10*time.Second)
				if l.notes != row.notes || l.life.Load().leaves {
					t.Errorf("%d notes, want %d; it still leaves: %v", l.notes, row.notes, l.life.Load().leaves)
				}
			})
		})
	}
}

// It is tried again while the lease is held, and what was noted is said at a stop.
func TestTheEndDuringAPauseIsNotedWhenEtcdAnswers(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		l.inLoop(func() {
			l.beginPause(recovery.NewPause("ops", "disk swap", time.Hour, time.Now(), "", time.Duration(l.clock())))
		})
		l.fails = context.DeadlineExceeded
		endProcess(l.sidecarLife)
		l.until(l.age() + 3*time.Second)
		l.inLoop(func() { l.fails = nil })
		l.until(l.age() + 3*time.Second)
		if l.notes != 1 {
			t.Errorf("%d notes", l.notes)
		}
		l.stopAsked()
		l.halt()
		if err := l.leave(); err != nil || l.notes != 1 || l.why("agent") != "stopped:left" {
			t.Errorf("%v, %d notes, %s", err, l.notes, l.why("agent"))
		}
	})
}
