package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestNothingIsRenewedWhileTheGateIsClosed(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(9 * time.Second)
		w.k.Order(Rest)
		synctest.Wait()
		w.wantPhase(Paused)
		deadline := w.k.View().Validity.Deadline()
		w.k.Reestablish()
		w.reconnected()
		w.until(60 * time.Second)
		if calls := w.made("keepalive", 9*time.Second); len(calls) != 0 {
			t.Errorf("renewed: %+v", calls)
		}
		if calls := w.made("establish", 9*time.Second); len(calls) != 0 {
			t.Errorf("asked: %+v", calls)
		}
		if v := w.k.View(); v.Validity.Deadline() != deadline || !v.Validity.ExpiredAt(w.now()) {
			t.Errorf("%+v", v)
		}
		w.k.Order(Renew)
		w.after(100 * time.Millisecond)
		w.wantPhase(Holding)
		if v := w.k.View(); v.Grant.LeaseID != 102 {
			t.Errorf("lease %d, want a new one: the old one ran out", v.Grant.LeaseID)
		}
	})
}

func TestABrokerThatIsBackBeforeTheDeadlineIsRenewedAtOnce(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(9 * time.Second)
		w.k.Order(Rest)
		w.until(38 * time.Second) // the deadline is at 40 s
		w.k.Order(Renew)
		w.after(10 * time.Millisecond)
		v := w.k.View()
		if got, want := v.Validity.Deadline(), Instant(time.Hour+70*time.Second); got != want || v.Grant.LeaseID != 101 || v.Losses != 0 {
			t.Errorf("deadline %v, want %v; %+v", got, want, v)
		}
	})
}

func TestAGateThatClosesDuringTheQuestionIsNoFailure(t *testing.T) {
	inWorld(t, func(w *world) { w.latency = time.Second }, func(w *world) {
		w.until(time.Second)
		w.k.Order(Rest)
		w.after(time.Second)
		w.wantPhase(Idle)
		if v := w.k.View(); v.FailureStreak != 0 || v.LastError != "" || v.Validity.Known() {
			t.Errorf("%+v", v)
		}
		if n := w.log.count("renewals fail"); n != 0 {
			t.Errorf("%d warnings for a call that we ended ourselves", n)
		}
	})
}

func TestTheRestartGraceEndsWithARevocation(t *testing.T) {
	for _, c := range []struct {
		name    string
		revoke  error // the answer; the store has done it all the same
		losses  int
		leaseID int64
	}{
		{"heard", nil, 1, 0},
		{"done, and the answer was lost", errUnanswered, 0, 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.set.RestartGrace = 10 * time.Second
				w.onRevoke = func(context.Context) error { return c.revoke }
			}, func(w *world) {
				w.until(9 * time.Second)
				w.k.Order(Rest)
				w.until(18900 * time.Millisecond)
				if calls := w.made("revoke", 0); len(calls) != 0 {
					t.Fatalf("revoked within the grace: %+v", calls)
				}
				w.until(30 * time.Second)
				if calls := w.made("revoke", 0); len(calls) != 1 || calls[0].at != 19*time.Second || calls[0].id != 101 {
					t.Fatalf("revoked: %+v", calls)
				}
				v := w.k.View()
				if v.Losses != c.losses || v.Grant.LeaseID != c.leaseID || v.Phase != Idle {
					t.Errorf("%+v", v)
				}
				w.nothingFalse()
				w.k.Order(Renew)
				w.after(100 * time.Millisecond)
				w.wantPhase(Holding)
				w.nothingFalse()
			})
		})
	}
}

// The grace of a broker that was given up has nothing left to end.
func TestWhatWasGivenUpIsNotRevokedAgainWhenTheGraceEnds(t *testing.T) {
	for heard, want := range map[bool]int{true: 1, false: 2} {
		inWorld(t, func(w *world) {
			w.set.RestartGrace = 10 * time.Second
			w.onRevoke = func(context.Context) error {
				if !heard {
					return errUnanswered
				}
				return nil
			}
		}, func(w *world) {
			w.until(9 * time.Second)
			w.k.Order(Revoke)
			w.until(30 * time.Second)
			if calls := w.made("revoke", 0); len(calls) != want || calls[len(calls)-1].id != 101 {
				t.Errorf("heard: %v, revoked: %+v", heard, calls)
			}
			if v := w.k.View(); heard && (v.Losses != 1 || v.LostCause != "left") {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestABackInTimeBrokerIsNotRevoked(t *testing.T) {
	inWorld(t, func(w *world) { w.set.RestartGrace = 10 * time.Second }, func(w *world) {
		for range 3 { // each absence has a grace of its own
			w.k.Order(Rest)
			w.after(9 * time.Second)
			w.k.Order(Renew)
			w.after(5 * time.Second)
		}
		if calls := w.made("revoke", 0); len(calls) != 0 {
			t.Errorf("revoked: %+v", calls)
		}
		w.wantPhase(Holding)
	})
}

func TestReleaseRevokesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStillWorld(t)
		k := newQuietKeeper(w)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		k.Order(Renew)
		time.Sleep(5 * time.Second)
		cancel()
		<-ended
		for range 2 {
			if err := k.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if calls := w.made("revoke", 0); len(calls) != 1 || calls[0].id != 101 {
			t.Errorf("revoked: %+v", calls)
		}
		if v := k.View(); v.Validity.Known() || v.Grant.LeaseID != 0 || v.Phase != Idle {
			t.Errorf("%+v", v)
		}
	})
}

func TestReleaseThatFailedCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStillWorld(t)
		k := newQuietKeeper(w)
		k.view.Store(&View{Grant: Grant{LeaseID: 7}})
		w.onRevoke = func(context.Context) error { return errRefused }
		if err := k.Release(t.Context()); !errors.Is(err, errRefused) {
			t.Errorf("%v", err)
		}
		w.onRevoke = nil
		if err := k.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if calls := w.made("revoke", 0); len(calls) != 2 {
			t.Errorf("revoked: %+v", calls)
		}
	})
}
