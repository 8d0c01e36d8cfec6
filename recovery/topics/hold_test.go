package topics

import (
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

func TestATopicThatIsBeingMovedIsNeitherLoadedNorTakenForAStray(t *testing.T) {
	b := newFakeBroker("/n/stray")
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld([]string{"/n/coming", "/n/going"}, nil) // to us, and from us
		w.begin(time.Minute, "/n/going", "/n/a")
		w.want("2 assigned, 1 served, 1 missing, 1 quarantined, 1 elsewhere, complete")
		b.set(func() { b.serving["/n/coming"] = true }) // by the move
		w.Kick()
		w.after(time.Hour)
		w.wantServed("/n/coming", "/n/a")
		if b.loads["/n/going"]+b.quiesces["/n/coming"] > 0 {
			t.Errorf("loads %v, quiesces %v", b.loads, b.quiesces)
		}
	})
}

// What was moved here is served before its assignment may be heard of, by another watch.
func TestATopicThatWasMovedHereIsGivenTimeToBeAssigned(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld([]string{"/n/t"}, nil)
		w.begin(time.Hour)
		b.set(func() { b.serving["/n/t"] = true }) // by the move
		w.SetHeld(nil, nil)
		w.after(recovery.SettleTime / 2)
		w.SetAssigned(1, false, []string{"/n/t"}, nil)
		w.after(time.Minute)
		w.wantServed("/n/t")
		if b.quiesces["/n/t"]+b.loads["/n/t"] > 0 {
			t.Errorf("loads %v, quiesces %v", b.loads, b.quiesces)
		}
	})
}

func (w *world) wantIdle(topic string, idle bool, when string) {
	w.t.Helper()
	if got := len(w.Idle([]string{topic})) > 0; got != idle {
		w.t.Errorf("%s idle: %v", when, got)
	}
}

// Who releases the lock of what a move is about to serve, or may have served just now, would have it served
// without.
func TestWhatIsMovedIsNotIdle(t *testing.T) {
	there := []string{"/n/t"}
	b := newFakeBroker()
	b.latency = time.Millisecond
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld(there, nil)
		w.begin(time.Minute)
		w.wantIdle("/n/t", false, "while it is held")
		w.SetHeld(there, there)
		w.after(time.Second)
		w.wantIdle("/n/t", true, "after it was handed over")
		w.SetHeld(nil, nil)
		w.wantIdle("/n/t", false, "before the broker was listed")
		w.after(time.Second)
		w.wantIdle("/n/t", true, "at the end")
	})
}

func TestALoadOfBeforeAMoveIsLookedFor(t *testing.T) {
	there := []string{"/n/t"}
	b := newFakeBroker()
	b.loadErr["/n/t"] = errRefused
	inWorld(t, movingSettings(), b, func(w *world) {
		w.SetHeld(nil, nil)
		w.begin(time.Second, there...)
		w.SetHeld(there, nil)
		w.SetHeld(there, there)
		w.wantIdle("/n/t", false, "before it is known what became of the load")
	})
}

// Whose it is by the journal of a move counts more than an assignment that was heard of before, or is
// heard of late; what came later counts more than the journal.
func TestATopicThatWasMovedAwayIsNotLoadedOnAnOlderAssignment(t *testing.T) {
	there := []string{"/n/t"}
	for name, row := range map[string]struct {
		hear   func(w *world)
		loaded bool
	}{
		"nothing more is heard":            {func(*world) {}, false},
		"it goes":                          {func(w *world) { w.SetAssigned(8, false, nil, there) }, false},
		"an older change comes late":       {func(w *world) { w.SetAssigned(8, false, there, nil) }, false},
		"an older list comes late":         {func(w *world) { w.SetAssigned(9, true, there, nil) }, false},
		"an older list comes an hour late": {func(w *world) { w.after(time.Hour); w.SetAssigned(9, true, there, nil) }, false},
		"a younger list has it":            {func(w *world) { w.SetAssigned(10, true, there, nil) }, true},
		"it comes back":                    {func(w *world) { w.SetAssigned(11, false, there, nil) }, true},
		"a backup was restored":            {func(w *world) { w.SetAssigned(3, true, there, nil) }, false},
		"and is listed again":              {func(w *world) { w.SetAssigned(3, true, there, nil); w.SetAssigned(3, true, there, nil) }, true},
		"restored, and assigned again later": {func(w *world) {
			w.SetAssigned(3, true, nil, nil)
			w.SetAssigned(3, true, nil, nil)
			w.SetAssigned(4, false, there, nil)
		}, true},
		"it was heard of later than the moves":         {func(w *world) { w.SetAssigned(12, true, there, nil); w.SetElsewhere("/n/t", 11) }, true},
		"it was heard of with the moves":               {func(w *world) { w.SetAssigned(12, true, there, nil); w.SetElsewhere("/n/t", 12) }, true},
		"a change of before the first list comes late": {func(w *world) { w.SetAssigned(6, false, there, nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker()
			inWorld(t, movingSettings(), b, func(w *world) {
				w.SetHeld(there, nil)
				w.SetOrders(attached)
				w.SetAssigned(7, true, there, nil)
				w.after(time.Minute)
				w.SetElsewhere("/n/t", 10)
				w.SetHeld(nil, nil)
				w.after(time.Minute)
				if b.loads["/n/t"] > 0 {
					t.Fatal("loaded at the end of the hold")
				}
				row.hear(w)
				w.after(time.Minute)
				if loaded := b.loads["/n/t"] > 0; loaded != row.loaded {
					t.Errorf("loaded: %t, want %t", loaded, row.loaded)
				}
			})
		})
	}
}

func TestATopicThatIsBeingMovedIsWithdrawnByADrainAndByAFence(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"drained": func(w *world) {
			w.SetOrders(drained)
		},
		"fenced": func(w *world) {
			if n, err := w.Fence(w.t.Context()); err != nil || n != 1 {
				w.t.Errorf("%d withdrawn, error %v", n, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, movingSettings(), newFakeBroker("/n/t"), func(w *world) {
				w.SetHeld([]string{"/n/t"}, nil)
				w.begin(time.Second, "/n/t")
				w.wantServed("/n/t")
				end(w)
				w.after(time.Second)
				w.wantServed()
			})
		})
	}
}

// Calm: no call about the topic is under way. Ours: by its lock, where there are any.
func TestWhatAMoveAsksOfATopic(t *testing.T) {
	s := movingSettings()
	s.OwnershipLocks = true
	for _, row := range []struct {
		name     string
		settings ReconcilerSettings
		topic    string
		claims   []TopicClaim
		ours     bool
	}{
		{"without locks", movingSettings(), "/n/t", nil, true},
		{"without locks, of which nothing is known", movingSettings(), "/n/never-heard-of", nil, true},
		{"without its lock", s, "/n/t", nil, false},
		{"without the lock of what nothing is known of", s, "/n/never-heard-of", nil, false},
		{"with its lock", s, "/n/t", []TopicClaim{{Topic: "/n/t", Claim: recovery.ClaimOurs}}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker()
			inWorld(t, row.settings, b, func(w *world) {
				w.SetHeld(nil, nil)
				w.SetOrders(attached)
				w.after(time.Second)
				b.set(func() { b.latency = 10 * time.Second })
				w.SetAssigned(1, true, []string{"/n/t"}, nil)
				w.SetClaims(row.claims)
				w.after(5 * time.Second)
				loading := b.loads["/n/t"] > 0
				if calm, ours := w.Calm(row.topic); calm == (loading && row.topic == "/n/t") || ours != row.ours {
					t.Errorf("calm %v, ours %v while it is loaded: %v", calm, ours, loading)
				}
				w.SetHeld([]string{"/n/t"}, nil)
				w.after(time.Minute) // the load ran out
				if calm, _ := w.Calm(row.topic); !calm || b.loads["/n/t"] > 1 || loading != row.ours && row.topic == "/n/t" {
					t.Errorf("calm %v after %d loads", calm, b.loads["/n/t"])
				}
			})
		})
	}
}
