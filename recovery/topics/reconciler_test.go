package topics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testseed"
	"holdfast/recovery"
)

func TestMissingTopicsAreLoadedWithTheirRecords(t *testing.T) {
	b := newFakeBroker("/n/there")
	inWorld(t, testSettings, b, func(w *world) {
		w.rec.none = "/n/bare"
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a", "/n/bare", "/n/there"}, nil)
		w.after(5 * time.Second)
		w.wantServed("/n/a", "/n/bare", "/n/there")
		if b.records["/n/a"] != "record of /n/a" || b.records["/n/bare"] != "" {
			t.Errorf("records handed over: %q", b.records)
		}
		if b.loads["/n/there"] != 0 {
			t.Error("a topic that was served was loaded again")
		}
		p := w.Snapshot()
		if p.Assigned != 3 || p.Served != 3 || p.Missing != 0 || p.Loading != 0 || p.LastSuccess.IsZero() || p.LastError != "" {
			t.Errorf("progress %+v", p)
		}
		if n, _, _ := b.totals(); n != 2 {
			t.Errorf("listed %d times, want before and after the work", n)
		}
	})
}

func TestStoreErrorIsNotAbsence(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, testSettings, b, func(w *world) {
		w.rec.set(errors.New("etcd has no leader"))
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(20 * time.Second)
		if b.loads["/n/a"] != 0 {
			t.Fatal("loaded without its record although the record could not be read")
		}
		if p := w.Snapshot(); !strings.Contains(p.LastError, "etcd has no leader") || p.Missing != 1 {
			t.Errorf("progress %+v; want the error and one missing topic", p)
		}
		w.rec.set(nil)
		w.after(maxListBackoff)
		w.wantServed("/n/a")
		if b.records["/n/a"] != "record of /n/a" {
			t.Errorf("loaded with record %q", b.records["/n/a"])
		}
	})
}

func TestWhatCannotBeReadIsShownAndLeftAlone(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(time.Second)
		b.set(func() { b.unreadable = []string{`"odd"`} })
		w.Kick()
		w.after(10 * time.Minute)
		p := w.Snapshot()
		if p.Unreadable != 1 || p.Served != 1 || p.Orphan+p.Missing+p.Failed != 0 || !p.Reconciled || p.LastError != "" {
			t.Errorf("progress %+v", p)
		}
		if n := strings.Count(w.log.String(), "cannot be read"); n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		if all := w.Topics(); len(all) != 2 || !slices.ContainsFunc(all, func(s TopicState) bool { return s.Topic == `"odd"` && s.State == TopicUnreadable && s.Error != "" }) {
			t.Errorf("shown as %+v", all)
		}
		b.set(func() { b.unreadable = nil })
		w.Kick()
		w.after(time.Minute)
		if w.Snapshot().Unreadable != 0 || len(w.Topics()) != 1 {
			t.Errorf("still shown: %+v", w.Topics())
		}
	})
}

func TestABrokerThatCannotBeListedKeepsTheLastView(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a", "/n/orphan"}, nil)
		w.after(time.Second)
		b.set(func() { b.listErr = errors.New("admin port closed") })
		w.Kick()
		before, _, _ := b.totals()
		w.after(10 * time.Minute)
		p := w.Snapshot()
		if p.Served != 2 || p.Missing != 0 || !p.Reconciled || !strings.Contains(p.LastError, "admin port closed") {
			t.Errorf("progress %+v; want the last view and the error", p)
		}
		after, _, _ := b.totals()
		if n := after - before; n < 115 || n > 160 {
			t.Errorf("listed %d times in ten minutes; want retries no more than 5 s and jitter apart", n)
		}
		if n := strings.Count(w.log.String(), "cannot be listed"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		w.SetAssigned(1, false, []string{"/n/new"}, nil)
		w.after(time.Second)
		w.wantServed("/n/a", "/n/new", "/n/orphan")
	})
}

func TestLoadInFlightIsDroppedAfterDetach(t *testing.T) {
	b := newFakeBroker()
	b.deaf = 5 * time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, names("t", 10), nil)
		w.after(time.Second)
		if p := w.Snapshot(); p.Loading != 4 {
			t.Fatalf("%d loading, want 4", p.Loading)
		}
		w.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Instance: "a"})
		w.after(time.Minute)
		p := w.Snapshot()
		if p.Served != 0 || p.Reconciled || p.Loading != 0 {
			t.Errorf("progress %+v; want the results dropped", p)
		}
		if _, loads, _ := b.totals(); loads != 4 {
			t.Errorf("%d loads began, want none after the detachment", loads)
		}
		w.wantMetric(`holdfast_topic_loads_total{result="dropped"} 4`)
		// What the dropped loads did is seen by listing, not believed.
		b.set(func() { b.deaf = 0 })
		w.SetOrders(attached)
		w.after(time.Second)
		if p := w.Snapshot(); p.Served != 10 || b.loads["/n/t-00000"] != 1 {
			t.Errorf("after attaching again: %+v, first topic loaded %d times", p, b.loads["/n/t-00000"])
		}
	})
}

func TestLoadsInFlightAreCancelledByNewOrders(t *testing.T) {
	for _, row := range []struct {
		name   string
		orders recovery.Orders
	}{
		{"detached", recovery.Orders{Epoch: 1, Mode: recovery.Active, Instance: "a"}},
		{"another epoch", recovery.Orders{Epoch: 2, Mode: recovery.Active, Attached: true, Instance: "a"}},
		{"draining", recovery.Orders{Epoch: 1, Mode: recovery.Draining, Attached: true, Instance: "a"}},
		{"drained", recovery.Orders{Epoch: 1, Mode: recovery.Drained, Attached: true, Instance: "a"}},
		{"another broker process", recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "b"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker()
			all := names("t", 4)
			for _, name := range all {
				b.hangs[name] = true
			}
			inWorld(t, testSettings, b, func(w *world) {
				w.SetOrders(attached)
				w.SetAssigned(1, true, all, nil)
				w.after(time.Second)
				b.set(func() { clear(b.hangs) })
				w.SetOrders(row.orders)
				w.after(time.Millisecond)
				if b.cancelled != 4 {
					t.Errorf("%d calls cancelled, want 4", b.cancelled)
				}
				w.wantMetric(`holdfast_topic_loads_total{result="dropped"} 4`)
				w.after(time.Second)
				if row.orders.Attached && row.orders.Mode == recovery.Active {
					w.wantServed(all...)
				} else {
					w.wantServed()
				}
			})
		})
	}
}

func TestDrainedBrokerServesNothing(t *testing.T) {
	all := names("t", 100)
	b := newFakeBroker(all...)
	b.serving["/n/orphan"] = true
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, all, nil)
		w.after(recovery.SettleTime + 100*time.Millisecond)
		if !w.Snapshot().Reconciled {
			t.Fatal("not reconciled before the drain")
		}
		b.set(func() { b.serving["/n/orphan"] = true; delete(b.quiesced, "/n/orphan") })
		b.set(func() { b.quiesceErr[all[7]] = errRefused })
		o := attached
		o.Mode = recovery.Drained
		w.SetOrders(o)
		w.after(time.Second)
		w.wantServed(all[7])
		b.set(func() { clear(b.quiesceErr) })
		w.after(time.Minute)
		w.wantServed()
		p := w.Snapshot()
		if p.GuardTripped || p.Reconciled || p.Missing != 100 || p.Quarantined != 1 {
			t.Errorf("progress %+v; want no guard, not reconciled, the orphan quarantined", p)
		}
		// A topic that someone loads by hand is quiesced at the next audit.
		b.set(func() { b.serving[all[0]] = true; delete(b.quiesced, all[0]) })
		w.after(testSettings.AuditInterval + time.Second)
		w.wantServed()
		w.SetOrders(attached)
		w.after(time.Second)
		w.wantServed(all...)
	})
}

func TestDrainingLoadsNothingAndStillQuarantines(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		o := attached
		o.Mode = recovery.Draining
		w.SetOrders(o)
		w.SetAssigned(1, true, []string{"/n/a", "/n/missing"}, nil)
		w.after(time.Minute)
		w.wantServed("/n/a")
		if p := w.Snapshot(); p.Reconciled || p.Quarantined != 1 {
			t.Errorf("progress %+v; want the gate closed and one quarantined", p)
		}
	})
}

func TestAnOrphanIsQuarantinedAfterTheSettleTime(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/b")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a", "/n/b"}, nil)
		w.after(5 * time.Second)
		w.SetAssigned(1, false, nil, []string{"/n/b"})
		w.after(recovery.SettleTime / 2)
		w.SetAssigned(1, false, []string{"/n/b"}, nil) // it comes back in time
		w.after(time.Minute)
		if _, loads, quiesces := b.totals(); loads+quiesces != 0 {
			t.Errorf("%d loads, %d quiesces, want none", loads, quiesces)
		}
		w.SetAssigned(1, false, nil, []string{"/n/b"})
		w.after(recovery.SettleTime - time.Millisecond)
		w.wantServed("/n/a", "/n/b")
		if p := w.Snapshot(); p.Orphan != 1 {
			t.Errorf("orphans %d, want 1", p.Orphan)
		}
		w.after(time.Millisecond)
		w.wantServed("/n/a")
		if p := w.Snapshot(); p.Orphan != 0 || p.Quarantined != 1 {
			t.Errorf("progress %+v; want one quarantined", p)
		}
		if got := w.Topics(); !slices.Equal(got, []TopicState{{Topic: "/n/a", State: TopicServed}, {Topic: "/n/b", State: TopicQuarantined}}) {
			t.Errorf("topics %v", got)
		}
		w.SetAssigned(1, false, []string{"/n/b"}, nil)
		w.after(100 * time.Millisecond)
		w.wantServed("/n/a", "/n/b")
	})
}

func TestWhatAMoveHoldsIsNotCountedAsAStray(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/b")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.SetOrders(attached)
		w.SetHeld([]string{"/n/b"}, nil)
		b.set(func() { delete(b.serving, "/n/b"); b.quiesced["/n/b"] = true }) // it is sealed, or a copy
		w.Kick()
		w.after(time.Minute)
		if p := w.Snapshot(); p.Quarantined != 0 || p.Orphan != 0 {
			t.Errorf("held: progress %+v", p)
		}
		b.set(func() { b.latency = time.Second })
		w.SetHeld(nil, nil) // it is over
		w.after(100 * time.Millisecond)
		if p := w.Snapshot(); p.Quarantined != 0 {
			t.Errorf("held no more, and not listed yet: progress %+v", p)
		}
		w.after(time.Minute)
		if p := w.Snapshot(); p.Quarantined != 1 {
			t.Errorf("it was left all the same: progress %+v", p)
		}
	})
}

func TestALoadThatEndsAfterItsTopicWasUnassignedIsQuarantined(t *testing.T) {
	b := newFakeBroker()
	b.latency = 5 * time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(6 * time.Second)
		w.SetAssigned(1, false, nil, []string{"/n/a"})
		w.after(10 * time.Second)
		w.wantServed()
	})
}

func TestTopicsAreListedEveryAuditIntervalAndOnKick(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(10*testSettings.AuditInterval + time.Second)
		if n, _, _ := b.totals(); n != 11 {
			t.Errorf("listed %d times in ten intervals, want 11", n)
		}
		b.set(func() { delete(b.serving, "/n/a") })
		w.Kick()
		w.after(time.Millisecond)
		w.wantServed("/n/a")
		b.set(func() { delete(b.serving, "/n/a") })
		w.after(testSettings.AuditInterval)
		w.wantServed("/n/a")
	})
}

func TestPutsOneByOneAreCoalesced(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, nil, nil)
		w.after(time.Second)
		all := names("t", 1000)
		for _, name := range all {
			w.SetAssigned(1, false, []string{name}, nil)
			time.Sleep(time.Millisecond)
		}
		w.after(5 * time.Second)
		w.wantServed(all...)
		if n, loads, _ := b.totals(); n > 5 || loads != 1000 {
			t.Errorf("%d listings and %d loads for 1000 puts; want a few, and 1000", n, loads)
		}
		if w.rec.calls > 25 {
			t.Errorf("records read %d times for 1000 puts within a second", w.rec.calls)
		}
	})
}

func TestABrokerRestartIsListedAtOnce(t *testing.T) {
	all := names("t", 20)
	b := newFakeBroker(all...)
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, all, nil)
		w.after(time.Second)
		b.set(func() { clear(b.serving); b.latency = time.Millisecond })
		o := attached
		o.Instance = "b"
		w.SetOrders(o)
		if p := w.Snapshot(); p.Reconciled || p.Served != 0 || p.ServedKnown {
			t.Errorf("right after the restart %+v; want nothing believed", p)
		}
		w.after(100 * time.Millisecond)
		w.wantServed(all...)
		if p := w.Snapshot(); p.GateOpenedBy != GateComplete {
			t.Errorf("gate opened by %q", p.GateOpenedBy)
		}
	})
}

func TestAListingDoesNotUndoWhatWasDoneMeanwhile(t *testing.T) {
	b := newFakeBroker("/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/orphan"}, nil)
		w.after(5 * time.Second)
		b.set(func() { b.latency = 5 * time.Second })
		w.Kick() // the broker answers in 5 s, with what it has now: the orphan alone
		w.after(time.Millisecond)
		b.set(func() { b.latency = 0 })
		w.SetAssigned(1, false, []string{"/n/a"}, []string{"/n/orphan"})
		w.after(time.Minute)
		if b.loads["/n/a"] != 1 || b.quiesces["/n/orphan"] != 1 {
			t.Errorf("%d loads, %d quiesces, want one each", b.loads["/n/a"], b.quiesces["/n/orphan"])
		}
	})
}

func TestAListingOfTheOldBrokerProcessIsDropped(t *testing.T) {
	b := newFakeBroker("/n/a")
	b.listDeaf = 5 * time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(time.Second)
		o := attached
		o.Instance = "b"
		b.set(func() { clear(b.serving); b.listDeaf = 0; b.listErr = errRefused })
		w.SetOrders(o)
		w.after(10 * time.Second) // the old answer has come
		if p := w.Snapshot(); p.Served != 0 || p.ServedKnown || p.Reconciled {
			t.Errorf("progress %+v; want nothing believed of the new process", p)
		}
	})
}

func TestChangesAreSignalledAtMostEvery100Milliseconds(t *testing.T) {
	b := newFakeBroker()
	b.latency = time.Millisecond
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, names("t", 4000), nil) // 1 s of loading
		var last time.Time
		for n := 0; !w.Snapshot().Reconciled; n++ {
			<-w.Changes()
			if gap := time.Since(last); gap < changeSpacing {
				t.Fatalf("two signals %s apart", gap)
			}
			if last = time.Now(); n > 15 {
				t.Fatal("still not reconciled")
			}
		}
		w.after(time.Second)
		if p := w.Snapshot(); p.Served != 4000 {
			t.Errorf("served %d", p.Served)
		}
	})
}

func TestCountsAlwaysEqualWhatAPlanCounts(t *testing.T) {
	rng := testseed.New(t)
	b := newFakeBroker(names("t", 10)...)
	b.latency = 3 * time.Millisecond
	all := names("t", 40)
	inWorld(t, testSettings, b, func(w *world) {
		o := attached
		w.SetAssigned(1, true, all[:20], nil)
		for step := range 2000 {
			topic := all[rng.IntN(len(all))]
			switch rng.IntN(13) {
			case 12:
				w.SetHeld(all[rng.IntN(38):][:rng.IntN(3)], nil)
			case 0:
				o.Mode = []recovery.Mode{recovery.Active, recovery.Active, recovery.Draining, recovery.Drained}[rng.IntN(4)]
			case 1:
				o.Attached = !o.Attached
			case 2:
				o.Epoch++
			case 3:
				o.Instance = fmt.Sprint(rng.IntN(3))
			case 4, 5:
				w.SetAssigned(1, false, []string{topic}, nil)
			case 6:
				w.SetAssigned(1, false, nil, []string{topic})
			case 7:
				w.SetAssigned(1, true, all[rng.IntN(20):][:20], nil)
			case 8:
				b.set(func() { b.loadErr[topic] = errRefused })
			case 9:
				b.set(func() { clear(b.loadErr) })
			case 10:
				w.Confirm()
			case 11:
				w.Kick()
			}
			w.SetOrders(o)
			w.after(time.Duration(rng.IntN(40)) * time.Millisecond)
			facts := map[string]recovery.PlanFacts{}
			w.mu.Lock()
			wanting := 0
			for name, t := range w.table {
				facts[name] = t.PlanFacts
				if t.want != actNone {
					wanting++
				}
			}
			got, gotWanting := w.counts, w.load.wanting
			w.mu.Unlock()
			if want := recovery.Plan(recovery.PlanInput{Topics: maps.All(facts)}).Counts; got != want || gotWanting != wanting {
				t.Fatalf("step %d: counts %+v, wanting %d; want %+v, %d", step, got, gotWanting, want, wanting)
			}
		}
		// Whatever happened: in the end the broker is as etcd asks.
		b.set(func() { clear(b.loadErr) })
		w.SetHeld(nil, nil)
		w.SetAssigned(1, true, all[:25], nil)
		w.SetOrders(recovery.Orders{Epoch: o.Epoch + 1, Mode: recovery.Active, Attached: true, Instance: "end"})
		w.after(3 * time.Minute)
		w.Confirm()
		w.after(3 * time.Minute)
		w.wantServed(all[:25]...)
		if w.load.retrying != 0 || w.load.workers != 0 || len(w.load.flights) != 0 || w.load.loads != 0 || w.load.readyLen != 0 {
			t.Errorf("left over: %d retrying, %d workers, %d flights, %d loads, %d ready",
				w.load.retrying, w.load.workers, len(w.load.flights), w.load.loads, w.load.readyLen)
		}
	})
}
