package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// most is how many tries of one sort a Keeper may make in any span of five seconds, whatever
// fails and however fast: those that are cut short, from hasteInitial on, and those between.
const most = 18

// crowded returns the largest number of calls of one sort within five seconds.
func (w *world) crowded(what string) (n int) {
	calls := w.made(what, 0)
	for i, j := 0, 0; j < len(calls); j++ {
		for calls[j].at-calls[i].at > 5*time.Second {
			i++
		}
		n = max(n, j-i+1)
	}
	return n
}

// A registration that is refused is asked for on a new connection each time. That it comes up
// is no reason to ask at once again.
func TestARefusalByAnEtcdThatIsWellIsPaced(t *testing.T) {
	inWorld(t, func(w *world) {
		w.onEstablish = func(context.Context, int) error {
			w.reconnected()
			time.Sleep(w.latency)
			return errors.New("nothing to adopt")
		}
	}, func(w *world) {
		w.until(5 * time.Minute)
		if n := w.crowded("establish"); n > most {
			t.Errorf("%d questions in 5 s", n)
		}
		if calls := w.made("establish", 4*time.Minute); len(calls) > 30 {
			t.Errorf("%d questions in the fifth minute, want the longest pauses", len(calls))
		}
		w.scriptEstablish(func(context.Context, int) error { return errRefused })
		w.after(30 * time.Second)
		w.scriptEstablish(nil)
		asked := len(w.made("establish", 0))
		w.reconnected()
		w.after(100 * time.Millisecond)
		if n := len(w.made("establish", 0)); n != asked+1 {
			t.Errorf("%d questions when the connection came back, want one at once", n-asked)
		}
		w.wantPhase(Holding)
	})
}

func TestNewsIsHeededSoonWhereARefusalIsPaced(t *testing.T) {
	inWorld(t, func(w *world) {
		w.onEstablish = func(context.Context, int) error {
			w.reconnected()
			return errors.New("nothing to adopt")
		}
	}, func(w *world) {
		w.until(time.Minute)
		w.scriptEstablish(nil)
		w.k.Reestablish()
		w.after(RetryCeiling + 10*time.Millisecond)
		w.wantPhase(Holding)
	})
}

// Each renewal that fails moves on to another endpoint. That its connection comes up is no
// reason to renew at once again.
func TestRenewalsThatFailOnEachEndpointArePaced(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptProofs(func(context.Context, int) (uint64, error) {
			time.AfterFunc(3*time.Millisecond, w.reconnected)
			return 0, errRefused
		})
		w.until(3 * time.Minute)
		if n := w.crowded("keepalive"); n > most {
			t.Errorf("%d renewals in 5 s", n)
		}
		w.scriptProofs(nil)
		w.after(6 * time.Second)
		w.wantPhase(Holding)
		if v := w.k.View(); v.FailureStreak != 0 {
			t.Errorf("%+v", v)
		}
	})
}

// Somebody who changes the registration whenever we have mended it is not answered at his pace.
func TestAWriterWhoDoesNotRestIsAnsweredAtAPace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptEstablish(func(context.Context, int) error {
			time.AfterFunc(5*time.Millisecond, w.k.Reestablish)
			return nil
		})
		w.k.Reestablish()
		w.until(time.Minute)
		if n := w.crowded("establish"); n > most {
			t.Errorf("%d questions in 5 s", n)
		}
		w.wantPhase(Holding)
		w.scriptEstablish(nil)
		w.until(70 * time.Second)
		asked := w.age()
		w.k.Reestablish()
		w.after(50 * time.Millisecond)
		if calls := w.made("establish", asked); len(calls) != 1 {
			t.Errorf("asked %+v once he rests, want it at once", calls)
		}
	})
}

// Each question that fails while the lease is held is repeated, and not by two.
func TestQuestionsThatFailWhileTheLeaseIsHeldDoNotAddUp(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptEstablish(func(context.Context, int) error { return errors.New("undecided") })
		for range 30 {
			w.k.Reestablish()
			w.after(time.Second)
		}
		since := w.age()
		w.after(time.Minute)
		if n := len(w.made("establish", since)); n < 10 || n > 14 {
			t.Errorf("%d questions in a minute, want one each %v", n, w.set.Timing.BackoffMax)
		}
		w.wantPhase(Holding)
	})
}

// The registration may have been waited for with many wishes: what is wished as soon as it is
// there waits for no renewal.
func TestAWishRightAfterAStormIsGrantedWithinASecond(t *testing.T) {
	deferred := func(context.Context, int) error { return fmt.Errorf("%w: paused", ErrDeferred) }
	inWorld(t, func(w *world) { w.onEstablish = deferred }, func(w *world) {
		for range 20 {
			w.k.Reestablish()
			w.after(20 * time.Millisecond)
		}
		w.scriptEstablish(nil)
		for w.k.View().Phase != Holding && w.age() < time.Minute {
			w.after(time.Millisecond)
		}
		w.wantPhase(Holding)
		since := w.age()
		w.k.Reestablish()
		w.after(RetryCeiling)
		if calls := w.made("establish", since); len(calls) != 1 {
			t.Errorf("asked: %+v, want once within %v", calls, RetryCeiling)
		}
	})
}
