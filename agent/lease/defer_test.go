package lease

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestARevocationThatWasDueIsMadeUpFor(t *testing.T) {
	inWorld(t, func(w *world) { w.set.RestartGrace = 10 * time.Second }, func(w *world) {
		w.until(9 * time.Second)
		w.k.Order(RunOut)
		w.until(25 * time.Second)
		if calls := w.made("revoke", 0); len(calls) != 0 {
			t.Fatalf("revoked: %+v", calls)
		}
		w.k.Order(Rest)
		w.after(100 * time.Millisecond)
		if calls := w.made("revoke", 0); len(calls) != 1 || calls[0].at != 25*time.Second {
			t.Errorf("revoked: %+v", calls)
		}
	})
}

func TestLettingItRunOutDoesNotShortenTheGrace(t *testing.T) {
	inWorld(t, func(w *world) { w.set.RestartGrace = 10 * time.Second }, func(w *world) {
		w.until(9 * time.Second)
		w.k.Order(Rest)
		w.k.Order(RunOut)
		w.until(12 * time.Second)
		w.k.Order(Rest)
		w.until(18900 * time.Millisecond)
		if calls := w.made("revoke", 0); len(calls) != 0 {
			t.Errorf("revoked within the grace: %+v", calls)
		}
		w.until(20 * time.Second)
		if calls := w.made("revoke", 0); len(calls) != 1 || calls[0].at != 19*time.Second {
			t.Errorf("revoked: %+v", calls)
		}
	})
}

func TestADeferredDecisionIsNoFailureAndIsAskedForAgain(t *testing.T) {
	deferred := func(context.Context, int) error { return fmt.Errorf("%w: paused", ErrDeferred) }
	inWorld(t, func(w *world) { w.onEstablish = deferred }, func(w *world) {
		w.until(time.Minute)
		v := w.k.View()
		if v.FailureStreak != 0 || v.LastError == "" || v.Phase != Acquiring || w.log.count("renewals fail") != 0 || w.log.count("registration waits") != 1 {
			t.Errorf("%+v, or not logged once", v)
		}
		if calls := w.made("establish", 0); len(calls) < 10 || len(calls) > 40 {
			t.Errorf("asked %d times in a minute", len(calls))
		}
		w.scriptEstablish(nil)
		w.k.Reestablish()
		w.after(100 * time.Millisecond)
		w.wantPhase(Holding)
		if v := w.k.View(); v.LastError != "" {
			t.Errorf("%+v", v)
		}
	})
}

func TestALeaseThatLivesIsRenewedWhileTheDecisionIsDeferred(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(9 * time.Second)
		w.scriptEstablish(func(context.Context, int) error { return fmt.Errorf("%w: paused", ErrDeferred) })
		w.k.Reestablish()
		w.until(2 * time.Minute)
		w.wantPhase(Holding)
		if v := w.k.View(); v.Losses != 0 || v.FailureStreak != 0 || v.Validity.ExpiredAt(w.now()) || v.LastError != "" {
			t.Errorf("%+v", v)
		}
	})
}
