package topics

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/recovery"
)

// The broker's own cluster assigns the topics.
func assigning() ReconcilerSettings {
	s := testSettings
	s.Assigns = true
	return s
}

func TestWhatAClusterAssignsItselfIsWanted(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/b")
	inWorld(t, assigning(), b, func(w *world) {
		w.SetAssigned(1, true, []string{"/n/in-etcd"}, nil)
		w.SetOrders(attached)
		w.after(time.Second)
		p := w.Snapshot()
		if !p.Reconciled || p.Served != 2 || p.Assigned != 2 || p.Missing+p.Orphan+p.Quarantined != 0 {
			t.Errorf("%+v", p)
		}
		w.ForgetAssigned()
		b.set(func() { delete(b.serving, "/n/a"); b.serving["/n/c"] = true; b.serving["/n/d"] = true })
		w.after(time.Minute)
		if p := w.Snapshot(); p.Served != 3 || p.Assigned != 3 || p.Missing+p.Orphan+p.Quarantined != 0 || p.GuardTripped {
			t.Errorf("a minute later: %+v", p)
		}
		if _, loads, quiesces := b.totals(); loads+quiesces != 0 {
			t.Errorf("%d loads, %d quiesces", loads, quiesces)
		}
	})
}

func TestWhatAFormerProcessServedIsForgottenAndNothingIsDoneAboutIt(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.SetOrders(attached)
		w.after(time.Second)
		if p := w.Snapshot(); p.Served != 1 || !p.ServedKnown {
			t.Fatalf("%+v", p)
		}
		b.set(func() { delete(b.serving, "/n/a") })
		left := attached
		left.Attached = false
		w.SetOrders(left) // first: what is forgotten is listed at once, and loaded while attached
		w.ForgetServed()
		w.after(time.Minute)
		if p := w.Snapshot(); p.Served != 0 || p.ServedKnown {
			t.Errorf("%+v", p)
		}
		if _, loads, quiesces := b.totals(); loads+quiesces != 0 {
			t.Errorf("%d loads, %d quiesces", loads, quiesces)
		}
	})
}

func TestABrokerWhoseClusterAssignsIsDrainedOnlyBySteering(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, assigning(), b, func(w *world) {
		for _, s := range []recovery.Steering{recovery.SteerPending, recovery.SteerFailing, recovery.SteerDone} {
			w.SetOrders(steering(recovery.Orders{Epoch: 1, Mode: recovery.Drained, Attached: true, Instance: "a"}, s))
			w.after(time.Minute)
		}
		if _, loads, quiesces := b.totals(); loads+quiesces != 0 {
			t.Errorf("%d loads, %d quiesces", loads, quiesces)
		}
	})
}

func TestAFenceDrainsABrokerThatItsClusterMayGiveTopics(t *testing.T) {
	for _, row := range []struct {
		name    string
		serving []string
		drain   func(b *fakeBroker, round int) error
		drains  int
		err     string
	}{
		{"it serves a topic", []string{"/n/a"}, nil, 1, ""},
		{"it serves nothing yet", nil, nil, 1, ""},
		{"it was given another one meanwhile", []string{"/n/a"}, func(b *fakeBroker, round int) error {
			if round == 1 {
				b.serving["/n/b"] = true
			}
			return nil
		}, 2, ""},
		{"it is given others for ever", []string{"/n/a"}, func(b *fakeBroker, _ int) error { b.serving["/n/b"] = true; return nil }, 3,
			"topics are served again after the broker was drained"},
		{"it refuses", []string{"/n/a"}, func(*fakeBroker, int) error { return errors.New("no") }, 1, "drain: no"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker(row.serving...)
			drains := 0
			s := assigning()
			s.Drain = func(context.Context) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				drains++
				clear(b.serving)
				if row.drain != nil {
					return row.drain(b, drains)
				}
				return nil
			}
			inWorld(t, s, b, func(w *world) {
				w.SetOrders(attached)
				w.after(time.Second)
				_, err := w.Fence(w.t.Context())
				got := ""
				if err != nil {
					got = err.Error()
				}
				if got != row.err || drains != row.drains {
					t.Errorf("%d drains, %q; want %d, %q", drains, got, row.drains, row.err)
				}
			})
		})
	}
}

// Any client can make such a broker serve what has no name here, and its cluster owns that.
func TestWhatCannotBeReadKeepsNoFenceFromBeingProven(t *testing.T) {
	b := newFakeBroker("/n/a")
	b.unreadable = []string{`"odd"`}
	s := assigning()
	s.Drain = func(context.Context) error { b.set(func() { clear(b.serving) }); return nil }
	inWorld(t, s, b, func(w *world) {
		w.SetOrders(attached)
		w.after(time.Second)
		if _, err := w.Fence(w.t.Context()); err != nil {
			t.Error(err)
		}
		if n, err := w.FenceAgain(w.t.Context()); n != 0 || err != nil {
			t.Errorf("again: %d, %v", n, err)
		}
	})
}
