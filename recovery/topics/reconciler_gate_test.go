package topics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/recovery"
)

// The broker was away, and serves what was given to another meanwhile.
func TestGateWaitsForTheQuarantineOfOrphans(t *testing.T) {
	inWorld(t, testSettings, newFakeBroker("/n/ours", "/n/given-away"), func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/ours"}, nil)
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

func TestGateOpensAfterLoadTimeoutWithoutProgressAndWarnsOnce(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/bad"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/bad", "/n/good"}, nil)
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
		w.SetAssigned(1, true, []string{"/n/bad", "/n/good", "/n/slow"}, nil)
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
		w.SetAssigned(1, true, names("t", 20), nil)
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
				w.SetAssigned(1, true, []string{"/n/a"}, nil)
				w.after(time.Second)
				b.set(func() { b.latency = time.Second })
				w.SetAssigned(1, false, []string{"/n/later"}, nil)
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
