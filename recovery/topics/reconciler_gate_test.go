package topics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/recovery"
)

func TestGateOpensWhenEveryAssignedTopicIsServed(t *testing.T) {
	b := newFakeBroker()
	b.latency = time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, names("t", 8), nil)
		w.after(3*time.Second - time.Millisecond) // the listing, and two rounds of four
		if p := w.Snapshot(); p.Reconciled || p.Served != 4 {
			t.Errorf("reconciled %v with %d of 8 served", p.Reconciled, p.Served)
		}
		w.after(time.Millisecond)
		if p := w.Snapshot(); !p.Reconciled || p.GateOpenedBy != GateComplete || p.Served != 8 {
			t.Errorf("progress %+v; want the gate open", p)
		}
	})
}

func TestGateOpensAtOnceWhenNothingIsAssigned(t *testing.T) {
	inWorld(t, testSettings, newFakeBroker(), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, nil, nil)
		w.after(time.Millisecond)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete {
			t.Errorf("gate opened by %q", p.GateOpenedBy)
		}
	})
}

// The broker was away, and serves what was given to another meanwhile.
func TestGateWaitsForTheQuarantineOfOrphans(t *testing.T) {
	inWorld(t, testSettings, newFakeBroker("/n/ours", "/n/given-away"), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/ours"}, nil)
		w.after(recovery.SettleTime - time.Millisecond)
		if p := w.Snapshot(); p.Reconciled || p.Orphan != 1 {
			t.Errorf("progress %+v; want the gate closed while the orphan is served", p)
		}
		w.after(100 * time.Millisecond)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete || p.Orphan != 0 {
			t.Errorf("progress %+v; want the gate open after the quarantine", p)
		}
	})
}

func TestForgottenAssignmentsMustBeReadAgain(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, testSettings, b, func(w *world) {
		w.SetAssigned(true, []string{"/n/ours", "/n/given-away"}, nil)
		w.ForgetAssigned()
		w.SetOrders(attached)
		w.after(time.Minute)
		w.wantServed()
		w.SetAssigned(false, []string{"/n/late"}, nil) // a change says nothing about the rest
		w.after(time.Minute)
		w.wantServed()
		if p := w.Snapshot(); p.Reconciled || p.AssignedKnown {
			t.Errorf("progress %+v; want the assignments unknown", p)
		}
		w.SetAssigned(true, []string{"/n/ours"}, nil)
		w.after(time.Second)
		w.wantServed("/n/ours")
	})
}

func TestGateOpensAfterLoadTimeoutWithoutProgressAndWarnsOnce(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/bad"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/bad", "/n/good"}, nil)
		w.after(testSettings.LoadTimeout - time.Millisecond)
		if w.Snapshot().Reconciled {
			t.Error("open before the timeout")
		}
		w.after(time.Millisecond + planSpacing) // the first plan may be made before anything is assigned
		if p := w.Snapshot(); p.GateOpenedBy != GateLoadTimeout {
			t.Errorf("gate opened by %q, want %q", p.GateOpenedBy, GateLoadTimeout)
		}
		w.after(time.Hour)
		log := w.log.String()
		if strings.Count(log, "startup reconciliation is incomplete") != 1 ||
			!strings.Contains(log, "missing=1 of=2") || !strings.Contains(log, "/n/bad: refused by the broker") {
			t.Errorf("want one warning with the count and the first error, have:\n%s", log)
		}
	})
}

// A record that nobody can read is no reason to keep clients from all other topics.
func TestGateDoesNotWaitForWhatCannotLoadForGood(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/bad"] = fmt.Errorf("%w: topic record /topics/n/bad: cannot be read", ErrRefused)
	b.loadErr["/n/slow"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/bad", "/n/good", "/n/slow"}, nil)
		w.after(time.Second)
		if p := w.Snapshot(); p.Reconciled || p.Served != 1 {
			t.Errorf("progress %+v; want the gate closed: one of them may load yet", p)
		}
		b.set(func() { delete(b.loadErr, "/n/slow") })
		w.after(5 * time.Second)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete || p.Served != 2 || p.Missing != 1 {
			t.Errorf("progress %+v; want the gate open without the one", p)
		}
		if log := w.log.String(); !strings.Contains(log, "startup reconciliation done") || !strings.Contains(log, "missing=1") {
			t.Errorf("the log does not say that one is missing:\n%s", log)
		}
		b.set(func() { clear(b.loadErr) })
		w.after(time.Minute) // it is tried on
		w.wantServed("/n/bad", "/n/good", "/n/slow")
	})
}

func TestProgressKeepsTheGateFromTimingOut(t *testing.T) {
	b := newFakeBroker()
	b.latency = 20 * time.Second
	s := testSettings
	s.Concurrency = 1
	inWorld(t, s, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, names("t", 20), nil)
		w.after(20*time.Second + 19*20*time.Second) // the listing, then one at a time
		if p := w.Snapshot(); p.Reconciled {
			t.Errorf("open with %d of 20 served, although one came every 20 s", p.Served)
		}
		w.after(20 * time.Second)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete {
			t.Errorf("gate opened by %q", p.GateOpenedBy)
		}
	})
}

func TestGateNeverTimesOutWhileNothingMayBeLoaded(t *testing.T) {
	for _, row := range []struct {
		name   string
		orders recovery.Orders
		listed bool
	}{
		{"drained", recovery.Orders{Epoch: 1, Mode: recovery.Drained, Attached: true, Instance: "a"}, true},
		{"draining", recovery.Orders{Epoch: 1, Mode: recovery.Draining, Attached: true, Instance: "a"}, true},
		{"detached", recovery.Orders{Epoch: 1, Mode: recovery.Active, Instance: "a"}, true},
		{"paused", recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "a", Paused: true}, true},
		{"broker never listed", attached, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker()
			if !row.listed {
				b.listErr = errRefused
			}
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(row.orders)
				w.SetAssigned(true, []string{"/n/a"}, nil)
				w.after(time.Hour)
				if w.Snapshot().Reconciled {
					t.Error("reconciled, although nothing was loaded")
				}
			})
		})
	}
}

func TestAPauseHoldsTopicsAndItsEndLetsThemGoOn(t *testing.T) {
	b := newFakeBroker("/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		paused := attached
		paused.Paused = true
		w.SetOrders(paused)
		w.SetAssigned(true, []string{"/n/a"}, nil)
		w.after(time.Hour)
		w.wantServed("/n/orphan")
		if p := w.Snapshot(); p.Missing != 1 || p.Orphan != 1 || !p.LastSuccess.IsZero() {
			t.Errorf("while paused: %+v", p)
		}
		w.SetOrders(attached)
		w.after(2 * time.Second)
		w.wantServed("/n/a")
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete || p.Quarantined != 1 {
			t.Errorf("after the pause: %+v", p)
		}
		w.SetAssigned(false, nil, []string{"/n/a"})
		w.SetOrders(paused)
		w.after(time.Hour)
		w.wantServed("/n/a")
		if !w.Snapshot().Reconciled {
			t.Error("a pause closed the gate")
		}
	})
}

func TestGateClosesForANewStartupAndOnlyThen(t *testing.T) {
	with := func(change func(*recovery.Orders)) recovery.Orders {
		o := attached
		change(&o)
		return o
	}
	for _, row := range []struct {
		name   string
		orders recovery.Orders
		closes bool
	}{
		{"another broker process", with(func(o *recovery.Orders) { o.Instance = "b" }), true},
		{"detached", with(func(o *recovery.Orders) { o.Attached = false }), true},
		{"drained", with(func(o *recovery.Orders) { o.Mode = recovery.Drained }), true},
		{"draining", with(func(o *recovery.Orders) { o.Mode = recovery.Draining }), false},
		{"another epoch", with(func(o *recovery.Orders) { o.Epoch = 2 }), false},
		{"a later assignment", attached, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker("/n/a")
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(attached)
				w.SetAssigned(true, []string{"/n/a"}, nil)
				w.after(time.Second)
				b.set(func() { b.latency = time.Second })
				w.SetAssigned(false, []string{"/n/later"}, nil)
				w.SetOrders(row.orders)
				if got := !w.Snapshot().Reconciled; got != row.closes {
					t.Errorf("closed %v, want %v, before SetOrders returned", got, row.closes)
				}
				w.SetOrders(attached)
				w.after(time.Minute)
				if !w.Snapshot().Reconciled {
					t.Error("not open again in the end")
				}
			})
		})
	}
}

// wantTripped checks that the guard holds and that nothing was quiesced beyond n.
func (w *world) wantTripped(atMostQuiesced int, detail string) {
	w.t.Helper()
	w.after(time.Hour)
	p := w.Snapshot()
	if !p.GuardTripped || !strings.Contains(p.GuardDetail, detail) {
		w.t.Errorf("tripped %v, detail %q; want it tripped with %q", p.GuardTripped, p.GuardDetail, detail)
	}
	if _, _, n := w.b.totals(); n > atMostQuiesced {
		w.t.Errorf("%d topics quiesced, want at most %d", n, atMostQuiesced)
	}
}

func TestMassUnassignmentTripsTheGuard(t *testing.T) {
	all := names("t", 100)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Minute)
		w.SetAssigned(true, nil, nil)
		w.wantTripped(0, "100 of 100 topics lost their assignment")
		w.SetAssigned(true, all, nil)
		w.after(time.Minute)
		if p := w.Snapshot(); p.GuardTripped || p.Served != 100 {
			t.Errorf("after the assignments came back: %+v", p)
		}
	})
}

func TestMassUnassignmentKeyByKeyTripsTheGuard(t *testing.T) {
	all := names("t", 1000)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Minute)
		for _, name := range all { // one every 20 ms: the window holds them all
			w.SetAssigned(false, nil, []string{name})
			time.Sleep(20 * time.Millisecond)
		}
		w.wantTripped(501, "topics lost their assignment")
		if n := len(w.b.served()); n < 499 {
			t.Errorf("%d topics still served, want about half", n)
		}
		w.Confirm()
		w.after(time.Minute)
		w.wantServed()
		if p := w.Snapshot(); p.GuardTripped || p.Quarantined != 1000 {
			t.Errorf("after confirm: %+v", p)
		}
	})
}

func TestOrphansAtTheFirstPlanTripTheGuard(t *testing.T) {
	all := names("t", 50)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, nil, nil)
		w.wantTripped(0, "50 of 50 served topics are not assigned here")
		w.Confirm()
		w.after(time.Minute)
		w.wantServed()
	})
}

func TestAFewUnassignmentsNeedNoConfirmation(t *testing.T) {
	all := names("t", 100)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Minute)
		w.SetAssigned(false, nil, all[:50])
		w.after(time.Minute)
		w.wantServed(all[50:]...)
	})
}

func TestConfirmBeforeTheGuardTripsDoesNothing(t *testing.T) {
	all := names("t", 100)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Minute)
		w.Confirm()
		w.SetAssigned(true, nil, nil)
		w.wantTripped(0, "100 of 100")
	})
}
