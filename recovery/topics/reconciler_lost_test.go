package topics

import (
	"slices"
	"testing"
	"time"
)

// What is missing was never here, or was lost, and only the second is news.
func TestATopicThatWasServedHereBeforeAndIsMadeAnewIsTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		whole int64
		lose  func(b *fakeBroker, w *world)
		want  []string
	}{
		{"new topics on a new broker", 0, func(*fakeBroker, *world) {}, nil},
		{"deleted by hand", 0, func(b *fakeBroker, w *world) { b.set(func() { delete(b.serving, "/n/a") }) }, []string{"/n/a"}},
		{"all of them", 0, func(b *fakeBroker, w *world) { b.set(func() { clear(b.serving) }) }, []string{"/n/a", "/n/b"}},
		{"lost before this sidecar began", 6, func(*fakeBroker, *world) {}, []string{"/n/a"}},
		{"back before it was loaded", 0, func(b *fakeBroker, w *world) {
			b.set(func() { delete(b.serving, "/n/a"); b.deaf = 5 * time.Second })
			w.Kick()
			w.after(time.Second)
			b.set(func() { b.serving["/n/a"] = true })
			w.Kick()
		}, nil},
		{"parked", 0, func(b *fakeBroker, w *world) { b.set(func() { delete(b.serving, "/n/a"); b.quiesced["/n/a"] = true }) }, nil},
		{"assigned since", 0, func(b *fakeBroker, w *world) {
			w.SetAssigned(1, false, []string{"/n/c"}, nil)
			w.SetSince([]string{"/n/c"}, []int64{9})
		}, nil},
		{"assigned since, and not told when", 0, func(b *fakeBroker, w *world) { w.SetAssigned(1, false, []string{"/n/c"}, nil) }, nil},
		{"taken away, deleted, and assigned anew", 0, func(b *fakeBroker, w *world) {
			w.SetAssigned(1, false, nil, []string{"/n/a"})
			w.after(time.Minute)
			b.set(func() { delete(b.serving, "/n/a"); delete(b.quiesced, "/n/a") })
			w.after(time.Minute)
			w.SetAssigned(1, false, []string{"/n/a"}, nil)
			w.SetSince([]string{"/n/a"}, []int64{12})
		}, nil},
		{"assigned since, and being moved", 0, func(b *fakeBroker, w *world) {
			w.SetHeld([]string{"/n/c"}, nil)
			w.SetAssigned(1, false, []string{"/n/c"}, nil)
			w.SetSince([]string{"/n/c"}, []int64{12})
			w.after(time.Minute)
			w.wantWhole(8)
			w.SetHeld(nil, nil)
		}, nil},
		{"in another store", 0, func(b *fakeBroker, w *world) {
			w.SetWhole(0)
			w.SetSince([]string{"/n/a", "/n/b"}, []int64{1, 2})
			w.after(time.Minute)
			w.wantWhole(2)
		}, nil},
		{"on other data", 0, func(b *fakeBroker, w *world) { b.set(func() { clear(b.serving) }); w.SetWhole(0) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newFakeBroker()
			inWorld(t, testSettings, b, func(w *world) {
				w.SetWhole(c.whole)
				w.SetOrders(attached)
				w.SetAssigned(1, true, []string{"/n/a", "/n/b"}, nil)
				w.SetSince([]string{"/n/a", "/n/b"}, []int64{5, 8})
				w.after(2 * time.Minute)
				w.wantWhole(8)
				c.lose(b, w)
				w.after(2 * time.Minute)
				got := w.Anew()
				slices.Sort(got)
				if !slices.Equal(got, c.want) || len(w.Anew()) > 0 {
					t.Errorf("told %v, want %v, once", got, c.want)
				}
			})
		})
	}
}

func (w *world) wantWhole(revision int64) {
	w.t.Helper()
	if p := w.Snapshot(); p.Whole != revision {
		w.t.Errorf("whole at %d, want %d", p.Whole, revision)
	}
}
