package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRenewsEveryEighthOfTheTTL(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(41 * time.Second)
		calls := w.made("keepalive", 0)
		if len(calls) != 10 {
			t.Fatalf("%d renewals in 41 s, want 10", len(calls))
		}
		for i, c := range calls {
			if want := time.Duration(i+1) * 4 * time.Second; c.at != want || c.fresh {
				t.Errorf("renewal %d: %+v, want at %v on the standing connection", i, c, want)
			}
		}
		if v := w.k.View(); v.Renewals != 10 || v.Phase != Holding || v.Losses != 0 {
			t.Errorf("%+v", v)
		}
	})
}

func TestDeadlineIsThatOfTheSendWhateverTheLatency(t *testing.T) {
	inWorld(t, func(w *world) { w.latency = 150 * time.Millisecond }, func(w *world) {
		w.after(290 * time.Millisecond)
		if w.k.View().Validity.Known() {
			t.Error("known before the answer")
		}
		w.until(400 * time.Millisecond)
		if got, want := w.k.View().Validity.Deadline(), Instant(time.Hour+32*time.Second); got != want {
			t.Errorf("grant: deadline %v, want %v", got, want)
		}
		w.until(4590 * time.Millisecond)
		if got, want := w.k.View().Validity.Deadline(), Instant(time.Hour+32*time.Second); got != want {
			t.Errorf("before the first proof: deadline %v, want %v", got, want)
		}
		w.until(4610 * time.Millisecond)
		if got, want := w.k.View().Validity.Deadline(), Instant(time.Hour+36*time.Second); got != want {
			t.Errorf("after it: deadline %v, want %v", got, want)
		}
	})
}

func TestRetriesAreUnderASecondApartWhileTheLeaseMayLive(t *testing.T) {
	for _, c := range []struct {
		name    string
		initial time.Duration
		refuses bool
	}{
		{"refused, the default backoff", 250 * time.Millisecond, true},
		{"refused, a backoff of minutes", 2 * time.Minute, true},
		{"unanswered", 250 * time.Millisecond, false},
		{"unanswered, a backoff of minutes", 2 * time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.refuses = c.refuses
				w.set.Timing.BackoffInitial, w.set.Timing.BackoffMax = c.initial, max(c.initial, 5*time.Second)
				w.cuts = []cut{{10 * time.Second, time.Hour}}
			}, func(w *world) {
				w.until(39 * time.Second) // the deadline is at 8 s + 32 s
				calls := w.made("keepalive", 12*time.Second)
				if len(calls) < 36 {
					t.Errorf("%d attempts in 27 s", len(calls))
				}
				for i := 1; i < len(calls); i++ {
					if gap := calls[i].at - calls[i-1].at; gap > RetryCeiling {
						t.Errorf("%v between the attempts at %v and %v", gap, calls[i-1].at, calls[i].at)
					} else if gap < 100*time.Millisecond {
						t.Errorf("only %v between the attempts at %v and %v", gap, calls[i-1].at, calls[i].at)
					}
				}
			})
		})
	}
}

func TestUnansweredRenewalGetsCompanyAndStillCounts(t *testing.T) {
	sent := make(chan chan time.Duration, 8) // one door for each attempt
	inWorld(t, func(w *world) {
		w.onKeepAlive = func(ctx context.Context, n int) (time.Duration, error) {
			door := make(chan time.Duration)
			sent <- door
			select {
			case granted := <-door:
				return granted, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
	}, func(w *world) {
		w.until(6 * time.Second)
		calls := w.made("keepalive", 0)
		if len(calls) != 3 || calls[0].fresh || !calls[1].fresh || !calls[2].fresh {
			t.Fatalf("at 4, 4.75 and 5.5 s, the first on the standing connection, the others on fresh ones: %+v", calls)
		}
		oldest := <-sent
		oldest <- 32 * time.Second
		w.after(10 * time.Millisecond) // for the proof
		v := w.k.View()
		if got, want := v.Validity.Deadline(), Instant(time.Hour+36*time.Second); got != want {
			t.Errorf("deadline %v, want that of the oldest send, %v", got, want)
		}
		if v.FailureStreak != 0 {
			t.Errorf("streak %d: those that were overtaken did not fail", v.FailureStreak)
		}
		w.until(7900 * time.Millisecond)
		if n := len(w.made("keepalive", 0)); n != 3 {
			t.Errorf("%d attempts, want no new one before the next is due at 8 s", n)
		}
		w.until(8100 * time.Millisecond)
		if calls := w.made("keepalive", 0); len(calls) != 4 || calls[3].at != 8*time.Second || calls[3].fresh {
			t.Errorf("%+v, want a clean start at 8 s", calls)
		}
	})
}

func TestSecondOutageStartsWithTheFirstPause(t *testing.T) {
	inWorld(t, func(w *world) {
		w.refuses = true
		w.cuts = []cut{{7 * time.Second, 20 * time.Second}, {40 * time.Second, 60 * time.Second}}
		w.redial = time.Hour // no edge: the schedule alone
	}, func(w *world) {
		w.until(55 * time.Second)
		for _, from := range []time.Duration{7 * time.Second, 40 * time.Second} {
			calls := w.made("keepalive", from)
			if gap := calls[1].at - calls[0].at; gap < 200*time.Millisecond || gap > 250*time.Millisecond {
				t.Errorf("outage at %v: first pause %v", from, gap)
			}
			if gap := calls[2].at - calls[1].at; gap < 400*time.Millisecond || gap > 500*time.Millisecond {
				t.Errorf("outage at %v: second pause %v", from, gap)
			}
		}
	})
}

func TestAfterTheDeadlineAttemptsAreRareAndAReconnectIsHeededAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.refuses = true
		w.cuts = []cut{{5 * time.Second, 100 * time.Second}}
	}, func(w *world) {
		w.until(90 * time.Second)
		calls := w.made("keepalive", 45*time.Second)
		for i := 1; i < len(calls); i++ {
			if gap := calls[i].at - calls[i-1].at; gap < 4*time.Second || gap > 5*time.Second {
				t.Errorf("%v between the attempts at %v and %v", gap, calls[i-1].at, calls[i].at)
			}
		}
		if len(calls) < 8 {
			t.Errorf("%d attempts in 45 s", len(calls))
		}
		last := calls[len(calls)-1].at
		at := max(w.age(), last+time.Second)
		w.until(at)
		w.reconnected()
		synctest.Wait()
		if calls := w.made("keepalive", last+1); len(calls) != 1 || calls[0].at != at {
			t.Errorf("after the reconnect at %v: %+v", at, calls)
		}
	})
}

func TestAReconnectWhileAllIsWellChangesNothing(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		for range 5 {
			w.reconnected()
			synctest.Wait()
		}
		w.until(7900 * time.Millisecond)
		if n := len(w.made("keepalive", 0)); n != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

func TestALostLeaseIsKnownAtOnceAndTheRegistrarAskedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		granted time.Duration
		err     error
	}{
		{"not found", 0, ErrLost},
		{"TTL 0", -1, nil}, // the fake answers 0
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.onKeepAlive = func(_ context.Context, n int) (time.Duration, error) {
					if n == 1 {
						return c.granted, c.err
					}
					return 0, nil
				}
			}, func(w *world) {
				w.until(5 * time.Second)
				w.expire(101)
				w.scriptEstablish(func(_ context.Context, n int) error {
					if n == 1 {
						if v := w.k.View(); v.Validity.Known() || v.Grant.LeaseID != 0 || v.Phase != Acquiring {
							t.Errorf("while the registrar is asked: %+v", v)
						}
					}
					return nil
				})
				w.until(8100 * time.Millisecond)
				asked := w.made("establish", time.Second)
				if len(asked) != 1 || asked[0].at != 8*time.Second+2*w.latency || asked[0].id != 0 {
					t.Fatalf("registrar asked: %+v, want once, when a read has confirmed it, with nothing held", asked)
				}
				v := w.k.View()
				if v.Losses != 1 || v.LostCause != "lease_expired" || v.Phase != Holding || v.Grant.LeaseID != 102 || v.Renewals != 0 {
					t.Errorf("%+v", v)
				}
				if got, want := v.Validity.Deadline(), Instant(time.Hour+40*time.Second+2*w.latency); got != want {
					t.Errorf("deadline %v, want %v", got, want)
				}
			})
		})
	}
}

func TestReestablishAsksTheRegistrarAndGoesOnHolding(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(9 * time.Second)
		w.scriptEstablish(func(context.Context, int) error {
			w.wantPhase(Holding)
			return nil
		})
		w.k.Reestablish()
		w.k.Reestablish()
		w.after(100 * time.Millisecond)
		if calls := w.made("establish", 9*time.Second); len(calls) != 1 || calls[0].id != 101 || calls[0].fresh {
			t.Errorf("asked: %+v, want once with the lease that is held, on the connection that does", calls)
		}
		w.wantPhase(Holding)
		if got, want := w.k.View().Validity.Deadline(), Instant(time.Hour+41*time.Second); got != want {
			t.Errorf("deadline %v, want %v", got, want)
		}
	})
}

// Some ways carry everything but renewals; and what the Registrar says is gone is gone.
func TestALossIsHeardWhereRenewalsAreNotAnswered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.onEstablish = func(_ context.Context, n int) error {
			if n == 0 {
				return ErrLost
			}
			return nil
		}
	}, func(w *world) {
		w.until(9 * time.Second)
		if v := w.k.View(); v.Phase != Holding || v.Losses != 0 || v.FailingFor(w.now()) != 0 {
			t.Errorf("what was not there was lost: %+v", v)
		}
		w.lock(func() { w.onKeepAlive = func(context.Context, int) (time.Duration, error) { return 0, errRefused } })
		w.after(10 * time.Second)
		if v := w.k.View(); v.FailingFor(w.now()) < 10*time.Second {
			t.Errorf("failing for %s: %+v", v.FailingFor(w.now()), v)
		}
		w.until(time.Minute)
		if v := w.k.View(); v.Losses != 1 {
			t.Errorf("%+v", v)
		}
		w.scriptEstablish(func(_ context.Context, n int) error {
			if n%2 == 0 {
				return ErrLost
			}
			return nil
		})
		w.lock(func() { w.onKeepAlive = nil })
		w.until(2 * time.Minute)
		losses := w.k.View().Losses
		for range 2 { // one of them is told that it is gone
			w.k.Reestablish()
			w.after(10 * time.Second)
		}
		if v := w.k.View(); v.Losses <= losses || v.Phase != Holding {
			t.Errorf("%+v, %d losses before", v, losses)
		}
		if v := (View{FailureStreak: 1}); v.FailingFor(w.now()) != 0 {
			t.Error("it fails for longer than there was anything")
		}
	})
}

func TestReestablishDuringAQuestionAsksOnceMore(t *testing.T) {
	inWorld(t, func(w *world) { w.latency = 100 * time.Millisecond }, func(w *world) {
		w.until(9 * time.Second)
		w.k.Reestablish()
		w.after(50 * time.Millisecond)
		w.k.Reestablish()
		w.after(time.Second)
		if calls := w.made("establish", 9*time.Second); len(calls) != 2 {
			t.Errorf("asked: %+v, want twice: the first question was older than the second wish", calls)
		}
	})
}

func TestAConflictIsLeftAloneUntilItIsOver(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		phases := map[Phase]bool{}
		w.scriptEstablish(func(_ context.Context, n int) error {
			if n > 1 {
				phases[w.k.View().Phase] = true
			}
			if n < 6 {
				return ErrConflict
			}
			return nil
		})
		w.k.Reestablish()
		w.after(100 * time.Millisecond)
		w.wantPhase(Contested)
		if v := w.k.View(); v.Validity.Known() || v.Grant.LeaseID != 0 || v.LastClass != "conflict" {
			t.Errorf("%+v", v)
		}
		w.until(60 * time.Second)
		if calls := w.made("keepalive", 5*time.Second); len(calls) < 1 || calls[0].id != 102 {
			t.Errorf("renewed: %+v, want only the lease that followed the conflict", calls)
		}
		if len(phases) != 1 || !phases[Contested] {
			t.Errorf("phases while it lasted: %v, want nothing but contested", phases)
		}
		w.wantPhase(Holding)
		if v := w.k.View(); v.LastError != "" {
			t.Errorf("%+v", v)
		}
	})
}

func TestShutdownByPolicyEndsRun(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptEstablish(func(context.Context, int) error { return ErrShutdown })
		ended := len(w.made("establish", 0))
		w.k.Reestablish()
		w.after(time.Minute)
		if n := len(w.made("establish", 0)); n != ended+1 {
			t.Errorf("asked %d times after the shutdown", n-ended)
		}
		if n := len(w.made("keepalive", 5*time.Second)); n != 0 {
			t.Errorf("%d renewals after the shutdown", n)
		}
	})
}

func TestRunReturnsTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStillWorld(t)
		w.onEstablish = func(context.Context, int) error { return ErrShutdown }
		k := newQuietKeeper(w)
		w.k = k
		k.Order(Renew)
		if err := k.Run(t.Context()); !errors.Is(err, ErrShutdown) {
			t.Errorf("%v", err)
		}
	})
}

// That nothing is left running is what the bubble proves.
func TestCancelEndsRunInEveryPhase(t *testing.T) {
	for _, c := range []struct {
		name  string
		until func(w *world)
	}{
		{"holding", func(w *world) { w.until(9 * time.Second) }},
		{"a renewal on its way", func(w *world) { w.until(8*time.Second + 500*time.Microsecond) }},
		{"five unanswered renewals", func(w *world) {
			w.lock(func() { w.cuts = []cut{{2 * time.Second, time.Minute}} })
			w.until(9500 * time.Millisecond)
		}},
		{"paused", func(w *world) { w.k.Order(Rest); w.until(9 * time.Second) }},
		{"an unanswered question", func(w *world) {
			w.until(2 * time.Second)
			w.lock(func() { w.cuts = []cut{{2 * time.Second, time.Minute}} })
			w.k.Reestablish()
			w.after(time.Second)
		}},
		{"a pause between questions", func(w *world) {
			w.scriptEstablish(func(context.Context, int) error { return errRefused })
			w.k.Reestablish()
			w.after(900 * time.Millisecond)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { inWorld(t, nil, c.until) })
	}
}

func TestAnOutageIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.refuses = refuses
			w.cuts = []cut{{7 * time.Second, 22 * time.Second}, {50 * time.Second, 65 * time.Second}}
		}, func(w *world) {
			for i, age := range []time.Duration{49 * time.Second, 100 * time.Second} {
				w.until(age)
				if n := w.log.count("renewals fail"); n != i+1 {
					t.Errorf("refuses %v: %d lines for %d outages that began", refuses, n, i+1)
				}
				if n := w.log.count("renewals are confirmed again"); n != i+1 {
					t.Errorf("refuses %v: %d lines for %d outages that ended", refuses, n, i+1)
				}
			}
		})
	}
}

func TestAnEarlierProcessesLeaseIsOfferedToTheRegistrar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStillWorld(t)
		w.leases[77] = w.now().Add(20 * time.Second)
		k := newQuietKeeper(w)
		k.view.Store(&View{Grant: Grant{LeaseID: 77}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		if v := k.View(); v.Validity.Known() {
			t.Errorf("held before etcd was asked: %+v", v)
		}
		k.Order(Renew)
		time.Sleep(time.Second)
		if v := k.View(); v.Grant.LeaseID != 77 || v.Validity.Margin != defaults.Margin || !v.Validity.HeldAt(w.now()) {
			t.Errorf("%+v", v)
		}
		cancel()
		<-ended
	})
}
