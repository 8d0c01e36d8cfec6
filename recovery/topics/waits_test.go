package topics

import (
	"strings"
	"testing"
	"time"

	"holdfast/recovery"
)

// What is not known yet, or not allowed, is waited for however long; then all goes its way.
func TestNothingIsTouchedUntilEverythingIsKnownAndAllowed(t *testing.T) {
	read := func(w *world) { w.SetAssigned(1, true, []string{"/n/a"}, nil) }
	changes := func(w *world) { w.SetAssigned(1, false, []string{"/n/put"}, []string{"/n/stray"}) }
	for _, row := range []struct {
		name   string
		orders recovery.Orders
		begins func(w *world)
		moves  bool
		listed bool // the broker may be
		known  bool // the assignments are
		strays int  // that are withdrawn: it is known whose they are
	}{
		{"the assignments are not read, active", attached, changes, false, true, false, 0},
		{"the assignments are not read, draining", draining, changes, false, true, false, 0},
		{"the assignments are not read, drained", drained, changes, false, true, false, 0},
		{"the assignments were forgotten, and a change says nothing of the rest", attached, func(w *world) { read(w); w.ForgetAssigned(); changes(w) }, false, true, false, 0},
		{"detached", detached, func(w *world) { read(w); w.Kick() }, false, false, true, 0},
		{"paused", paused, read, false, true, true, 0},
		{"the broker was not told its mode", steering(attached, recovery.SteerPending), read, false, true, true, 1},
		{"what is being moved is not read", attached, read, true, true, true, 0},
		{"the broker was never listed", attached, read, false, true, true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := testSettings
			s.Moves = row.moves
			b := newFakeBroker("/n/stray")
			if row.name == "the broker was never listed" {
				b.listErr = errRefused
			}
			inWorld(t, s, b, func(w *world) {
				w.SetOrders(row.orders)
				row.begins(w)
				w.after(time.Hour)
				listings, loads, quiesces := b.totals()
				if loads != 0 || quiesces != row.strays || listings != 0 && !row.listed {
					t.Errorf("%d listings, %d loads, %d quiesces", listings, loads, quiesces)
				}
				if n := len(w.Strays()); !row.known && n != 0 {
					t.Errorf("%d strays, of which nothing is known", n)
				}
				if p := w.Snapshot(); p.Reconciled || row.strays == 0 && !p.LastSuccess.IsZero() || p.AssignedKnown != row.known || !row.known && p.Orphan != 0 {
					t.Errorf("progress %+v; want the gate closed", p)
				}
				b.set(func() { b.listErr = nil })
				w.SetHeld(nil, nil)
				w.SetOrders(attached)
				read(w)
				w.after(time.Minute)
				w.wantServed("/n/a")
				w.want("1 assigned, 1 served, 1 quarantined, complete")
			})
		})
	}
}

// Most of what is served is no more to be served: nobody but an operator says that this is meant.
func TestAMassChangeWaitsForAWord(t *testing.T) {
	all := names("t", 100)
	for _, row := range []struct {
		name    string
		stray   bool // they were never assigned
		happens func(w *world)
		detail  string // empty: it is done without a word
		atOnce  int    // topics that may go before
		left    []string
	}{
		{"all at once", false, func(w *world) { w.SetAssigned(1, true, nil, nil) }, "100 of 100 topics lost their assignment", 0, nil},
		{"one by one", false, func(w *world) {
			for _, name := range all { // the window holds them all
				w.SetAssigned(1, false, nil, []string{name})
				time.Sleep(20 * time.Millisecond)
			}
		}, "topics lost their assignment", 51, nil},
		{"a word that came before it", false, func(w *world) { w.Confirm(); w.SetAssigned(1, true, nil, nil) }, "100 of 100", 0, nil},
		{"what it serves at first is not assigned", true, func(w *world) { w.SetAssigned(1, true, nil, nil) }, "100 of 100 served topics are not assigned here", 0, nil},
		{"deleted by others", false, func(w *world) { w.SetAssigned(1, false, nil, all[:80]) }, "80 of 100", 0, all[80:]},
		{"moved away", false, func(w *world) {
			w.SetHeld(all[:80], nil)
			w.b.set(func() {
				for _, name := range all[:80] {
					delete(w.b.serving, name)
				}
			})
			w.Kick()
			w.after(time.Second)
			w.SetAssigned(1, false, nil, all[:80])
			w.SetHeld(nil, nil)
		}, "", 0, all[80:]},
		{"half of them", false, func(w *world) { w.SetAssigned(1, false, nil, all[:50]) }, "", 50, all[50:]},
		{"others take their place", false, func(w *world) { w.SetAssigned(1, true, names("u", 150), nil) }, "100 of 100 topics lost", 0, names("u", 150)},
		{"those that went long ago take their place", false, func(w *world) {
			w.SetAssigned(1, false, nil, all[:50])
			w.after(time.Hour)
			w.SetAssigned(1, true, all[:50], nil)
		}, "50 of 50 topics lost", 50, all[:50]},
		{"three quarters, where nine tenths may go", false, func(w *world) {
			s := movingSettings()
			s.MassChangeShare = 0.9
			w.Tune(s)
			w.SetAssigned(1, false, nil, all[:75])
		}, "", 75, all[75:]},
	} {
		t.Run(row.name, func(t *testing.T) {
			inWorld(t, movingSettings(), newFakeBroker(all...), func(w *world) {
				w.SetHeld(nil, nil)
				w.SetOrders(attached)
				if !row.stray {
					w.SetAssigned(1, true, all, nil)
				}
				w.after(time.Minute)
				row.happens(w)
				w.after(time.Hour)
				trips := min(len(row.detail), 1)
				w.wantLog("mass-change guard tripped", trips)
				if p := w.Snapshot(); !p.Reconciled || p.GuardTripped != (row.detail != "") || !strings.Contains(p.GuardDetail, row.detail) {
					t.Errorf("tripped %v, %q; want %q", p.GuardTripped, p.GuardDetail, row.detail)
				}
				if _, _, n := w.b.totals(); n > row.atOnce {
					t.Errorf("%d topics quiesced, want at most %d", n, row.atOnce)
				}
				w.Confirm()
				w.after(time.Minute)
				w.wantServed(row.left...)
				w.wantLog("mass change confirmed", trips)
			})
		})
	}
}

func TestAssignmentsThatComeBackEndTheWait(t *testing.T) {
	all := names("t", 100)
	inWorld(t, testSettings, newFakeBroker(all...), func(w *world) {
		w.begin(time.Minute, all...)
		w.SetAssigned(1, true, nil, nil)
		w.after(time.Hour)
		w.SetAssigned(1, true, all, nil)
		w.after(time.Minute)
		w.want("100 assigned, 100 served, complete")
		w.wantLog("mass-change guard released", 1)
	})
}
