package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Only a broker that was up and active, and is proven to serve nothing, leaves on purpose.
func TestWhoLeavesANoteAtAStop(t *testing.T) {
	drained := func(m recovery.Mode, by string) func(l *sidecarLife) {
		return func(l *sidecarLife) {
			l.inLoop(func() { l.setMode(recovery.ModeRecord{Mode: m, Reason: "disk swap", By: by}, l.modeRev+1, "") })
		}
	}
	for _, row := range []struct {
		name   string
		config func(*config.Config)
		before func(l *sidecarLife) // the stop is asked for
		after  func(l *sidecarLife)
		noted  bool
	}{
		{"up and active", stoppable, nil, nil, true},
		{"without a way to stop it", nil, nil, nil, true},
		{"drained by an operator", stoppable, drained(recovery.Drained, recovery.ByOperator), nil, false},
		{"drained after the stop was asked for", stoppable, nil, drained(recovery.Drained, recovery.ByOperator), false},
		{"its broker's process ends meanwhile", stoppable, nil, endProcess, true},
		{"its broker's process had ended before the stop was asked for", stoppable, endProcess, nil, false},
		{"its broker goes down meanwhile, and no process is seen to end", nil, nil, func(l *sidecarLife) { l.set(func() { l.ended = true }) }, false},
		{"another process than the registered one answers", stoppable, func(l *sidecarLife) {
			l.set(func() { l.storeErr = true })
			l.start()
		}, nil, false},
		{"it cannot be quiesced", stoppable, nil, func(l *sidecarLife) { l.set(func() { l.refuses = 1000 }) }, false},
		{"etcd has been away beyond the fence point", stoppable, nil, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			l.becomes(recovery.Detached, time.Minute)
		}, false},
		{"it is registered, and was not attached yet", stoppable, nil, func(l *sidecarLife) {
			l.halt()
			l.attachment, l.everAttached = recovery.Detached, false
		}, true},
		{"--leave-registered", func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, nil, nil, false},
		{"a shadow", func(c *config.Config) { c.Shadow = true }, nil, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, row.config, func(l *sidecarLife) {
				var notes []registration.Departure
				l.note = func(_ context.Context, d registration.Departure) error {
					if l.serving && !l.ended {
						t.Error("noted while it serves")
					}
					if revoked(l) {
						t.Error("revoked before it is noted")
					}
					notes = append(notes, d)
					return nil
				}
				if row.before != nil {
					row.before(l)
				}
				l.until(l.age() + 5*time.Second)
				l.stopAsked()
				if row.after != nil {
					row.after(l)
					l.until(l.age() + 5*time.Second)
				}
				g := l.grant
				l.halt()
				_ = l.leave()
				if noted := len(notes) == 1 && notes[0].Grant.LeaseID == g.LeaseID && notes[0].Grant.Epoch == g.Epoch && !notes[0].Stop; noted != row.noted || !noted && len(notes) > 0 {
					t.Errorf("noted %+v", notes)
				}
				if got := l.why("agent"); strings.HasSuffix(got, "stopped:left") != row.noted {
					t.Errorf("the last word is %q", got)
				}
			})
		})
	}
}

// endProcess ends the broker, whose process is watched.
func endProcess(l *sidecarLife) {
	who, _ := l.identity.get()
	l.inLoop(func() {
		l.set(func() { l.ended = true })
		l.served = process.Target{Pid: 1<<22 + 1, StartTicks: 1}
		l.recognizer.Settle(l.served, who.Instance, recognize.IsBroker, "")
	})
}

// It is stopped instead: what it served is gone with it.
func TestABrokerThatMustStopLeavesANoteWhenItIsStopped(t *testing.T) {
	for _, immortal := range []bool{false, true} {
		inLifeOf(t, mustStop, stoppable, nil, func(l *sidecarLife) {
			notes := 0
			l.note = func(context.Context, registration.Departure) error { notes++; return nil }
			l.set(func() { l.immortal = immortal })
			l.stopAsked()
			l.halt()
			if err := l.leave(); (err != nil) != immortal || (notes == 1) == immortal || revoked(l) == immortal {
				t.Errorf("immortal %t: %v, %d notes, revoked %v", immortal, err, notes, revoked(l))
			}
		})
	}
}

func TestANoteThatIsRefusedKeepsNobodyFromLeaving(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.note = func(context.Context, registration.Departure) error { return cluster.ErrChanged }
		l.stopAsked()
		l.halt()
		if err := l.leave(); err != nil || !revoked(l) || !strings.HasSuffix(l.why("agent"), "stopped:released") {
			t.Errorf("%v, revoked %v, %s", err, revoked(l), l.why("agent"))
		}
	})
}

func TestTheRegistrarKnowsOfADepartureBeforeItIsNoted(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		note := l.note
		l.note = func(ctx context.Context, d registration.Departure) error {
			if !l.life.Load().Leaves {
				t.Error("it may take the note away")
			}
			if !d.Stop {
				t.Error("a sidecar that is killed now would have its broker taken back")
			}
			return note(ctx, d)
		}
		c := make(chan error, 1)
		l.inLoop(func() {
			if l.beginLeaving(5*time.Second, false, c); !l.life.Load().Leaves {
				t.Error("it may take a note away that is written at once")
			}
		})
		if err := <-c; err != nil || !l.life.Load().Leaves {
			t.Errorf("%v, it leaves: %v", err, l.life.Load().Leaves)
		}
		l.inLoop(func() {
			if l.keepHere(); l.life.Load().Leaves {
				t.Error("it is looked at again, and cannot be taken up")
			}
		})
	})
}

// A note that takes all its time leaves some for the revocation.
func TestANoteThatTakesTooLongDoesNotCostTheRevocation(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.note = func(ctx context.Context, _ registration.Departure) error { <-ctx.Done(); return ctx.Err() }
		l.stopAsked()
		l.halt()
		began := l.age()
		if err := l.leave(); err != nil || !revoked(l) || l.age()-began > 4*time.Second {
			t.Errorf("%v, revoked %v, took %v", err, revoked(l), l.age()-began)
		}
	})
}
