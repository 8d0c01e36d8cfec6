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
	b := newFakeBroker(names("t", 20)...)
	b.quiesced["/n/parked"] = true
	inWorld(t, assigning(), b, func(w *world) {
		w.begin(time.Second, "/n/in-etcd")
		w.want("21 assigned, 21 served, complete") // what was withdrawn is taken back
		w.SetAssigned(1, true, nil, nil)
		w.ForgetAssigned()
		b.set(func() { clear(b.serving); b.serving["/n/c"] = true })
		w.Kick()
		w.after(time.Second)
		w.want("1 assigned, 1 served, complete") // and no guard is tripped
		for _, s := range []recovery.Steering{recovery.SteerPending, recovery.SteerFailing, recovery.SteerDone} {
			w.SetOrders(steering(recovery.Orders{Epoch: 1, Mode: recovery.Drained, Attached: true, Instance: "a"}, s))
			w.after(time.Minute)
		}
		w.wantCalls(1, 0) // it is drained by its mode alone
	})
}

func TestWhatAFormerProcessServedIsForgottenAndNothingIsDoneAboutIt(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, "/n/a")
		w.want("1 assigned, 1 served, complete")
		b.set(func() { delete(b.serving, "/n/a") })
		left := attached
		left.Attached = false
		w.SetOrders(left) // first: what is forgotten is listed at once, and loaded while attached
		w.ForgetServed()
		w.after(time.Minute)
		w.want("1 assigned, 1 missing, not listed")
		w.wantCalls(0, 0)
	})
}

func TestAFenceDrainsABrokerThatItsClusterMayGiveTopics(t *testing.T) {
	for _, row := range []struct {
		name    string
		odd     []string // served, and no name here: any client can make that, and its cluster owns it
		serving []string
		drain   func(b *fakeBroker, round int) error
		drains  int
		err     string
	}{
		{"it serves a topic", nil, []string{"/n/a"}, nil, 1, ""},
		{"it serves what cannot be read", []string{`"odd"`}, []string{"/n/a"}, nil, 1, ""},
		{"it serves nothing yet", nil, nil, nil, 1, ""},
		{"it was given another one meanwhile", nil, []string{"/n/a"}, func(b *fakeBroker, round int) error {
			if round == 1 {
				b.serving["/n/b"] = true
			}
			return nil
		}, 2, ""},
		{"it is given others for ever", nil, []string{"/n/a"}, func(b *fakeBroker, _ int) error { b.serving["/n/b"] = true; return nil }, 3,
			"topics are served again after the broker was drained"},
		{"it refuses", nil, []string{"/n/a"}, func(*fakeBroker, int) error { return errors.New("no") }, 1, "drain: no"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker(row.serving...)
			b.unreadable = row.odd
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
				} else if n, err := w.FenceAgain(w.t.Context()); n != 0 || err != nil {
					t.Errorf("again: %d, %v", n, err)
				}
				if got != row.err || drains != row.drains {
					t.Errorf("%d drains, %q; want %d, %q", drains, got, row.drains, row.err)
				}
			})
		})
	}
}
