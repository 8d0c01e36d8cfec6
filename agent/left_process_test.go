package agent

import (
	"context"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/registration"
)

// A sidecar that is restarted after 'holdfast leave' finds the process that left.
func TestAProcessThatHasLeftStaysAwayBesideTheNextSidecar(t *testing.T) {
	left := func(ago time.Duration) func(l *sidecarLife) {
		return func(l *sidecarLife) {
			l.remember(func(m *memory) {
				m.Epoch, m.Instance, m.Released = 1, "process-1", true
				m.Left = &registration.LeftProcess{Instance: "process-1", At: time.Now().Add(-ago)}
			})
			l.recallLeft(l.memory.Left)
		}
	}
	within := func(c *config.Config) { stoppable(c); c.LeaveTimeout = time.Minute }
	t.Run("until --leave-timeout is over", func(t *testing.T) {
		lifeOf(t, kind{}, within, left(20*time.Second), func(l *sidecarLife) {
			l.until(35 * time.Second)
			if l.keeper.View().Validity.Known() || l.serving || len(l.notReady()) == 0 || len(l.stops) > 0 {
				t.Errorf("registered %v, serving %v, stopped at %v", l.keeper.View().Validity.Known(), l.serving, l.stops)
			}
			l.until(55 * time.Second)
			if !l.keeper.View().Validity.Known() || !l.serving || len(l.notReady()) > 0 || l.memory.Left != nil {
				t.Errorf("afterwards: registered %v, not ready: %v", l.keeper.View().Validity.Known(), l.notReady())
			}
		})
	})
	t.Run("by its note alone", func(t *testing.T) {
		past := func(l *sidecarLife) {
			l.remember(func(m *memory) { m.Epoch, m.Instance, m.LeaseID = 1, "process-1", 1 })
			l.recallLeft(&registration.LeftProcess{Instance: "process-1", At: time.Now()})
			if l.memory.Left == nil {
				t.Error("not remembered")
			}
		}
		lifeOf(t, kind{}, within, past, func(l *sidecarLife) {
			l.until(50 * time.Second)
			if l.keeper.View().Validity.Known() || len(l.notReady()) == 0 || l.life.Load().Recalls {
				t.Errorf("registered %v, recalls %v", l.keeper.View().Validity.Known(), l.life.Load().Recalls)
			}
			l.inLoop(l.keepHere)
			if l.life.Load().Recalls {
				t.Error("its note would keep it away again")
			}
			l.until(75 * time.Second)
			l.inLoop(func() { l.recallLeft(&registration.LeftProcess{Instance: "process-1", At: time.Now()}) })
			if causes := l.notReady(); len(causes) > 0 || l.memory.Left != nil {
				t.Errorf("not ready: %v", causes)
			}
		})
	})
	t.Run("and is fenced when it serves", func(t *testing.T) {
		lifeOf(t, kind{}, within, left(0), func(l *sidecarLife) {
			l.until(10 * time.Second)
			l.set(func() { l.serving, l.refuses = true, 1000 })
			l.until(20 * time.Second)
			if l.serving || len(l.stops) == 0 {
				t.Errorf("serving %v, stopped at %v", l.serving, l.stops)
			}
		})
	})
}

func TestABrokerThatHasLeftIsRemembered(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		if err := l.asks(5*time.Second, false); err != nil {
			t.Fatal(err)
		}
		if left := l.memory.Left; left == nil || left.Instance != "process-1" || time.Since(left.At) > 10*time.Second {
			t.Errorf("remembered: %+v", left)
		}
		l.inLoop(l.keepHere)
		l.until(l.age() + 10*time.Second)
		if l.memory.Left != nil {
			t.Errorf("still remembered: %+v", l.memory.Left)
		}
	})
}

// Its own container is stopped, and perhaps not the broker's.
func TestABrokerThatLeavesForItsSidecarsRestartIsTakenBackByTheNext(t *testing.T) {
	for _, row := range []struct {
		name  string
		again time.Duration // after which whoever stops the broker asks, too; 0: nobody
	}{{"only the sidecar is stopped", 0}, {"the broker is stopped as well", time.Second}, {"the broker is stopped a little later", 10 * time.Second}} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, kind{}, stoppable, func(l *leaver) {
				slowly(l)
				var noted registration.Departure
				note := l.note
				l.note = func(ctx context.Context, d registration.Departure) error { noted = d; return note(ctx, d) }
				go func() { _ = l.leaveNow(context.Background(), time.Minute, false, true) }()
				if l.until(l.age() + row.again); row.again > 0 {
					go func() { _ = l.leaveNow(context.Background(), time.Minute, false, false) }()
				}
				l.until(l.age() + 10*time.Second)
				if stays := row.again > 0; l.notes != 1 || l.registered() || (l.memory.Left != nil) != stays || row.again == 0 && noted.Stop {
					t.Errorf("%d notes, registered %v, remembered %+v, noted %+v", l.notes, l.registered(), l.memory.Left, noted)
				}
			})
		})
	}
}

// It closes its admin API first, and may take its time after that.
func TestABrokerThatHasLeftMayTakeItsTimeToEnd(t *testing.T) {
	for name, row := range map[string]struct {
		answered time.Duration // after it left
		broken   bool          // its connection breaks as well
	}{
		"it does not answer any more as it leaves": {0, false},
		"it does not answer after a minute":        {time.Minute, false},
		"its connection breaks":                    {time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			inLeaver(t, kind{}, stoppable, func(l *leaver) {
				note := l.note
				l.note = func(ctx context.Context, d registration.Departure) error {
					defer l.set(func() { l.frozen = row.answered == 0 })
					return note(ctx, d)
				}
				if err := l.asks(5*time.Second, false); err != nil {
					t.Fatal(err)
				}
				l.until(l.age() + row.answered)
				l.set(func() { l.frozen = true })
				if row.broken {
					l.lostLine <- struct{}{}
				}
				for range 200 {
					l.until(l.age() + time.Second)
					if now := l.clock(); len(l.stops) > 0 || l.moment <= now {
						t.Fatalf("stopped at %v; the guard's moment is %v ahead", l.stops, l.moment.Sub(now))
					}
				}
				if row.answered > 0 {
					return
				}
				l.until(l.age() + l.cfg.LeaveTimeout)
				if len(l.stops) == 0 {
					t.Error("it hangs for ever, and is not stopped")
				}
			})
		})
	}
}

func TestABrokerThatServesAfterItLeftIsFenced(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		if err := l.asks(5*time.Second, false); err != nil {
			t.Fatal(err)
		}
		l.until(l.age() + 20*time.Second)
		l.set(func() { l.serving = true })
		l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
		if l.serving || len(l.stops) > 0 {
			t.Errorf("serving %v, stopped at %v", l.serving, l.stops)
		}
		l.set(func() { l.serving, l.refuses = true, 1000 })
		l.until(l.age() + l.cfg.HealthInterval + 10*time.Millisecond)
		if l.serving || len(l.stops) == 0 {
			t.Errorf("serving %v, stopped at %v", l.serving, l.stops)
		}
	})
}

func TestALadderWithoutQuiesceStopsABrokerThatHasLeft(t *testing.T) {
	inLeaver(t, kind{}, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, func(l *leaver) {
		if err := l.asks(5*time.Second, false); err != nil || l.notes != 1 || len(l.stops) == 0 {
			t.Errorf("%v, %d notes, stopped at %v", err, l.notes, l.stops)
		}
	})
}
