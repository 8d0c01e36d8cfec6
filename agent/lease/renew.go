package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// attempt is one keep-alive and its proof on their way, or what came of them.
type attempt struct {
	sentAt  Instant // of the keep-alive
	renewal Renewal
	err     error  // nil: renewed, and proven
	term    uint64 // of the proof, if that is all that is wrong; 0: it is not
	hedge   bool   // another one was on its way
}

// renew keeps the lease until it is lost, it is to rest, the Registrar is wanted
// or ctx ends.
//
// A renewal that fails is followed by another after a backoff, at most
// RetryCeiling after its own start while the lease may be alive, and at once when the
// connection comes back; see haste. One that is not
// answered stays on its way, because it may still be, and after RetryCeiling gets
// company on a new connection, to another endpoint if there are several: after a cut the
// old one is asleep in TCP's own backoff. The first confirmation ends them all.
//
// A renewal whose proof is of another raft term met a change of leader: nothing has failed,
// and it is sent again at once. When that happens again it is paced as a failure is.
//
// The company lives here and not in the Line because each question needs a send of its
// own: the deadline counts from the send of the one that was confirmed.
func (k *Keeper) renew(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan attempt)
	var inFlight []Instant // their sends, oldest first
	defer func() {
		cancel()
		for range inFlight {
			if a := <-answers; a.hedge {
				k.metrics.hedges.WithLabelValues("false").Inc()
			}
		}
	}()
	pause := backoff{initial: k.set.Timing.BackoffInitial, max: k.set.Timing.BackoffMax}
	reconnect := k.watchReconnect(ctx)
	defer func() { reconnect.stop() }()

	renewed := make(chan struct{})
	retermed, behind := false, false // since the last confirmation; the last answer
	var due time.Time                // when a renewal that failed is tried again
	start := func() {
		a := attempt{sentAt: k.set.Clock(), hedge: len(inFlight) > 0}
		v := k.View()
		fresh := a.hedge || v.FailureStreak > 0 || behind
		behind = false
		inFlight = append(inFlight, a.sentAt)
		go func() {
			k.attempt(ctx, v.Grant, fresh, &a, renewed)
			answers <- a
		}()
	}

	next := time.NewTimer(k.untilNext())
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.nudge:
			if !k.renews() || k.wanted(k.View()) {
				return
			}
			if k.owed() {
				next.Reset(0)
			}
		case <-reconnect.c:
			reconnect.stop()
			reconnect = k.watchReconnect(ctx)
			if pause.failures > 0 && len(inFlight) == 0 {
				left := k.returned(time.Until(due), pause.reset)
				due = time.Now().Add(left)
				next.Reset(left)
			}
		case <-next.C:
			start()
			next.Reset(k.overdue())
		case <-renewed: // the read that proves it has its own time before it counts as unanswered
			next.Reset(k.overdue())
		case a := <-answers:
			i := slices.Index(inFlight, a.sentAt)
			inFlight = slices.Delete(inFlight, i, i+1)
			if a.hedge {
				k.metrics.hedges.WithLabelValues(strconv.FormatBool(a.err == nil)).Inc()
			}
			switch {
			case a.err == nil:
				k.confirmed(a)
				pause.reset()
				retermed = false
				// Anything still on its way has been overtaken; start clean.
				if len(inFlight) > 0 || k.wanted(k.View()) {
					return
				}
				next.Reset(k.untilNext())
			case errors.Is(a.err, ErrLost):
				k.metrics.failures.WithLabelValues(k.set.Classify(a.err)).Inc()
				k.metrics.renewals.WithLabelValues("lost").Inc()
				k.lose("lease_expired")
				return
			case errors.Is(a.err, ErrForeign) && !k.foreign:
				k.metrics.renewals.WithLabelValues("unproven").Inc()
				k.log.Debug("registration found changed by the proof of a renewal", "err", a.err)
				k.foreign = true
				k.renewed.Store(true)
				return
			case a.term != 0 && !retermed:
				k.metrics.renewals.WithLabelValues("unproven").Inc()
				k.log.Debug("leader changed during a renewal, renewing again", "err", a.err)
				retermed, behind = true, a.renewal.Term < a.term
				if len(inFlight) == 0 {
					next.Reset(0)
				}
			case i > 0:
				// An older one is still on its way and may be confirmed.
				k.log.Debug("second way of a renewal failed", "err", a.err)
			case ctx.Err() == nil:
				k.failed(a.err)
				d := pause.next()
				if len(inFlight) == 0 {
					now := k.set.Clock()
					if !k.View().Validity.ExpiredAt(now) {
						d = min(d, max(0, a.sentAt.Add(RetryCeiling).Sub(now)))
					}
					k.log.Debug("renewal failed", "err", a.err, "streak", k.View().FailureStreak, "retry_in", d.Round(time.Millisecond))
					due = time.Now().Add(d)
					next.Reset(d)
				}
			}
		}
	}
}

// attempt renews once, and has what etcd answers proven. Each question has the attempt's
// time limit: an endpoint may be quick to renew and never answer a read.
func (k *Keeper) attempt(ctx context.Context, g Grant, fresh bool, a *attempt, renewed chan<- struct{}) {
	limit := k.set.Timing.AttemptTimeout()
	renewing, done := context.WithTimeout(ctx, limit)
	defer done()
	gone := func() error { return nil }
	if k.View().Validity.ExpiredAt(k.set.Clock()) { // some ways carry everything but renewals: ask whether it is over, too
		gone = k.absent(renewing, g)
	}
	a.renewal, a.err = k.line.KeepAlive(renewing, g.LeaseID, fresh)
	if a.err == nil && a.renewal.Granted <= 0 {
		a.err = fmt.Errorf("%w: renewed with TTL %s", ErrLost, a.renewal.Granted)
	}
	lost := errors.Is(a.err, ErrLost)
	if a.err != nil && !lost {
		if err := gone(); err != nil {
			a.err = fmt.Errorf("%w; no renewal is answered: %v", err, a.err)
		}
		return
	}
	select {
	case renewed <- struct{}{}:
	case <-ctx.Done():
	}
	proving, done := context.WithTimeout(ctx, limit)
	defer done()
	term, err := k.registrar.Prove(proving, g)
	switch {
	case lost && errors.Is(err, ErrLost): // proven
	case errors.Is(err, ErrForeign):
		a.err = err
	case errors.Is(err, ErrLost): // somebody deleted it, or the renewal lied: the Registrar finds out
		a.err = fmt.Errorf("%w: renewed, and %v", ErrForeign, err)
	case err != nil:
		a.err = fmt.Errorf("%w: etcd answers renewals and not the read that must follow: %w", ErrUnproven, err)
	case lost:
		a.err = fmt.Errorf("%w: etcd says that the lease is gone, and its registration is there: %v", ErrUnproven, a.err)
	default:
		if a.err = SameTerm(a.renewal.Term, term); a.err != nil {
			a.term = term
		}
	}
}

// absent reads the registration beside a renewal. The function that it returns waits for the
// answer: an error that wraps ErrLost when there is no registration, nil in every other case.
func (k *Keeper) absent(ctx context.Context, g Grant) func() error {
	read := make(chan error, 1) // nobody may ask
	go func() {
		_, err := k.registrar.Prove(ctx, g)
		read <- err
	}()
	return func() error {
		if err := <-read; errors.Is(err, ErrLost) {
			return err
		}
		return nil
	}
}

// untilNext is the time to the next regular renewal; none while they fail, or one is owed.
func (k *Keeper) untilNext() time.Duration {
	if k.View().FailureStreak > 0 || k.owed() {
		return 0
	}
	v := k.View()
	due := v.Validity.SentAt.Add(k.set.Timing.untilNext(v.Grant.LeaseID, v.Validity.SentAt, k.inStep))
	return max(0, due.Sub(k.set.Clock()))
}

// overdue is how long an attempt may be unanswered before the next one starts. Short
// attempts leave half of their time to it, so that one silent endpoint makes none fail.
func (k *Keeper) overdue() time.Duration {
	limit := k.set.Timing.AttemptTimeout()
	if k.View().Validity.ExpiredAt(k.set.Clock()) {
		return max(limit, RetryCeiling)
	}
	return min(RetryCeiling, limit/2)
}

func (k *Keeper) confirmed(a attempt) {
	now := k.set.Clock()
	k.foreign, k.inStep = false, k.View().FailureStreak > 0
	k.metrics.renewals.WithLabelValues("confirmed").Inc()
	k.metrics.duration.Observe(now.Sub(a.sentAt).Seconds())
	k.metrics.margin.Observe(k.View().Validity.Deadline().Sub(now).Seconds())
	k.publish(func(v *View) {
		v.Validity = v.Validity.Extend(a.sentAt, a.renewal.Granted)
		v.Grant.Revision = max(v.Grant.Revision, a.renewal.Revision)
		v.Renewals++
	})
	k.recovered()
}

// failed counts one attempt without an answer. Only the first of a streak and a
// change of its class are logged.
func (k *Keeper) failed(err error) {
	before := k.View()
	class, result := k.set.Classify(err), "failed"
	if errors.Is(err, ErrUnproven) || errors.Is(err, ErrForeign) {
		result = "unproven"
	}
	k.metrics.renewals.WithLabelValues(result).Inc()
	k.metrics.failures.WithLabelValues(class).Inc()
	k.publish(func(v *View) {
		v.FailureStreak++
		v.LastError, v.LastClass = err.Error(), class
	})
	if before.FailureStreak == 0 || before.LastClass != class {
		if k.set.Explain != nil {
			err = k.set.Explain(err)
		}
		about := []any{"class", class, "err", err, "streak", before.FailureStreak + 1}
		if before.Validity.Known() {
			about = append(about, "fence_in", before.Validity.FencePoint().Sub(k.set.Clock()).Round(time.Millisecond))
		}
		k.log.Warn("renewals fail", about...)
	}
}

// recovered ends a streak.
func (k *Keeper) recovered() {
	before := k.View()
	k.publish(func(v *View) { v.FailureStreak, v.LastError, v.LastClass = 0, "", "" })
	if before.FailureStreak > 0 {
		k.log.Info("renewals are confirmed again", "after_failures", before.FailureStreak, "lease", hex(before.Grant.LeaseID))
	}
}

// reconnectWatch waits for the connection to come back, in the background of one
// loop that stops it.
type reconnectWatch struct {
	c      chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

func (k *Keeper) watchReconnect(ctx context.Context) *reconnectWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &reconnectWatch{c: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if k.line.AwaitReconnect(ctx) == nil {
			w.c <- struct{}{}
		}
	}()
	return w
}

func (w *reconnectWatch) stop() {
	w.cancel()
	<-w.done
}

// hex prints a lease id as etcdctl does.
func hex(id int64) string { return strconv.FormatInt(id, 16) }
