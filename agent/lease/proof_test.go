package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func (w *world) renewals(result string) float64 {
	return testutil.ToFloat64(w.k.metrics.renewals.WithLabelValues(result))
}

// scriptProofs replaces what reads of the registration answer.
func (w *world) scriptProofs(f func(ctx context.Context, n int) (uint64, error)) {
	w.lock(func() { w.onProve = f })
}

// deposed has the leader that renews go on to confirm every renewal in its old term, as
// one does that hangs in a disk write, while its successor has begun a new one.
func (w *world) deposed() {
	w.lock(func() {
		old := w.term
		w.term++
		w.onRenewal = func() (Renewal, error) { return Renewal{Granted: w.set.Timing.TTL, Term: old}, nil }
	})
}

func (w *world) wantDeadline(want time.Duration) {
	w.t.Helper()
	if got := w.k.View().Validity.Deadline(); got != Instant(time.Hour+want) {
		w.t.Errorf("at %v: deadline at %v, want %v", w.age(), time.Duration(got)-time.Hour, want)
	}
}

func silence(ctx context.Context, _ int) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestAConfirmationOfADeposedLeaderIsNoProof(t *testing.T) {
	t.Run("another member reads, and the key is there yet", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			w.until(5 * time.Second)
			w.deposed()
			w.until(30 * time.Second)
			w.wantDeadline(36 * time.Second)
			w.nothingFalse()
			if w.renewals("unproven") < 2 || w.k.View().FailureStreak == 0 {
				t.Errorf("unproven %v, %+v", w.renewals("unproven"), w.k.View())
			}
		})
	})
	t.Run("another member reads, and the key is gone", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			w.until(5 * time.Second)
			w.deposed()
			w.expire(101)
			w.until(8100 * time.Millisecond)
			if asked := w.made("establish", time.Second); len(asked) != 1 || asked[0].at > 8*time.Second+2*w.latency {
				t.Errorf("registrar asked: %+v, want at once", asked)
			}
			if v := w.k.View(); v.Grant.LeaseID != 102 {
				t.Errorf("%+v", v)
			}
		})
	})
	t.Run("nobody answers reads", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			w.until(5 * time.Second)
			w.deposed()
			w.scriptProofs(silence)
			w.until(35 * time.Second)
			w.wantDeadline(36 * time.Second)
			if n := w.log.count("renewals fail"); n != 1 {
				t.Errorf("%d lines, want one", n)
			}
			if v := w.k.View(); v.FailureStreak == 0 || w.renewals("unproven") == 0 || w.renewals("failed") != 0 || v.Losses != 0 {
				t.Errorf("unproven %v, failed %v, %+v", w.renewals("unproven"), w.renewals("failed"), v)
			}
		})
	})
}

func TestAProofCountsFromTheSendOfItsRenewal(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptProofs(func(ctx context.Context, n int) (uint64, error) {
			time.Sleep(600 * time.Millisecond)
			return 0, nil
		})
		w.until(9 * time.Second)
		w.wantDeadline(40 * time.Second)
	})
}

// The attempt's limit is 4 s. A read that may take only what the renewal left of it would
// be cut off here.
func TestTheReadHasATimeLimitOfItsOwn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.onKeepAlive = func(ctx context.Context, n int) (time.Duration, error) {
			time.Sleep(3 * time.Second)
			return 32 * time.Second, ctx.Err()
		}
		w.onProve = func(ctx context.Context, n int) (uint64, error) {
			select {
			case <-time.After(3 * time.Second):
				return 0, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
	}, func(w *world) {
		w.until(10100 * time.Millisecond)
		w.wantDeadline(36 * time.Second)
		if v := w.k.View(); v.FailureStreak != 0 {
			t.Errorf("%+v", v)
		}
	})
}

func TestAChangeOfLeaderIsNoFailure(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		elected := false
		w.scriptProofs(func(context.Context, int) (uint64, error) {
			w.lock(func() {
				if !elected {
					w.term++
				}
				elected = true
			})
			return 0, nil
		})
		w.until(8100 * time.Millisecond)
		again := 8*time.Second + 4*w.latency
		if calls := w.made("keepalive", 7*time.Second); len(calls) != 2 || calls[1].at != again || !calls[1].fresh {
			t.Errorf("%+v, want a second renewal at %v on another way: the first was of an endpoint that is behind", calls, again)
		}
		w.wantDeadline(32*time.Second + again)
		if v := w.k.View(); v.FailureStreak != 0 || v.LastError != "" || w.renewals("failed") != 0 || w.renewals("unproven") != 1 {
			t.Errorf("failed %v, unproven %v, %+v", w.renewals("failed"), w.renewals("unproven"), v)
		}
		if n := w.log.count("renewals fail"); n != 0 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestARenewalFromAMemberThatIsAheadIsRepeatedWhereItWas(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptProofs(func(_ context.Context, n int) (uint64, error) {
			if n == 1 {
				return 1, nil // the read's member is behind
			}
			return 0, nil
		})
		w.until(8100 * time.Millisecond)
		if calls := w.made("keepalive", 7*time.Second); len(calls) != 2 || calls[1].fresh {
			t.Errorf("%+v, want two on the standing connection", calls)
		}
	})
}

func TestTermsThatNeverAgreeArePaced(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		w.scriptProofs(func(context.Context, int) (uint64, error) { return 99, nil })
		w.until(18 * time.Second)
		if n := len(w.made("keepalive", 7*time.Second)); n < 10 || n > 20 {
			t.Errorf("%d renewals in 10 s, want about one each %v", n, RetryCeiling)
		}
		w.wantDeadline(36 * time.Second)
	})
}

func TestALossIsConfirmedByARead(t *testing.T) {
	notFound := func(_ context.Context, n int) (time.Duration, error) {
		if n == 1 {
			return 0, ErrLost
		}
		return 0, nil
	}
	t.Run("the key is there", func(t *testing.T) {
		inWorld(t, func(w *world) { w.onKeepAlive = notFound }, func(w *world) {
			w.until(8 * time.Second)
			w.after(100 * time.Millisecond)
			if v := w.k.View(); v.Losses != 0 || v.FailureStreak != 1 || v.Grant.LeaseID != 101 || w.renewals("lost") != 0 {
				t.Errorf("%+v, want one attempt that failed", v)
			}
			w.wantDeadline(36 * time.Second)
			w.until(9 * time.Second)
			if v := w.k.View(); v.FailureStreak != 0 || v.Losses != 0 || len(w.made("establish", time.Second)) != 0 {
				t.Errorf("%+v, want the same lease, renewed", v)
			}
		})
	})
	t.Run("the read is not answered", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			w.until(5 * time.Second)
			w.expire(101)
			w.scriptProofs(silence)
			w.until(20 * time.Second)
			if v := w.k.View(); v.Losses != 0 || v.FailureStreak == 0 || w.renewals("lost") != 0 {
				t.Errorf("%+v, want attempts that failed", v)
			}
			w.wantDeadline(36 * time.Second)
			w.scriptProofs(nil)
			w.until(21 * time.Second)
			if v := w.k.View(); v.Losses != 1 || v.Grant.LeaseID != 102 {
				t.Errorf("%+v, want the loss once a read says so", v)
			}
		})
	})
	t.Run("the key is not ours", func(t *testing.T) {
		inWorld(t, func(w *world) { w.onKeepAlive = notFound }, func(w *world) {
			w.until(5 * time.Second)
			w.scriptProofs(func(_ context.Context, n int) (uint64, error) { return 2, ErrForeign })
			w.until(8100 * time.Millisecond)
			if asked := w.made("establish", time.Second); len(asked) != 1 || asked[0].id != 101 || w.k.View().Losses != 0 {
				t.Errorf("asked %+v, %+v; want the registrar to find out", asked, w.k.View())
			}
		})
	})
}

func TestARegistrationThatIsNotOursLeadsToTheRegistrar(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.until(5 * time.Second)
		foreign := func(_ context.Context, n int) (uint64, error) { return 2, ErrForeign }
		w.scriptProofs(foreign)
		w.scriptEstablish(func(context.Context, int) error { return errors.New("undecided") })
		w.until(8 * time.Second)
		w.after(100 * time.Millisecond)
		w.wantPhase(Holding)
		w.wantDeadline(36 * time.Second)
		if asked := w.made("establish", time.Second); len(asked) != 1 || asked[0].id != 101 {
			t.Errorf("asked %+v, want once, with what is held", asked)
		}
		w.until(28 * time.Second)
		if asked, tried := len(w.made("establish", 9*time.Second)), len(w.made("keepalive", 9*time.Second)); asked < 3 || asked > 5 || tried > 30 {
			t.Errorf("asked %d times, and %d renewals, in 19 s: want a question each %v and renewals each %v", asked, tried, w.set.Timing.BackoffMax, RetryCeiling)
		}
		w.scriptProofs(nil)
		w.scriptEstablish(nil)
		w.until(36 * time.Second)
		if v := w.k.View(); v.FailureStreak != 0 || v.Phase != Holding || v.Losses != 0 {
			t.Errorf("%+v", v)
		}
		w.nothingFalse()
	})
}
