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
		w.begin(time.Second, append(all, "/n/unseen")...)
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
		w.want("101 assigned, 101 missing")
		if n, err := w.fence(time.Second); n != 0 || err != nil {
			t.Errorf("fence again: %d, %v; want nothing to do", n, err)
		}
		for late := range 2 { // it looks, and fences what it finds
			if late == 1 {
				b.set(func() { b.serving["/n/unseen"] = true })
			}
			before, _, _ := b.totals()
			n, err := w.FenceAgain(w.t.Context())
			if after, _, _ := b.totals(); n != late || err != nil || after-before != 1+2*late {
				t.Errorf("look again with %d served: %d, %v, %d listings", late, n, err, after-before)
			}
		}
		w.SetOrders(detached)
		w.SetOrders(attached)
		w.after(time.Second)
		w.want("101 assigned, 101 served, complete")
	})
}

func TestFenceIsReleasedOnlyByAttachingAnew(t *testing.T) {
	for _, row := range []struct {
		name    string
		orders  []recovery.Orders
		release bool
	}{
		{"the same orders", []recovery.Orders{attached}, false},
		{"another mode", []recovery.Orders{draining, attached}, false},
		{"another broker process", []recovery.Orders{another}, false},
		{"detached", []recovery.Orders{detached}, false},
		{"another epoch, and detached", []recovery.Orders{{Epoch: 2, Mode: recovery.Active, Instance: "a"}}, false},
		{"detached, then attached", []recovery.Orders{detached, attached}, true},
		{"another epoch", []recovery.Orders{renewed}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			inWorld(t, testSettings, newFakeBroker(), func(w *world) {
				w.begin(time.Second, "/n/a")
				if _, err := w.fence(time.Second); err != nil {
					t.Fatal(err)
				}
				for _, o := range row.orders {
					w.SetOrders(o)
				}
				if _, err := w.FenceAgain(w.t.Context()); errors.Is(err, ErrReleased) != row.release {
					t.Error(err)
				}
				w.after(time.Minute)
				w.wantServed(map[bool][]string{true: {"/n/a"}}[row.release]...)
			})
		})
	}
}

func TestFenceIsNotUndoneByALateLoad(t *testing.T) {
	for _, row := range []struct {
		name  string
		bound time.Duration
		fails bool
		sick  func(b *fakeBroker) // nil: the load succeeds, late
		left  []string
		told  int
	}{
		{"waited for", 20 * time.Second, false, nil, nil, 0},
		{"later than the fence may wait", time.Second, true, nil, nil, 0},
		{"the broker keeps it", 20 * time.Second, true, func(b *fakeBroker) { b.quiesceErr["/n/a"] = errRefused }, []string{"/n/a"}, 1},
		{"nothing was loaded, and nothing can be quiesced", 20 * time.Second, false, func(b *fakeBroker) {
			b.quiesceErr["/n/a"], b.deaf, b.hangs["/n/a"] = errRefused, 0, true
		}, nil, 0},
		{"nor is it listed", 20 * time.Second, true, func(b *fakeBroker) {
			b.quiesceErr["/n/a"], b.deaf, b.hangs["/n/a"] = errRefused, 0, true
			time.AfterFunc(time.Second+1, func() { b.set(func() { b.listErr = errRefused }) })
		}, nil, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker("/n/old")
			b.deaf = 10 * time.Second
			inWorld(t, testSettings, b, func(w *world) {
				if row.sick != nil {
					row.sick(b)
				}
				w.begin(time.Second, "/n/a", "/n/old")
				w.after(2)
				if _, err := w.fence(row.bound); (err != nil) != row.fails {
					t.Errorf("fence: %v, want an error: %v", err, row.fails)
				}
				if !row.fails {
					w.wantServed() // at the moment it returned
				}
				w.after(20 * time.Second)
				if b.listErr == nil {
					w.wantServed(row.left...)
				}
				w.wantLog("a topic may be served after the fence", row.told)
				if b.quiesces["/n/a"] == 0 {
					t.Error("the late load was not followed by a quiesce")
				}
			})
		})
	}
}

// Proven is what the broker's own list shows; all else is an error, within the time.
func TestWhatAFenceProves(t *testing.T) {
	all := names("t", 10)
	after := func(b *fakeBroker, d time.Duration, change func()) {
		go func() { time.Sleep(d); b.set(change) }()
	}
	for _, row := range []struct {
		name   string
		before func(b *fakeBroker) // as the topics are loaded
		sick   func(b *fakeBroker) // as the fence begins
		n      int                 // topics withdrawn
		once   bool                // it lists once, and leaves the rest to the next step
		err    string              // empty: proven
		left   []string
	}{
		{"all is well", nil, func(*fakeBroker) {}, 10, false, "", nil},
		{"a load that hangs is ended first", func(b *fakeBroker) { b.hangs["/n/new"] = true }, func(*fakeBroker) {}, 10, false, "", nil},
		{"the list hangs: what was served last is withdrawn", nil, func(b *fakeBroker) { b.listHangs = true }, 10, true, "deadline exceeded", nil},
		{"the list hangs, and every call is slow", nil, func(b *fakeBroker) { b.listHangs, b.latency = true, time.Hour }, 0, true, "deadline exceeded", all},
		{"every call is slow", nil, func(b *fakeBroker) { b.latency = time.Minute }, 0, false, "deadline exceeded", all},
		{"one is refused", nil, func(b *fakeBroker) { b.quiesceErr[all[3]] = errRefused }, 9, false, "refused by the broker", all[3:4]},
		{"all are refused", nil, func(b *fakeBroker) {
			for _, name := range all {
				b.quiesceErr[name] = errRefused
			}
		}, 0, true, "quiesce 10 of 10 topics", all},
		{"one is refused once", nil, func(b *fakeBroker) {
			b.latency, b.quiesceErr[all[3]] = 100*time.Millisecond, errRefused
			after(b, 350*time.Millisecond, func() { clear(b.quiesceErr) }) // into the first pass
		}, 10, false, "", nil},
		{"one is served meanwhile", nil, func(b *fakeBroker) {
			b.latency = 100 * time.Millisecond
			after(b, 150*time.Millisecond, func() { b.serving["/n/late"] = true }) // after the list
		}, 11, false, "", nil},
		{"the broker undoes it", nil, func(b *fakeBroker) { b.stubborn = true }, 0, false, "", all},
		{"it serves what has no name", nil, func(b *fakeBroker) { b.unreadable = []string{`"odd"`} }, 10, false, `1 more that cannot be read, first "odd"`, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker(all...)
			if row.before != nil {
				row.before(b)
			}
			inWorld(t, testSettings, b, func(w *world) {
				w.begin(time.Second, append([]string{"/n/new"}, all...)...)
				b.set(func() { delete(b.serving, "/n/new"); row.sick(b) })
				begin, before := time.Now(), b.listings
				n, err := w.fence(4 * time.Second)
				if took := time.Since(begin); took > 4*time.Second || row.once && b.listings != before+1 {
					t.Errorf("it took %s and %d listings", took, b.listings-before)
				}
				proven := row.err == "" && !b.stubborn
				if (err == nil) != proven || err != nil && !strings.Contains(err.Error(), row.err) || proven && n != row.n {
					t.Errorf("%d, %v; want %d, %q", n, err, row.n, row.err)
				}
				w.wantServed(row.left...)
				if b.unreadable != nil {
					if _, err := w.FenceAgain(w.t.Context()); err == nil {
						t.Error("fenced again, and proven")
					}
				}
			})
		})
	}
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
		w.begin(time.Second, "/n/a")
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

func TestOrdersThatAttachDuringAFenceWaitForItsEnd(t *testing.T) {
	all := names("t", 8)
	b := newFakeBroker(all...)
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, all...)
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
