package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/recovery"
)

// inJoined runs claim beside the sidecar of a broker that renews its own lease. notes counts
// the notes of a planned stop.
func inJoined(t *testing.T, change func(c *Config), claim func(l *leaver)) {
	t.Helper()
	lifeOf(t, brokerapi.Capabilities{Unload: true, Registers: true}, change, func(l *sidecarLife) { l.joins = true }, func(l *sidecarLife) {
		v := &leaver{sidecarLife: l}
		l.note = func(context.Context, departure) error {
			if v.fails == nil {
				v.notes++
			}
			return v.fails
		}
		l.until(9 * time.Second)
		claim(v)
	})
}

// keyGoes is the broker that gives its registration up, as the watch shows it.
func (l *leaver) keyGoes() {
	l.set(func() { l.lost, l.storeErr = true, true })
	l.inLoop(func() {
		l.registrationSeen(keySeen{id: "n1", revision: l.keyAt + 1})
		l.seenKey = nil // what is registered next is newer
	})
}

func (l *leaver) left(t *testing.T) {
	t.Helper()
	if err := l.asks(5*time.Second, false); err != nil {
		t.Fatal(err)
	}
}

func TestABrokerThatLeavesByItselfGetsTheNoteOnly(t *testing.T) {
	inJoined(t, stoppable, func(l *leaver) {
		revokes := l.revokes
		l.left(t)
		if l.notes != 1 || len(l.notReady()) == 0 || l.mode.Mode != recovery.Active {
			t.Errorf("%d notes, not ready %v, mode %s", l.notes, l.notReady(), l.mode.Mode)
		}
		l.until(l.age() + time.Minute)
		if !l.serving || !l.registered() || l.revokes != revokes || l.quiesces > 0 || len(l.stops) > 0 {
			t.Errorf("serving %v, registered %v, %d revokes, %d quiesces, stopped at %v; want it left alone",
				l.serving, l.registered(), l.revokes-revokes, l.quiesces, l.stops)
		}
		if l.words[len(l.words)-1] != "disarm" {
			t.Errorf("the guard was told %v last", l.words[len(l.words)-1])
		}
		// It is stopped: it gives its registration up first, and takes its time to end.
		l.keyGoes()
		l.until(l.age() + 2*time.Minute)
		if l.quiesces > 0 || len(l.stops) > 0 || l.revokes != revokes || l.moment > l.clock() {
			t.Errorf("its end is cut short: %d quiesces, stopped at %v, %d revokes", l.quiesces, l.stops, l.revokes-revokes)
		}
		if got := l.why("registration"); strings.Contains(got, "lost") && !strings.Contains(got, "lost:left") {
			t.Errorf("it counts as lost: %s", got)
		}
		l.set(func() { l.ended = true })
		l.until(l.age() + 10*time.Second)
		l.set(func() { l.storeErr = false })
		l.start()
		l.until(l.age() + 20*time.Second)
		if !l.registered() || len(l.notReady()) > 0 || len(l.stops) > 0 {
			t.Errorf("the next process: registered %v, not ready %v, stopped at %v", l.registered(), l.notReady(), l.stops)
		}
		if l.words[len(l.words)-1] == "disarm" {
			t.Error("the guard does not stand by the next process")
		}
	})
}

func TestABrokerThatLeavesByItselfAndStaysIsTakenBack(t *testing.T) {
	briefly := func(c *Config) { stoppable(c); c.LeaveTimeout = 30 * time.Second }
	for _, row := range []struct {
		name string
		do   func(l *leaver)
	}{
		{"after --leave-timeout", func(l *leaver) {
			l.until(l.age() + 20*time.Second)
			if len(l.notReady()) == 0 {
				l.t.Error("ready before --leave-timeout")
			}
			l.until(l.age() + 20*time.Second)
		}},
		{"by an operator", func(l *leaver) {
			l.inLoop(l.keepHere)
			l.until(l.age() + 5*time.Second)
		}},
		{"after its registration went", func(l *leaver) {
			l.keyGoes()
			before := l.leaseID
			l.set(func() { l.storeErr = false })
			l.until(l.age() + 20*time.Second)
			if l.leaseID != before {
				l.t.Error("registered again while it has its time to end")
			}
			l.until(l.age() + 20*time.Second)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inJoined(t, briefly, func(l *leaver) {
				l.left(t)
				asked := l.asked
				row.do(l)
				if !l.registered() || len(l.notReady()) > 0 || l.memory.Left != nil || len(l.stops) > 0 {
					t.Errorf("registered %v, not ready %v, stopped at %v", l.registered(), l.notReady(), l.stops)
				}
				if l.asked == asked {
					t.Error("its registration was not looked at: the note stays")
				}
			})
		})
	}
}

func TestABrokerThatLeavesByItselfAndCannotBeNotedStays(t *testing.T) {
	inJoined(t, stoppable, func(l *leaver) {
		l.fails = errors.New("etcd does not answer")
		if err := l.asks(5*time.Second, false); err == nil || !strings.Contains(err.Error(), "etcd does not answer") {
			t.Errorf("%v, want that it stays", err)
		}
		l.until(l.age() + 10*time.Second)
		if len(l.notReady()) > 0 || !l.serving {
			t.Errorf("serving %v, not ready %v", l.serving, l.notReady())
		}
	})
}

// The note stands while the sidecar is away: the broker may be stopped next.
func TestASidecarThatIsStoppedNotesThatItsBrokerMayLeaveByItself(t *testing.T) {
	for _, row := range []struct {
		name   string
		config func(*Config)
		before func(l *leaver)
		notes  int
		reason string
	}{
		{"up and active", stoppable, nil, 1, "left"},
		{"left before", stoppable, func(l *leaver) { l.left(t) }, 1, "left"},
		{"etcd does not take the note", stoppable, func(l *leaver) { l.fails = context.DeadlineExceeded }, 0, ""},
		{"drained by an operator", stoppable, func(l *leaver) {
			l.inLoop(func() {
				l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, l.modeRev+1, "")
			})
		}, 0, ""},
		{"its broker is down", stoppable, func(l *leaver) {
			l.set(func() { l.ended = true })
			l.until(l.age() + 5*time.Second)
		}, 0, ""},
		{"--leave-registered", func(c *Config) { stoppable(c); c.LeaveRegistered = true }, nil, 0, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inJoined(t, row.config, func(l *leaver) {
				revokes := l.revokes
				if row.before != nil {
					row.before(l)
				}
				l.stopAsked()
				l.halt()
				if err := l.leave(); err != nil {
					t.Error(err)
				}
				if l.notes != row.notes || l.revokes != revokes || l.quiesces > 0 || len(l.stops) > 0 {
					t.Errorf("%d notes, %d revokes, %d quiesces, stopped at %v", l.notes, l.revokes-revokes, l.quiesces, l.stops)
				}
				if got := l.why("agent"); !strings.HasSuffix(got, "stopped:"+row.reason) {
					t.Errorf("the last word is %q", got)
				}
			})
		})
	}
}

func TestTheNextSidecarKnowsThatTheBrokerLeavesByItself(t *testing.T) {
	past := func(l *sidecarLife) {
		l.joins = true
		l.remember(func(m *memory) {
			m.Epoch, m.Instance, m.LeaseID, m.Joined = 1, "process-1", 1, true
			m.Left = &leftProcess{Instance: "process-1", At: time.Now()}
		})
		l.recallLeft()
	}
	lifeOf(t, brokerapi.Capabilities{}, func(c *Config) { stoppable(c); c.LeaveTimeout = 3 * time.Minute }, past, func(l *sidecarLife) {
		l.until(2 * time.Minute)
		if !l.serving || l.quiesces > 0 || len(l.stops) > 0 || len(l.notReady()) == 0 {
			t.Errorf("serving %v, %d quiesces, stopped at %v, not ready %v; want it left alone", l.serving, l.quiesces, l.stops, l.notReady())
		}
		l.until(4 * time.Minute)
		if len(l.notReady()) > 0 {
			t.Errorf("not taken back: %v", l.notReady())
		}
	})
}

// The broker's own order: the note, its registration deleted under a lease that lives, and the
// next process under another.
func TestABrokerThatLeftByItselfComesBackActive(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(a adopted)
		row    recovery.Reason
		mode   recovery.Mode
	}{
		{"noted", func(a adopted) { a.leave() }, recovery.ReasonPlannedRestart, recovery.Active},
		{"not noted", func(adopted) {}, recovery.ReasonStaleRestart, recovery.Drained},
		{"noted too long ago", func(a adopted) { a.leave(); a.cfg.ReturnWithin = -time.Second }, recovery.ReasonStaleRestart, recovery.Drained},
		{"an operator drained meanwhile", func(a adopted) { a.leave(); a.set("drained", recovery.ByOperator) }, recovery.RowKept, recovery.Drained},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAdopted(t, func(c *Config) { c.SessionExpiredPolicy = "drain" })
			before := a.snapshot()
			row.change(a)
			if after := a.snapshot(); after.Registration == nil || after.Registration.ModRevision != before.Registration.ModRevision || after.Registration.LeaseID != before.Registration.LeaseID {
				t.Errorf("the registration was %+v, and is %+v", before.Registration, after.Registration)
			}
			a.del("n1")
			a.endSession()
			a.backAs(nil)
			a.put("n1", a.session())
			a.establish(a.first.LeaseID)
			a.decided(row.row, row.mode)
			if noted(a.snapshot()) {
				t.Error("the note stays, and would excuse a crash")
			}
		})
	}
}

// The note is of the process that left: the crash of the next one was not planned.
func TestTheCrashAfterAPlannedRestartIsNotExcused(t *testing.T) {
	a := newAdopted(t, func(c *Config) { c.SessionExpiredPolicy = "drain" })
	a.leave()
	for _, next := range []struct {
		process string
		row     recovery.Reason
		mode    recovery.Mode
	}{
		{"process-2", recovery.ReasonPlannedRestart, recovery.Active},
		{"process-3", recovery.ReasonStaleRestart, recovery.Drained},
	} {
		a.del("n1")
		a.endSession()
		a.backAs(nil)
		a.past.instance = next.process
		a.put("n1", a.session())
		a.establish(a.past.memory.LeaseID)
		a.decided(next.row, next.mode)
		a.takeUp()
	}
}

// It is taken away before clients come, by the next sidecar beside the same process too.
func TestTheNoteOfABrokerThatStaysIsTakenAway(t *testing.T) {
	a := newAdopted(t, nil)
	a.leave()
	a.past.mode = recovery.ModeRecord{}
	a.past.memory.Mode, a.past.memory.Reason, a.past.memory.By = "active", "boot", recovery.ByHoldfast
	a.establish(a.first.LeaseID)
	if noted(a.snapshot()) {
		t.Error("the note stays, and would excuse a crash")
	}
	a.decided(recovery.RowSurvived, recovery.Active)
}
