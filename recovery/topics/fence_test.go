package topics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/recovery"
)

var detached = recovery.Orders{Epoch: 1, Mode: recovery.Active, Instance: "a"}

func (w *world) fence(bound time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), bound)
	defer cancel()
	return w.Fence(ctx)
}

func TestFenceQuiescesEverythingAndStaysFenced(t *testing.T) {
	all := names("t", 100)
	b := newFakeBroker(all...)
	b.serving["/n/unseen"] = true
	b.latency = 10 * time.Millisecond
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, append(all, "/n/unseen"), nil)
		w.after(time.Second)
		begin := time.Now()
		n, err := w.fence(2 * time.Second)
		if n != 101 || err != nil {
			t.Fatalf("fence: %d, %v; want 101 topics", n, err)
		}
		if took := time.Since(begin); took > 300*time.Millisecond { // 101 × 10 ms ÷ 4
			t.Errorf("took %s with four at a time", took)
		}
		w.Kick()
		w.after(10 * time.Minute) // still attached and active by its orders
		w.wantServed()
		if p := w.Snapshot(); p.Served != 0 || p.Reconciled {
			t.Errorf("progress %+v", p)
		}
		if n, err := w.fence(time.Second); n != 0 || err != nil {
			t.Errorf("fence again: %d, %v; want nothing to do", n, err)
		}
		w.SetOrders(detached)
		w.SetOrders(attached)
		w.after(time.Second)
		if p := w.Snapshot(); p.Served != 101 || !p.Reconciled {
			t.Errorf("attached anew: %+v", p)
		}
	})
}

func TestFenceIsReleasedOnlyByAttachingAnew(t *testing.T) {
	for _, row := range []struct {
		name    string
		orders  []recovery.Orders
		release bool
	}{
		{"the same orders", []recovery.Orders{attached}, false},
		{"another mode", []recovery.Orders{{Epoch: 1, Mode: recovery.Draining, Attached: true, Instance: "a"}, attached}, false},
		{"another broker process", []recovery.Orders{{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "b"}}, false},
		{"detached", []recovery.Orders{detached}, false},
		{"detached, then attached", []recovery.Orders{detached, attached}, true},
		{"another epoch", []recovery.Orders{{Epoch: 2, Mode: recovery.Active, Attached: true, Instance: "a"}}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			inWorld(t, testSettings, newFakeBroker(), func(w *world) {
				w.SetOrders(attached)
				w.SetAssigned(true, []string{"/n/a"}, nil)
				w.after(time.Second)
				if _, err := w.fence(time.Second); err != nil {
					t.Fatal(err)
				}
				for _, o := range row.orders {
					w.SetOrders(o)
				}
				w.after(time.Minute)
				if row.release {
					w.wantServed("/n/a")
				} else {
					w.wantServed()
				}
			})
		})
	}
}

func TestFenceCancelsLoadsBeforeItQuiesces(t *testing.T) {
	b := newFakeBroker("/n/old")
	b.hangs["/n/a"] = true
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/a", "/n/old"}, nil)
		w.after(time.Second)
		begin := time.Now()
		n, err := w.fence(10 * time.Second)
		if n != 1 || err != nil || time.Since(begin) > 100*time.Millisecond {
			t.Errorf("fence: %d, %v after %s; want the one at once", n, err, time.Since(begin))
		}
		w.wantServed()
	})
}

func TestFenceIsNotUndoneByALateLoad(t *testing.T) {
	for _, row := range []struct {
		name  string
		bound time.Duration
		fails bool
	}{
		{"waited for", 20 * time.Second, false},
		{"later than the fence may wait", time.Second, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker("/n/old")
			b.deaf = 10 * time.Second
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(attached)
				w.SetAssigned(true, []string{"/n/a", "/n/old"}, nil)
				w.after(time.Second)
				if _, err := w.fence(row.bound); (err != nil) != row.fails {
					t.Errorf("fence: %v, want an error: %v", err, row.fails)
				}
				if !row.fails {
					w.wantServed() // at the moment it returned
				}
				w.after(20 * time.Second)
				w.wantServed()
				if b.quiesces["/n/a"] == 0 {
					t.Error("the late load was not followed by a quiesce")
				}
			})
		})
	}
}

func TestFenceKeepsToItsTime(t *testing.T) {
	for _, row := range []struct {
		name string
		sick func(b *fakeBroker)
	}{
		{"listing hangs and the broker is slow", func(b *fakeBroker) { b.listHangs = true; b.latency = time.Hour }},
		{"slow", func(b *fakeBroker) { b.latency = time.Minute }},
		{"one refuses", func(b *fakeBroker) { b.quiesceErr["/n/t-00003"] = errRefused }},
	} {
		t.Run(row.name, func(t *testing.T) {
			all := names("t", 10)
			b := newFakeBroker(all...)
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(attached)
				w.SetAssigned(true, all, nil)
				w.after(time.Second)
				b.set(func() { row.sick(b) })
				begin := time.Now()
				n, err := w.fence(3 * time.Second)
				if err == nil || n == 10 || time.Since(begin) > 3*time.Second {
					t.Errorf("fence: %d, %v after %s; want an error within 3 s", n, err, time.Since(begin))
				}
			})
		})
	}
}

func TestFenceWithoutAListingQuiescesWhatWasServedLast(t *testing.T) {
	all := names("t", 10)
	b := newFakeBroker(all...)
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Second)
		b.set(func() { b.listHangs = true })
		n, err := w.fence(4 * time.Second)
		if n != 10 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("fence: %d, %v; want all ten, and that the broker was not listed", n, err)
		}
		w.wantServed()
	})
}

func TestFenceDoesNotProveWhatItCannotName(t *testing.T) {
	b := newFakeBroker("/n/a")
	b.unreadable = []string{`"odd"`}
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/a"}, nil)
		w.after(time.Second)
		n, err := w.fence(4 * time.Second)
		if n != 1 || err == nil || !strings.Contains(err.Error(), `1 more that cannot be read, first "odd"`) {
			t.Errorf("fence: %d, %v; want the one topic, and what is left", n, err)
		}
		w.wantServed()
		if _, err := w.FenceAgain(w.t.Context()); err == nil {
			t.Error("fenced again, and proven")
		}
	})
}

func TestFenceRetriesWhatWasRefusedOnce(t *testing.T) {
	all := names("t", 10)
	b := newFakeBroker(all...)
	b.latency = 100 * time.Millisecond
	b.quiesceErr[all[3]] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Second)
		go func() {
			time.Sleep(350 * time.Millisecond) // into the first pass
			b.set(func() { clear(b.quiesceErr) })
		}()
		if n, err := w.fence(3 * time.Second); n != 10 || err != nil {
			t.Errorf("fence: %d, %v; want all ten", n, err)
		}
	})
}

func TestFenceNeedsNoRunningLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFakeBroker("/n/a")
		r := NewReconciler(testSettings, b, &fakeRecords{}, discard(), nil)
		if n, err := r.Fence(t.Context()); n != 1 || err != nil {
			t.Errorf("fence: %d, %v", n, err)
		}
	})
}

// The fence is begun in the loop and finished in a goroutine that may come late.
func TestAFenceThatIsFinishedAfterTheBrokerWasAttachedAnewDoesNotHoldIt(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, []string{"/n/a"}, nil)
		w.after(time.Second)
		w.SetOrders(detached)
		fence := w.BeginFence()
		w.SetOrders(attached)
		w.after(time.Minute)
		if n, err := fence.Finish(w.t.Context()); n != 0 || !errors.Is(err, ErrReleased) {
			t.Errorf("fence: %d, %v", n, err)
		}
		w.after(time.Second)
		w.wantServed("/n/a")
		if b.quiesces["/n/a"] != 0 {
			t.Error("quiesced after it was attached anew")
		}
	})
}

func TestAFenceIsProvenByAListing(t *testing.T) {
	all := names("t", 3)
	b := newFakeBroker(all...)
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Second)
		b.set(func() { b.latency = 100 * time.Millisecond })
		go func() {
			time.Sleep(150 * time.Millisecond) // after the listing, while the others are quiesced
			b.set(func() { b.serving["/n/new"] = true })
		}()
		if n, err := w.fence(5 * time.Second); n != 4 || err != nil {
			t.Errorf("fence: %d, %v; want the late one too", n, err)
		}
		w.wantServed()
	})
}

func TestABrokerThatUndoesTheFenceIsNotFenced(t *testing.T) {
	b := newFakeBroker("/n/a")
	b.stubborn = true
	inWorld(t, testSettings, b, func(w *world) {
		if _, err := w.fence(5 * time.Second); err == nil {
			t.Error("taken for fenced")
		}
	})
}

func TestOrdersThatAttachDuringAFenceWaitForItsEnd(t *testing.T) {
	all := names("t", 8)
	b := newFakeBroker(all...)
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(true, all, nil)
		w.after(time.Second)
		b.set(func() { b.latency = time.Second })
		w.SetOrders(detached)
		done := make(chan error)
		go func() {
			_, err := w.fence(time.Minute)
			done <- err
		}()
		w.after(1500 * time.Millisecond) // listed, the first four under way
		w.SetOrders(attached)
		if err := <-done; !errors.Is(err, ErrReleased) {
			t.Errorf("fence: %v", err)
		}
		if _, loads, _ := b.totals(); loads != 0 {
			t.Errorf("%d loads during the fence", loads)
		}
		w.after(time.Minute)
		w.wantServed(all...)
	})
}
