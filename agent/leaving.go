package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// This file is 'holdfast leave': the planned stop of a broker while the sidecar runs on. It
// goes the way of an orderly end of the sidecar: clients away, nothing served, that noted,
// and only then the lease revoked. Whatever fails before the note takes it all back. After
// it the same process of the broker is not registered again, until it has had its time to
// end; the next process is at once. What follows what is recovery.Departure's.

// mayStop reports whether the broker may be stopped from here.
func (a *agent) mayStop() bool { return a.stopper != nil && a.fences(recovery.StepStop) }

// endUnprovable reports whether nobody would know when a broker has ended that must have,
// before its registration is given up.
func (a *agent) endUnprovable() bool { return a.mustStop() && !a.mayStop() && !a.servingLives() }

// servingLives reports whether the process that served is seen to live.
func (a *agent) servingLives() bool { last := a.lastServing(); return last.Pid != 0 && !last.Gone() }

// endsUnderLease reports whether a broker that does not answer any more is ending, and has to
// keep its registration until it has.
func (a *agent) endsUnderLease(verdict probes.Verdict) bool {
	d := &a.departing
	return d.Phase == recovery.Awaiting && time.Duration(a.clock()) < d.Until && (a.gate && a.servingLives() || d.Cause == recovery.CauseOwnWord && a.ails(verdict))
}

// endServing proves that the broker serves nothing. One that must not run without its
// registration is stopped; where it cannot be, nothing is proven before somebody else did.
func (a *agent) endServing(ctx context.Context, fence *topics.OpenFence) (recovery.Fence, error) {
	n, err := fence.Finish(ctx)
	switch {
	case err != nil && a.brokerHasLeft(ctx): // somebody stopped it meanwhile
		return recovery.FenceGone, nil
	case a.mustStop() && a.mayStop(): // whatever is still served
	case err != nil:
		return "", fmt.Errorf("%s quiesced: %w", control.Plural(n, "topic"), err)
	case !a.mustStop():
		return recovery.FenceQuiesced, nil
	default:
		return "", nil
	}
	a.recognizeNow(ctx)
	how, err := a.stopper.Stop(ctx)
	if err != nil {
		return "", err
	}
	a.log.Info("broker stopped before its registration is given up", "by", how)
	return recovery.FenceGone, nil
}

// leaveEvery is how often 'leave --wait' tries again.
const leaveEvery = 100 * time.Millisecond

// leaveOrder is the body of a request to leave.
type leaveOrder struct {
	TimeoutSeconds float64 `json:"timeout_seconds"`
	Wait           bool    `json:"wait"`
	WithSidecar    bool    `json:"with_sidecar"`
}

// leaveByOrder returns when the broker has left, or cannot.
func (a *agent) leaveByOrder(ctx context.Context, o leaveOrder) (control.Status, error) {
	timeout := drainTimeout
	if o.TimeoutSeconds > 0 {
		timeout = time.Duration(o.TimeoutSeconds * float64(time.Second))
	}
	if err := a.mayBeNoted(ctx); err != nil {
		return control.Status{}, err
	}
	if err := a.leaveNow(ctx, timeout, o.Wait, o.WithSidecar); err != nil {
		return control.Status{}, err
	}
	_ = a.saveNow() // the next sidecar is to know it; that it failed, the saver tells
	return a.status(), nil
}

// mayBeNoted looks, before anything is withdrawn, whether etcd shows what the note will rest on. Where none
// begins now nobody is asked.
func (a *agent) mayBeNoted(ctx context.Context) error {
	var who cluster.Who
	if err := a.inLoop(ctx, func() {
		if a.attachment == recovery.Attached && a.mode.Mode == recovery.Active && !a.departing.HoldsBack() && a.shadow == nil && a.presence == nil {
			who = a.departureNow(recovery.DepartActs{}).Who
		}
	}); err != nil || who.Name == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	if _, err := a.main.SnapshotOf(ctx, who); err != nil {
		return fmt.Errorf("the broker does not leave, and nothing was withdrawn: %w", control.EtcdError(a.cfg, err))
	}
	return nil
}

// beginLeaving is called in the loop. briefly: the sidecar is stopped next, and perhaps not the
// broker. c is told when the broker has left, or why not, and must have room for that.
func (a *agent) beginLeaving(timeout time.Duration, briefly bool, c chan<- error) {
	a.leavers = append(a.leavers, c)
	e := recovery.DepartEvent{Kind: recovery.Asked}
	if briefly {
		e.Kind = recovery.AskedBriefly
	}
	a.leaveWithin = timeout
	a.depart(e)
}

// keepHere is what 'activate' does to a broker that leaves or has left, as long as its
// process is there. One that is away keeps its note.
func (a *agent) keepHere() { a.depart(recovery.DepartEvent{Kind: recovery.Activated}) }

// leaveNow has the loop begin, and waits for what comes of it. wait: a broker that cannot
// leave yet is asked again until the timeout. briefly: see beginLeaving.
func (a *agent) leaveNow(ctx context.Context, timeout time.Duration, wait, briefly bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	for {
		c := make(chan error, 1)
		a.tell(ctx, func() { a.beginLeaving(timeout-time.Since(began), briefly, c) })
		var err error
		select {
		case err = <-c:
		case <-ctx.Done():
			if a.goesAnyway(c, timeout) {
				return nil
			}
			return fmt.Errorf("the broker has not left within %s: it stays: see 'holdfast events', then repeat with a longer --timeout", config.FormatDuration(timeout))
		}
		if !wait || !errors.Is(err, recovery.ErrNothingToLeave) {
			return leaveError(err)
		}
		if probes.Sleep(ctx, leaveEvery); ctx.Err() != nil {
			return leaveError(err)
		}
	}
}

// goesAnyway forgets somebody who waits no more, and reports whether the broker has left: only
// its lease is still to be given up.
func (a *agent) goesAnyway(c chan<- error, timeout time.Duration) bool {
	var left bool
	err := a.inLoop(a.life0, func() {
		a.leavers = slices.DeleteFunc(a.leavers, func(w chan<- error) bool { return w == c })
		if len(a.leavers) == 0 {
			a.depart(recovery.DepartEvent{Kind: recovery.Abandoned, Why: "not done within " + config.FormatDuration(timeout)})
		}
		left = a.departing.GivenUp()
	})
	return err == nil && left
}

// leaveError adds what to do.
func leaveError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, recovery.ErrNothingToLeave):
		return &control.ExitError{Code: control.ExitRefused, Err: fmt.Errorf("%w: stop it all the same if it must be; it comes back as a broker that was not stopped by plan does", err)}
	}
	return fmt.Errorf("the broker does not leave: %w: it stays as it was; mend that and repeat, or stop it all the same", err)
}
