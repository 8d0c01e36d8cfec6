package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/agent/registration"
	"holdfast/probes"
	"holdfast/recovery"
)

// leaver is a life whose notes are counted.
type leaver struct {
	*sidecarLife
	notes int
	fails error // what noting one ends with
}

func inLeaver(t *testing.T, can kind, change func(c *config.Config), claim func(l *leaver)) {
	t.Helper()
	inLifeOf(t, can, change, nil, func(l *sidecarLife) {
		v := &leaver{sidecarLife: l}
		l.note = func(context.Context, registration.Departure) error {
			if l.set(func() {}); l.serving && !l.ended {
				t.Error("noted while it serves")
			}
			if v.fails == nil {
				v.notes++
			}
			return v.fails
		}
		claim(v)
	})
}

// asks asks the broker to leave, and returns what comes of it within the timeout and a moment.
func (l *leaver) asks(timeout time.Duration, wait bool) error {
	c := make(chan error, 1)
	go func() { c <- l.leaveNow(context.Background(), timeout, wait, false) }()
	l.until(l.age() + timeout + 100*time.Millisecond)
	select {
	case err := <-c:
		return err
	default:
		return errors.New("no answer")
	}
}

func (l *leaver) registered() bool { return l.keeper.View().Validity.Known() }

func TestABrokerThatLeavesServesNothingAndIsNotRegistered(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		if err := l.asks(5*time.Second, false); err != nil {
			t.Fatal(err)
		}
		if l.notes != 1 || l.serving || l.registered() || len(l.notReady()) == 0 || l.memory.LeaseID != 0 || !l.memory.Released {
			t.Errorf("%d notes, serving %v, registered %v, not ready %v, released %v", l.notes, l.serving, l.registered(), l.notReady(), l.memory.Released)
		}
		asked := l.asked
		l.until(l.age() + time.Minute)
		if l.registered() || l.asked != asked || l.serving || len(l.stops) > 0 {
			t.Errorf("a minute later: registered %v, asked %d times, serving %v, stopped at %v", l.registered(), l.asked-asked, l.serving, l.stops)
		}
		if got := l.why("registration"); strings.Contains(got, "lost") && !strings.Contains(got, "lost:left") {
			t.Errorf("it counts as lost: %s", got)
		}
		if err := l.asks(time.Second, false); err != nil || l.notes != 1 {
			t.Errorf("asked again: %v, %d notes", err, l.notes)
		}
		if l.said() != "" && strings.Contains(l.said(), "fired") {
			t.Error(l.said())
		}
	})
}

func TestWhoIsBackFromAPlannedStopMayLeaveAgainAtOnce(t *testing.T) {
	inLeaver(t, kind{}, func(c *config.Config) { c.DetachmentRecoverWindow = time.Minute }, func(l *leaver) {
		for notes := 1; notes <= 2; notes++ {
			if err := l.asks(5*time.Second, true); err != nil || l.notes != notes {
				t.Errorf("stop %d: %v, %d notes", notes, err, l.notes)
			}
			l.set(func() { l.ended = true })
			l.until(l.age() + time.Second)
			l.start()
			for began := l.age(); !l.registered() && l.age() < began+20*time.Second; {
				l.until(l.age() + 50*time.Millisecond)
			}
		}
	})
}

func TestActivateTakesABrokerBackWhileItsProcessIsThere(t *testing.T) {
	for _, there := range []bool{true, false} {
		inLeaver(t, kind{}, nil, func(l *leaver) {
			if err := l.asks(5*time.Second, false); err != nil {
				t.Fatal(err)
			}
			if !there {
				endProcess(l.sidecarLife)
			}
			l.until(l.age() + 10*time.Second)
			if s := l.status().Summary; strings.Contains(s, "start it when the work is done") == there || strings.Contains(s, "stop it, or take it back") != there {
				t.Errorf("process there: %v: %s", there, s)
			}
			l.inLoop(l.keepHere)
			l.until(l.age() + 10*time.Second)
			if l.registered() != there {
				t.Errorf("process there: %v, registered %v", there, l.registered())
			}
		})
	}
}

// Whatever keeps a departure from being noted leaves the broker as it was.
func TestADepartureThatFailsIsTakenBack(t *testing.T) {
	for _, row := range []struct {
		name   string
		before func(l *leaver)
		during func(l *leaver) // a second after it was asked for, while it is being quiesced
		says   string
		back   bool // it serves again
	}{
		{"it cannot be quiesced", func(l *leaver) { l.set(func() { l.refuses = 2 }) }, nil, "quiesced", true},
		{"etcd does not answer", func(l *leaver) { l.fails = context.DeadlineExceeded }, nil, "deadline", true},
		{"etcd is slow", func(l *leaver) {
			note := l.note
			l.note = func(ctx context.Context, d registration.Departure) error {
				if probes.Sleep(ctx, 4*time.Second); ctx.Err() != nil {
					return ctx.Err()
				}
				return note(ctx, d)
			}
		}, nil, "deadline", true},
		{"it is drained meanwhile", slowly, func(l *leaver) {
			l.inLoop(func() {
				l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "x", By: recovery.ByOperator}, l.modeRev+1, "")
			})
		}, "drained (x)", false},
		{"its lease is lost meanwhile", slowly, func(l *leaver) { l.set(func() { l.lost, l.storeErr = true, true }); l.keeper.RenewNow() }, "not surely held", false},
		{"it takes longer than it may", func(l *leaver) { quiesceIn(l, time.Minute) }, nil, "5s", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, kind{}, nil, func(l *leaver) {
				if row.before != nil {
					row.before(l)
				}
				if row.during != nil {
					time.AfterFunc(time.Second, func() { row.during(l) })
				}
				err := l.asks(5*time.Second, false)
				if err == nil || !strings.Contains(err.Error(), row.says) {
					t.Errorf("%v, want %q", err, row.says)
				}
				if l.notes > 0 {
					t.Errorf("%d notes", l.notes)
				}
				if !row.back {
					return
				}
				l.set(func() { l.quiesced = nil })
				l.until(l.age() + 10*time.Second)
				if l.life.Load().Unsure == 0 {
					t.Error("the registrar does not know that it may be noted yet")
				}
				if !l.serving || len(l.notReady()) > 0 {
					t.Errorf("serving %v, not ready: %v", l.serving, l.notReady())
				}
			})
		})
	}
}

// A person's call that is cut short must not undo that of a pod's end.
func TestWhoGivesUpWaitingCallsOffNobodyElsesDeparture(t *testing.T) {
	inLeaver(t, kind{}, nil, func(l *leaver) {
		slowly(l)
		time.AfterFunc(time.Second, func() {
			if err := l.asks(time.Second, false); err == nil {
				t.Error("it has left after two seconds, and a quiesce takes three")
			}
		})
		if err := l.asks(time.Minute, false); err != nil {
			t.Error(err)
		}
		if l.notes != 1 {
			t.Errorf("%d notes", l.notes)
		}
	})
}

// slowly has a quiesce take three seconds.
func slowly(l *leaver) { quiesceIn(l, 3*time.Second) }

func quiesceIn(l *leaver, takes time.Duration) {
	l.set(func() {
		l.quiesced = func() error {
			l.mu.Unlock()
			time.Sleep(takes)
			l.mu.Lock()
			l.serving = false
			return nil
		}
	})
}

func TestABrokerThatCannotLeaveYetIsWaitedForIfAsked(t *testing.T) {
	inLeaver(t, kind{}, nil, func(l *leaver) {
		drained := func(m recovery.Mode) {
			l.inLoop(func() { l.setMode(recovery.ModeRecord{Mode: m, Reason: "x", By: recovery.ByOperator}, l.modeRev+1, "") })
		}
		drained(recovery.Drained)
		time.AfterFunc(3*time.Second, func() { drained(recovery.Active) })
		if err := l.asks(10*time.Second, true); err != nil || l.notes != 1 {
			t.Errorf("%v, %d notes", err, l.notes)
		}
	})
}

// A broker that must not run without its registration keeps that until its process has ended.
func TestABrokerThatMustStopLeavesWhenItsProcessHasEnded(t *testing.T) {
	t.Run("it is stopped", func(t *testing.T) {
		inLeaver(t, mustStop, stoppable, func(l *leaver) {
			if err := l.asks(5*time.Second, false); err != nil || l.notes != 1 || len(l.stops) == 0 || l.registered() {
				t.Errorf("%v, %d notes, stopped at %v, registered %v", err, l.notes, l.stops, l.registered())
			}
		})
	})
	t.Run("it is stopped, and etcd is silent for a moment", func(t *testing.T) {
		inLeaver(t, mustStop, stoppable, func(l *leaver) {
			l.fails = errors.New("etcd is away")
			err := l.asks(time.Second, false)
			l.fails = nil
			if l.until(l.age() + 3*time.Second); err == nil || l.notes != 1 || l.registered() {
				t.Errorf("%v, %d notes, registered %v: %s", err, l.notes, l.registered(), l.status().Summary)
			}
		})
	})
	t.Run("somebody else stops it", func(t *testing.T) {
		inLeaver(t, mustStop, func(c *config.Config) { c.IKnow = true }, func(l *leaver) {
			l.seen(os.Getpid())
			if err := l.asks(5*time.Second, false); err != nil || l.notes != 0 || !l.registered() || l.serving || len(l.notReady()) == 0 {
				t.Fatalf("%v, %d notes, registered %v, serving %v", err, l.notes, l.registered(), l.serving)
			}
			l.until(l.age() + time.Minute)
			if l.notes != 0 || !l.registered() || l.serving {
				t.Errorf("a minute later: %d notes, registered %v, serving %v", l.notes, l.registered(), l.serving)
			}
			l.set(func() { l.frozen = true })
			l.until(l.age() + 2*l.cfg.LeaseTTL)
			if l.notes != 0 || !l.registered() {
				t.Errorf("it does not answer any more: %d notes, registered %v", l.notes, l.registered())
			}
			l.inLoop(func() {
				l.set(func() { l.ended = true })
				l.served = process.Target{Pid: 1<<22 + 1, StartTicks: 1}
			})
			l.until(l.age() + 5*time.Second)
			if l.notes != 1 || l.registered() {
				t.Errorf("after its end: %d notes, registered %v", l.notes, l.registered())
			}
		})
	})
	t.Run("it hangs for longer than it may", func(t *testing.T) {
		inLeaver(t, mustStop, func(c *config.Config) { c.IKnow = true; c.LeaveTimeout = time.Minute }, func(l *leaver) {
			l.seen(os.Getpid())
			if err := l.asks(5*time.Second, false); err != nil {
				t.Fatal(err)
			}
			l.set(func() { l.frozen = true })
			l.until(l.age() + time.Minute + l.cfg.LeaseTTL)
			if held := l.keeper.View().Validity.HeldAt(l.clock()); held || l.notes != 0 {
				t.Errorf("held %v, %d notes", held, l.notes)
			}
		})
	})
}

// Where others may not see it go before its time, a registration runs out, whatever ends it.
func TestTheRegistrationOfABrokerThatWritesItsOwnIsNeverRevoked(t *testing.T) {
	graced := func(c *config.Config) { stoppable(c); c.RestartGrace = time.Second }
	for name, end := range map[string]func(l *leaver){
		"it leaves":             func(l *leaver) { _ = l.asks(5*time.Second, false) },
		"its process has ended": func(l *leaver) { endProcess(l.sidecarLife) },
		"its sidecar ends": func(l *leaver) {
			l.stopAsked()
			l.halt()
			_ = l.leave()
		},
	} {
		for _, itself := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %t", name, itself), func(t *testing.T) {
				inLeaver(t, mustStop, graced, func(l *leaver) {
					l.inLoop(func() { l.traits.Registers = itself })
					if end(l); name != "its sidecar ends" {
						l.until(l.age() + 5*time.Second)
					}
					if l.registered() != itself {
						t.Errorf("registered %t", !itself)
					}
				})
			})
		}
	}
}

// seen has that process seen as the broker's.
func (l *leaver) seen(pid int) {
	t, err := process.TargetOf(pid)
	if err != nil {
		l.t.Fatal(err)
	}
	l.inLoop(func() { l.served = t })
}

// The sidecar is stopped while its broker leaves, or has left.
func TestAStopOfTheSidecarWhileItsBrokerLeaves(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 10 * time.Second} {
		inLeaver(t, kind{}, stoppable, func(l *leaver) {
			slowly(l)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { _ = l.leaveNow(ctx, 20*time.Second, false, false) }()
			l.until(l.age() + after)
			l.stopAsked()
			l.halt()
			if err := l.leave(); err != nil || l.notes != 1 || l.registered() || l.serving {
				t.Errorf("after %v: %v, %d notes, registered %v, serving %v", after, err, l.notes, l.registered(), l.serving)
			}
		})
	}
}

// What the placer would take or give now, nobody would have quiesced.
func TestNothingIsPlacedWhileABrokerLeaves(t *testing.T) {
	inLeaver(t, kind{}, nil, func(l *leaver) {
		slowly(l)
		placing := func() (attached bool) {
			l.inLoop(func() { attached = l.placerOrders().Attached })
			return attached
		}
		if !placing() {
			t.Error("nothing is placed beside a broker that is attached")
		}
		c := make(chan error, 1)
		go func() { c <- l.leaveNow(context.Background(), 10*time.Second, false, false) }()
		l.until(l.age() + time.Second)
		if placing() {
			t.Error("placed while it leaves")
		}
		l.until(l.age() + 10*time.Second)
		if err := <-c; err != nil || l.notes != 1 {
			t.Errorf("%v, %d notes", err, l.notes)
		}
	})
}
