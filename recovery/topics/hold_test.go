package topics

import (
	"slices"
	"testing"
	"time"

	"holdfast/recovery"
)

// movingSettings are those of a broker whose topics can be moved.
func movingSettings() ReconcilerSettings {
	s := testSettings
	s.Moves = true
	return s
}

func TestNothingIsLoadedBeforeItIsKnownWhatIsBeingMoved(t *testing.T) {
	b := newFakeBroker("/n/stray")
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/a", "/n/moving"}, nil)
		w.after(time.Minute)
		w.wantServed("/n/stray")
		if p := w.Snapshot(); p.Reconciled || !p.LastSuccess.IsZero() {
			t.Errorf("progress %+v, want the gate closed", p)
		}
		w.SetHeld([]string{"/n/moving"})
		w.after(time.Second)
		w.wantServed("/n/a")
		w.SetHeld(nil)
		w.after(time.Second)
		w.wantServed("/n/a", "/n/moving")
	})
}

func TestATopicThatIsBeingMovedIsNeitherLoadedNorTakenForAStray(t *testing.T) {
	b := newFakeBroker("/n/stray")
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld([]string{"/n/coming", "/n/going"}) // to us, and from us
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/going", "/n/a"}, nil)
		w.after(time.Minute)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete || p.Elsewhere != 1 {
			t.Errorf("gate opened by %q, %d elsewhere; want what is held not to be waited for", p.GateOpenedBy, p.Elsewhere)
		}
		b.set(func() { b.serving["/n/coming"] = true }) // by the move
		w.Kick()
		w.after(time.Hour)
		w.wantServed("/n/coming", "/n/a")
		if b.loads["/n/going"]+b.quiesces["/n/coming"] > 0 {
			t.Errorf("loads %v, quiesces %v", b.loads, b.quiesces)
		}
		if states := w.Topics(); !slices.ContainsFunc(states, func(s TopicState) bool {
			return s.Topic == "/n/going" && s.Error == "it is being moved: 'holdfast moves' says how far"
		}) {
			t.Errorf("states %+v", states)
		}
	})
}

// What was moved here is served before its assignment may be heard of, by another watch.
func TestATopicThatWasMovedHereIsGivenTimeToBeAssigned(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld([]string{"/n/t"})
		w.SetOrders(attached)
		w.SetAssigned(true, nil, nil)
		w.after(time.Hour)
		b.set(func() { b.serving["/n/t"] = true }) // by the move
		w.SetHeld(nil)
		w.after(recovery.SettleTime / 2)
		w.SetAssigned(false, []string{"/n/t"}, nil)
		w.after(time.Minute)
		w.wantServed("/n/t")
		if b.quiesces["/n/t"]+b.loads["/n/t"] > 0 {
			t.Errorf("loads %v, quiesces %v", b.loads, b.quiesces)
		}
	})
}

func TestATopicThatIsBeingMovedIsWithdrawnByADrainAndByAFence(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"drained": func(w *world) {
			o := attached
			o.Mode = recovery.Drained
			w.SetOrders(o)
		},
		"fenced": func(w *world) {
			if n, err := w.Fence(w.t.Context()); err != nil || n != 1 {
				w.t.Errorf("%d withdrawn, error %v", n, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker("/n/t")
			inWorld(t, movingSettings(), b, func(w *world) {
				w.SetHeld([]string{"/n/t"})
				w.SetOrders(attached)
				w.SetAssigned(true, []string{"/n/t"}, nil)
				w.after(time.Second)
				w.wantServed("/n/t")
				end(w)
				w.after(time.Second)
				w.wantServed()
			})
		})
	}
}

func TestTopicsThatWereMovedAwayAreNoMassChange(t *testing.T) {
	for _, row := range []struct {
		name    string
		held    bool
		tripped bool
	}{{"moved", true, false}, {"deleted by others", false, true}} {
		t.Run(row.name, func(t *testing.T) {
			all := names("t", 100)
			b := newFakeBroker(all...)
			inWorld(t, movingSettings(), b, func(w *world) {
				w.SetHeld(nil)
				w.SetOrders(attached)
				w.SetAssigned(true, all, nil)
				w.after(10 * time.Minute)
				gone := all[:80]
				if row.held {
					w.SetHeld(gone)
				}
				w.SetAssigned(false, nil, gone)
				if row.held {
					b.set(func() {
						for _, name := range gone {
							delete(b.serving, name)
						}
					})
					w.SetHeld(nil)
				}
				w.after(time.Minute)
				if p := w.Snapshot(); p.GuardTripped != row.tripped {
					t.Errorf("guard tripped: %v %s; want %v", p.GuardTripped, p.GuardDetail, row.tripped)
				}
			})
		})
	}
}

func TestATopicIsCalmWhenNoCallAboutItIsUnderWay(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld(nil)
		w.SetOrders(attached)
		w.after(time.Second)
		b.set(func() { b.latency = 10 * time.Second })
		w.SetAssigned(true, []string{"/n/t"}, nil)
		w.after(5 * time.Second)
		if b.loads["/n/t"] == 0 {
			t.Fatal("no load has begun")
		}
		if calm, ours := w.Calm("/n/t"); calm || !ours {
			t.Errorf("calm %v, ours %v while it is loaded", calm, ours)
		}
		w.SetHeld([]string{"/n/t"})
		w.after(time.Minute) // it ran out
		if calm, _ := w.Calm("/n/t"); !calm || b.loads["/n/t"] != 1 {
			t.Errorf("calm %v after %d loads", calm, b.loads["/n/t"])
		}
		if calm, ours := w.Calm("/n/never-heard-of"); !calm || !ours {
			t.Errorf("calm %v, ours %v of a topic that nothing is known of", calm, ours)
		}
	})
}

func TestATopicIsOursByItsLock(t *testing.T) {
	s := movingSettings()
	s.OwnershipLocks = true
	inWorld(t, s, newFakeBroker(), func(w *world) {
		w.SetHeld([]string{"/n/t"})
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/t"}, nil)
		w.after(time.Second)
		if _, ours := w.Calm("/n/t"); ours {
			t.Error("ours without the lock")
		}
		if _, ours := w.Calm("/n/never-heard-of"); ours {
			t.Error("a topic that nothing is known of is ours without its lock")
		}
		w.SetClaims([]TopicClaim{{Topic: "/n/t", Claim: recovery.ClaimOurs}})
		w.after(time.Second)
		if _, ours := w.Calm("/n/t"); !ours {
			t.Error("not ours with the lock")
		}
		w.wantServed()
	})
}
