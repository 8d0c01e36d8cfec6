package topics

import (
	"testing"
	"time"
)

func TestANewRateHoldsFromTheNextLoad(t *testing.T) {
	s := testSettings
	s.Rate = 1
	inWorld(t, s, newFakeBroker(), func(w *world) {
		w.begin(10*time.Second, "/n/a") // and nothing to be loaded since
		w.SetAssigned(1, false, names("t", 99), nil)
		w.after(planSpacing)
		w.wantServed("/n/a", "/n/t-00000")
		w.after(10 * time.Second)
		if n := len(w.b.served()); n < 10 || n > 13 {
			t.Errorf("%d served in 10 s at 1 a second", n)
		}
		s.Rate = 0
		w.Tune(s)
		w.after(time.Second)
		w.want("100 assigned, 100 served, complete")
	})
}

func TestANewConcurrencyHoldsForWhatBegins(t *testing.T) {
	b := newFakeBroker()
	b.latency = time.Second
	s := testSettings
	s.Concurrency = 8
	inWorld(t, s, b, func(w *world) {
		w.begin(3500*time.Millisecond, names("t", 100)...)
		s.Concurrency = 2
		w.Tune(s)
		w.after(time.Second) // what was in flight has landed
		w.b.set(func() { b.maxFlying = b.flying })
		before := len(w.b.served())
		w.after(5 * time.Second)
		if b.maxFlying > 3 { // a listing may be beside
			t.Errorf("%d at a time", b.maxFlying)
		}
		if n := len(w.b.served()) - before; n < 8 || n > 10 {
			t.Errorf("%d in 5 s, two at a time", n)
		}
		s.Concurrency = 50
		w.Tune(s)
		w.after(4 * time.Second)
		w.want("100 assigned, 100 served, complete")
	})
}

func TestAShorterAuditIntervalEndsThePauseUnderWay(t *testing.T) {
	s := testSettings
	s.AuditInterval = time.Hour
	inWorld(t, s, newFakeBroker(), func(w *world) {
		w.begin(time.Minute, names("t", 1)...)
		before, _, _ := w.b.totals()
		s.AuditInterval = 10 * time.Second
		w.Tune(s)
		w.wantMetric("holdfast_reconcile_interval_seconds 10")
		w.after(65 * time.Second)
		if after, _, _ := w.b.totals(); after-before < 6 || after-before > 7 {
			t.Errorf("%d listings in 65 s", after-before)
		}
		before, _, _ = w.b.totals()
		s.AuditInterval = time.Hour
		w.Kick()
		w.Tune(s)
		w.after(time.Second)
		if after, _, _ := w.b.totals(); after != before+1 {
			t.Errorf("%d listings, want the one that was asked for", after-before)
		}
	})
}
