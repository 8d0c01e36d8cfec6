package topics

import (
	"fmt"
	"testing"
	"time"

	"holdfast/recovery"
)

func TestGateOpensAfterLoadTimeoutWithoutProgressAndWarnsOnce(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/bad"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(testSettings.LoadTimeout-time.Millisecond, "/n/bad", "/n/good")
		w.want("2 assigned, 1 served, 1 missing, 1 failed, error")
		w.after(time.Millisecond + planSpacing) // the first plan may be made before anything is assigned
		w.want("2 assigned, 1 served, 1 missing, 1 failed, error, load-timeout")
		w.after(time.Hour)
		w.wantLog("startup reconciliation is incomplete", 1)
		w.wantLog("missing=1 of=2", 1)
		w.wantLog("/n/bad: refused by the broker", 1)
	})
}

// A record that nobody can read is no reason to keep clients from all other topics.
func TestGateDoesNotWaitForWhatCannotLoadForGood(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/bad"] = fmt.Errorf("%w: topic record /topics/n/bad: cannot be read", ErrRefused)
	b.loadErr["/n/slow"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, "/n/bad", "/n/good", "/n/slow")
		w.want("3 assigned, 1 served, 2 missing, 2 failed, error")
		w.SetAssigned(1, false, []string{"/n/bad"}, nil) // no news, but the next is not planned at once
		w.after(1)
		w.SetAssigned(1, false, nil, []string{"/n/bad"})
		w.after(1)
		w.want("2 assigned, 1 served, 1 missing, 2 failed, error") // none is left that would be excused
		w.after(time.Second)
		w.want("2 assigned, 1 served, 1 missing, 1 failed, error")
		w.SetAssigned(1, false, []string{"/n/bad"}, nil)
		b.set(func() { delete(b.loadErr, "/n/slow") })
		w.after(5 * time.Second)
		w.want("3 assigned, 2 served, 1 missing, 1 failed, error, complete")
		w.wantLog(`startup reconciliation done" topics=3 missing=1`, 1)
		b.set(func() { clear(b.loadErr) })
		w.after(time.Minute) // it is tried on
		w.wantServed("/n/bad", "/n/good", "/n/slow")
	})
}

func TestWhatTheGateWaitsFor(t *testing.T) {
	untold := steering(attached, recovery.SteerPending)
	for _, row := range []struct {
		name              string
		orders            recovery.Orders
		serving, assigned []string
		want              string
		success           bool
	}{
		{"paused, and one is missing", paused, nil, names("t", 1), "1 assigned, 1 missing", false},
		{"paused, and one is too many", paused, names("t", 2), names("t", 1), "1 assigned, 1 served, 1 orphan", false},
		{"paused, and many are too many", paused, names("t", 20), nil, "20 orphan, tripped, complete", false},
		{"paused, and all is well", paused, names("t", 1), names("t", 1), "1 assigned, 1 served, complete", true},
		{"not told its mode, and one is missing", untold, nil, names("t", 1), "1 assigned, 1 missing", true},
		{"not told its mode, and all is well", untold, names("t", 1), names("t", 1), "1 assigned, 1 served, complete", true},
		{"draining", draining, []string{"/n/t-00000", "/n/stray"}, names("t", 2), "2 assigned, 1 served, 1 missing, 1 quarantined", true},
		{"one is too many, and stays", attached, names("t", 2), names("t", 1), "1 assigned, 1 served, 1 orphan, 1 failed, error, load-timeout", true}, // it was left alone at first
		{"many are too many", attached, names("t", 20), nil, "20 orphan, tripped, complete", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker(row.serving...)
			b.quiesceErr["/n/t-00001"] = errRefused
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(row.orders)
				w.SetAssigned(1, true, row.assigned, nil)
				w.after(time.Hour)
				w.want(row.want)
				if success := !w.Snapshot().LastSuccess.IsZero(); success != row.success {
					t.Errorf("success: %v", success)
				}
			})
		})
	}
}

func TestProgressKeepsTheGateFromTimingOut(t *testing.T) {
	b := newFakeBroker()
	b.latency = 20 * time.Second
	s := testSettings
	s.Concurrency = 1
	inWorld(t, s, b, func(w *world) {
		w.begin(20*time.Second+19*20*time.Second, names("t", 20)...) // the listing, then one at a time
		w.want("20 assigned, 19 served, 1 missing, 1 loading")
		w.after(20 * time.Second)
		w.want("20 assigned, 20 served, complete")
	})
}

func TestGateClosesForANewStartupAndOnlyThen(t *testing.T) {
	for _, row := range []struct {
		name   string
		orders recovery.Orders
		closes bool
	}{
		{"another broker process", another, true},
		{"detached", detached, true},
		{"drained", drained, true},
		{"draining", draining, false},
		{"another epoch", renewed, false},
		{"paused", paused, false},
		{"a later assignment", attached, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker("/n/a")
			inWorld(t, testSettings, b, func(w *world) {
				w.begin(time.Second, "/n/a")
				b.set(func() { b.latency = time.Second })
				w.SetAssigned(1, false, []string{"/n/later"}, nil)
				w.SetOrders(row.orders)
				if got := !w.Snapshot().Reconciled; got != row.closes {
					t.Errorf("closed %v, want %v, before SetOrders returned", got, row.closes)
				}
				w.SetOrders(attached)
				w.after(time.Minute)
				w.want("2 assigned, 2 served, complete")
			})
		})
	}
}
