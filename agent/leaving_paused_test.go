package agent

import (
	"context"
	"testing"
	"time"

	"holdfast/agent/registration"
	"holdfast/recovery"
)

func TestABrokerThatEndsDuringAPauseHasLeftOnPurpose(t *testing.T) {
	pause := func(l *leaver) {
		l.inLoop(func() {
			l.beginPause(recovery.NewPause("ops", "disk swap", time.Hour, time.Now(), "", time.Duration(l.clock())))
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
		{"it is not seen to end", []func(*leaver){pause, func(l *leaver) { l.set(func() { l.ended = true }) }}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, kind{}, stoppable, func(l *leaver) {
				note := l.note
				l.note = func(ctx context.Context, d registration.Departure) error {
					if !l.life.Load().Leaves {
						t.Error("the next process may be registered before the note is written")
					}
					return note(ctx, d)
				}
				for _, do := range row.do {
					do(l)
					l.until(l.age() + 2*time.Second)
				}
				l.until(l.age() + 10*time.Second)
				if l.notes != row.notes || l.life.Load().Leaves {
					t.Errorf("%d notes, want %d; it still leaves: %v", l.notes, row.notes, l.life.Load().Leaves)
				}
			})
		})
	}
}
