package topics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"holdfast/internal/testseed"
	"holdfast/recovery"
)

func TestMissingTopicsAreLoadedWithTheirRecords(t *testing.T) {
	b := newFakeBroker("/n/there")
	inWorld(t, testSettings, b, func(w *world) {
		w.rec.none = "/n/bare"
		w.begin(5*time.Second, "/n/a", "/n/bare", "/n/there")
		w.wantServed("/n/a", "/n/bare", "/n/there")
		if b.records["/n/a"] != "record of /n/a" || b.records["/n/bare"] != "" {
			t.Errorf("records handed over: %q", b.records)
		}
		if b.loads["/n/there"] != 0 {
			t.Error("a topic that was served was loaded again")
		}
		w.want("3 assigned, 3 served, complete")
		w.wantMetric(`holdfast_topic_listings_total{result="ok"} 2`) // before and after the work
		w.wantLog("can be read again", 0)
	})
}

func TestATopicIsShownAs(t *testing.T) {
	type facts = recovery.PlanFacts
	for _, row := range []struct {
		topic
		unread         bool // the assignments
		state, message string
	}{
		{topic{PlanFacts: facts{Assigned: true, Serving: true}}, false, TopicServed, ""},
		{topic{PlanFacts: facts{Assigned: true}, err: "refused"}, false, TopicMissing, "refused"},
		{topic{PlanFacts: facts{Assigned: true}, phase: phaseReady, want: actLoad}, false, TopicMissing, ""},
		{topic{PlanFacts: facts{Assigned: true}, phase: phaseFlying, want: actQuiesce}, false, TopicMissing, ""},
		{topic{PlanFacts: facts{Assigned: true}, phase: phaseFlying, want: actLoad}, false, TopicLoading, ""},
		{topic{PlanFacts: facts{Assigned: true, Held: true}}, false, TopicMissing, "it is being moved: 'holdfast moves' says how far"},
		{topic{PlanFacts: facts{Assigned: true, Held: true}, err: "refused"}, false, TopicMissing, "refused"},
		{topic{PlanFacts: facts{Assigned: true, Claim: recovery.ClaimElsewhere}, owner: "b"}, false, TopicElsewhere, "the ownership lock is held by b"},
		{topic{PlanFacts: facts{Assigned: true, Claim: recovery.ClaimElsewhere}, owner: "b", err: "refused"}, false, TopicElsewhere, "refused"},
		{topic{PlanFacts: facts{Serving: true, Claim: recovery.ClaimContested}, owner: "b"}, false, TopicForeign, "the ownership lock is held by b"},
		{topic{PlanFacts: facts{Claim: recovery.ClaimElsewhere}, owner: "b"}, false, "", "the ownership lock is held by b"},
		{topic{PlanFacts: facts{Serving: true}}, false, TopicOrphan, ""},
		{topic{PlanFacts: facts{Serving: true}}, true, TopicServed, ""},
		{topic{PlanFacts: facts{Quiesced: true}}, false, TopicQuarantined, ""},
		{topic{PlanFacts: facts{Quiesced: true}}, true, "", ""},
		{topic{phase: phaseFlying, want: actLoad}, false, "", ""},
	} {
		if state, message := row.topic.state(!row.unread), row.topic.message(); state != row.state || message != row.message {
			t.Errorf("%+v: %q, %q; want %q, %q", row.topic, state, message, row.state, row.message)
		}
	}
}

func TestStoreErrorIsNotAbsence(t *testing.T) {
	b := newFakeBroker()
	inWorld(t, testSettings, b, func(w *world) {
		w.rec.set(errors.New("etcd has no leader"))
		w.begin(20*time.Second, "/n/a")
		if b.loads["/n/a"] != 0 {
			t.Fatal("loaded without its record although the record could not be read")
		}
		w.want("1 assigned, 1 missing, error")
		w.wantLog("cannot be read; loading waits", 1)
		w.rec.set(nil)
		w.after(maxListBackoff)
		w.wantLog("can be read again", 1)
		w.wantServed("/n/a")
		if b.records["/n/a"] != "record of /n/a" {
			t.Errorf("loaded with record %q", b.records["/n/a"])
		}
	})
}

func TestWhatCannotBeReadIsShownAndLeftAlone(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, "/n/a")
		b.set(func() { b.unreadable = []string{`"odd"`} })
		w.Kick()
		w.after(10 * time.Minute)
		w.want("1 assigned, 1 served, 1 unreadable, complete")
		w.wantLog("cannot be read", 1)
		if all := w.Topics(); len(all) != 2 || !slices.ContainsFunc(all, func(s TopicState) bool { return s.Topic == `"odd"` && s.State == TopicUnreadable && s.Error != "" }) {
			t.Errorf("shown as %+v", all)
		}
		b.set(func() { b.unreadable = nil })
		w.Kick()
		w.after(time.Minute)
		w.wantLog("can be read again", 1)
		if w.Snapshot().Unreadable != 0 || len(w.Topics()) != 1 {
			t.Errorf("still shown: %+v", w.Topics())
		}
	})
}

func TestABrokerThatCannotBeListedKeepsTheLastView(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, "/n/a", "/n/orphan")
		b.set(func() { b.listErr = errors.New("admin port closed") })
		w.Kick()
		before, _, _ := b.totals()
		w.after(10 * time.Minute)
		w.want("2 assigned, 2 served, error, complete") // the last view
		w.wantLog("admin port closed", 1)
		after, _, _ := b.totals()
		if n := after - before; n < 115 || n > 160 {
			t.Errorf("listed %d times in ten minutes; want retries no more than 5 s and jitter apart", n)
		}
		w.wantLog("cannot be listed", 1)
		w.wantLog("can be listed again", 0)
		w.SetAssigned(1, false, []string{"/n/new"}, nil)
		w.after(time.Second)
		w.wantServed("/n/a", "/n/new", "/n/orphan")
	})
}

func TestLoadInFlightIsDroppedAfterDetach(t *testing.T) {
	b := newFakeBroker()
	b.deaf = 5 * time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(time.Second, names("t", 10)...)
		w.want("10 assigned, 10 missing, 4 loading")
		w.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Instance: "a"})
		w.after(time.Minute)
		w.want("10 assigned, 10 missing")
		w.wantCalls(4, 0) // none after the detachment
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
		{"detached", detached}, {"another epoch", renewed}, {"draining", draining}, {"drained", drained}, {"another broker process", another},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker()
			all := names("t", 4)
			for _, name := range all {
				b.hangs[name] = true
			}
			inWorld(t, testSettings, b, func(w *world) {
				w.begin(time.Second, all...)
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
		w.begin(recovery.SettleTime+100*time.Millisecond, all...)
		w.want("100 assigned, 100 served, 1 quarantined, complete")
		b.set(func() { b.serving["/n/orphan"] = true; delete(b.quiesced, "/n/orphan") })
		b.set(func() { b.quiesceErr[all[7]] = errRefused })
		w.SetOrders(drained)
		w.after(time.Second)
		w.wantServed(all[7])
		b.set(func() { clear(b.quiesceErr) })
		w.after(time.Minute)
		w.wantServed()
		w.want("100 assigned, 100 missing, 1 quarantined")
		// A topic that someone loads by hand is quiesced at the next audit.
		b.set(func() { b.serving[all[0]] = true; delete(b.quiesced, all[0]) })
		w.after(testSettings.AuditInterval + time.Second)
		w.wantServed()
		w.SetOrders(attached)
		w.after(time.Second)
		w.wantServed(all...)
	})
}

func TestAnOrphanIsQuarantinedAfterTheSettleTime(t *testing.T) {
	b := newFakeBroker("/n/a", "/n/b")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(5*time.Second, "/n/a", "/n/b")
		w.SetAssigned(1, false, nil, []string{"/n/b"})
		w.after(recovery.SettleTime / 2)
		w.SetAssigned(1, false, []string{"/n/b"}, nil) // it comes back in time
		w.after(time.Minute)
		w.wantCalls(0, 0)
		w.SetAssigned(1, false, nil, []string{"/n/b"})
		w.after(recovery.SettleTime - time.Millisecond)
		w.wantServed("/n/a", "/n/b")
		w.want("1 assigned, 1 served, 1 orphan, complete")
		w.after(2 * time.Millisecond)
		w.wantServed("/n/a")
		w.want("1 assigned, 1 served, 1 quarantined, complete")
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
		w.want("1 assigned, 1 served, complete")
		b.set(func() { b.latency = time.Second })
		w.SetHeld(nil, nil) // it is over
		w.after(100 * time.Millisecond)
		w.want("1 assigned, 1 served, complete")
		w.after(time.Minute)
		w.want("1 assigned, 1 served, 1 quarantined, complete")
	})
}

func TestACallThatEndsAfterItsTopicWasGivenAndTakenIsUndone(t *testing.T) {
	b := newFakeBroker()
	b.latency = 5 * time.Second
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(6*time.Second, "/n/a")
		w.SetAssigned(1, false, nil, []string{"/n/a"})
		w.after(time.Second) // which is planned before the load ends
		if p := w.Snapshot(); !p.LastSuccess.IsZero() {
			t.Errorf("as etcd asks at %s", p.LastSuccess)
		}
		w.after(9 * time.Second) // loaded, and almost withdrawn
		w.SetAssigned(1, false, []string{"/n/a"}, nil)
		w.after(time.Second)
		w.wantServed()
		w.after(5 * time.Second)
		w.wantServed("/n/a")
	})
}

func TestTopicsAreListedEveryAuditIntervalAndOnKick(t *testing.T) {
	b := newFakeBroker("/n/a")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(10*testSettings.AuditInterval+time.Second, "/n/a")
		w.SetAssigned(1, false, []string{"/n/a"}, nil) // which is no news
		w.after(time.Second)
		w.wantMetric(`holdfast_topic_listings_total{result="ok"} 11`)
		w.wantMetric("holdfast_reconcile_duration_seconds_count 11")
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
		w.begin(time.Second)
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
		w.begin(time.Second, all...)
		b.set(func() { clear(b.serving); b.latency = time.Millisecond })
		w.SetOrders(another)
		w.want("20 assigned, 20 missing, not listed")
		w.after(100 * time.Millisecond)
		w.wantServed(all...)
		w.want("20 assigned, 20 served, complete")
	})
}

func TestAListingDoesNotUndoWhatWasDoneMeanwhile(t *testing.T) {
	b := newFakeBroker("/n/orphan")
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(5*time.Second, "/n/orphan")
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
		w.begin(time.Second, "/n/a")
		b.set(func() { clear(b.serving); b.listDeaf = 0; b.listErr = errRefused })
		w.SetOrders(another)
		w.after(10 * time.Second) // the old answer has come
		w.want("1 assigned, 1 missing, not listed, error")
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
		w.want("4000 assigned, 4000 served, complete")
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
		if w.load.retrying != 0 || len(w.load.flights) != 0 || w.load.loads != 0 || w.load.readyLen != 0 {
			t.Errorf("left over: %d retrying, %d flights, %d loads, %d ready",
				w.load.retrying, len(w.load.flights), w.load.loads, w.load.readyLen)
		}
	})
}
