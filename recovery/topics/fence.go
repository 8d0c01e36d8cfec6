package topics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/recovery"
)

// fencePasses is how often a fence lists and quiesces, as long as its context lasts
// and a pass quiesces anything. One more listing proves it.
const fencePasses = 3

// maxFenceListing bounds each listing of a fence; it also never takes more
// than half of the time that is left.
const maxFenceListing = 2 * time.Second

// Fence stops the broker from serving anything, whatever the orders are. In this
// order: work in flight is cancelled and none begins; everything that is served is
// quiesced, until a listing shows that nothing is; loads that were in flight are
// waited for. A load that ends later than
// ctx is followed by a quiesce of its own. After that the reconciler does nothing
// until it is attached anew: orders that become attached, or that carry another
// epoch.
//
// It returns how many topics were quiesced, and an error unless everything that
// may be served was: then the next step of the fence ladder must follow. Fencing a
// fenced broker changes nothing. It needs no running loop.
func (r *Reconciler) Fence(ctx context.Context) (quiesced int, err error) {
	return r.BeginFence().Finish(ctx)
}

// ErrReleased says that the broker was attached anew while a fence was under way:
// the fence has ended, and proves nothing.
var ErrReleased = errors.New("attached anew meanwhile")

// ErrUnseen is wrapped when a broker that was fenced did not say what it serves.
var ErrUnseen = errors.New("not seen")

// FenceAgain looks whether a broker that Fence has proven to serve nothing still does, and
// fences anew what it finds. It costs one listing as long as nothing is found, and changes
// nothing then.
func (r *Reconciler) FenceAgain(ctx context.Context) (quiesced int, err error) {
	held, err := r.broker.Topics(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: list topics: %w", ErrUnseen, err)
	}
	if len(held.Serving) == 0 && (r.settings.Drain != nil || len(held.Unreadable) == 0) {
		if r.released() {
			return 0, ErrReleased
		}
		return 0, nil
	}
	late, landed, begun := r.beginFence(true)
	if !begun {
		return 0, ErrReleased
	}
	return (&OpenFence{r, late, landed}).Finish(ctx)
}

// OpenFence is a fence that has begun. Finish must be called, once.
type OpenFence struct {
	r      *Reconciler
	late   []*topic
	landed chan struct{}
}

// BeginFence does the part of Fence that takes no time: from its return on nothing is
// loaded until the broker is attached anew. Orders that attach it release this fence,
// however late Finish comes.
func (r *Reconciler) BeginFence() *OpenFence {
	late, landed, _ := r.beginFence(false)
	return &OpenFence{r, late, landed}
}

// Finish does the rest of Fence. It returns ErrReleased, and leaves the rest alone,
// when it finds the broker attached anew.
func (o *OpenFence) Finish(ctx context.Context) (quiesced int, err error) {
	r := o.r
	defer r.endFence()
	if r.settings.Drain != nil {
		quiesced, err = r.drainUntilProven(ctx)
	} else {
		quiesced, err = r.quiesceUntilProven(ctx, o.late)
	}
	err = errors.Join(err, r.awaitLanded(ctx, o.late, o.landed))
	if r.released() {
		return quiesced, ErrReleased
	}
	return quiesced, err
}

// quiesceUntilProven lists and quiesces until a listing shows that nothing is served.
func (r *Reconciler) quiesceUntilProven(ctx context.Context, late []*topic) (quiesced int, err error) {
	for range fencePasses + 1 {
		if r.released() {
			return quiesced, nil
		}
		serving, unreadable, listErr := r.listForFence(ctx)
		switch {
		case listErr != nil:
			for _, t := range late {
				serving[t.name] = struct{}{}
			}
			err = fmt.Errorf("list topics (those known before were quiesced): %w", listErr)
		case len(serving) == 0:
			return quiesced, servedUnread(unreadable)
		default:
			r.seenServing(serving)
		}
		left, first := r.quiesceAll(ctx, slices.Sorted(maps.Keys(serving)))
		quiesced += len(serving) - len(left)
		switch {
		case len(left) > 0:
			err = errors.Join(err, fmt.Errorf("quiesce %d of %d topics, first %s: %w", len(left), len(serving), left[0], first))
		case listErr == nil:
			err = errors.New("topics are served again after they were quiesced")
		}
		if listErr != nil || len(left) == len(serving) {
			return quiesced, err
		}
		if ctx.Err() != nil {
			return quiesced, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
	return quiesced, err
}

// drainUntilProven drains until a listing shows that nothing is served, of what has a name here:
// what else such a broker has is its own cluster's, and anybody can make it have that. It drains a broker
// that serves nothing too: its cluster may give it topics at any time.
func (r *Reconciler) drainUntilProven(ctx context.Context) (drained int, err error) {
	r.mu.Lock()
	before := r.counts.Served
	r.mu.Unlock()
	for range fencePasses {
		if r.released() {
			return before, nil
		}
		if err := r.settings.Drain(ctx); err != nil {
			return 0, fmt.Errorf("drain: %w", err)
		}
		serving, _, err := r.listForFence(ctx)
		if err != nil {
			return 0, fmt.Errorf("list topics after the drain: %w", err)
		}
		if len(serving) == 0 {
			r.seenIdle()
			return before, nil
		}
		r.seenServing(serving)
	}
	return 0, errors.New("topics are served again after the broker was drained")
}

// seenIdle takes a fence's listing for the view: nothing is served.
func (r *Reconciler) seenIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	for _, t := range r.table {
		if t.Serving {
			t.changed = r.clock
			r.update(t, func(f *recovery.PlanFacts) { f.Serving = false })
		}
	}
	r.changed(time.Now())
	r.settled()
}

// released reports whether orders attached the broker anew since a fence began.
func (r *Reconciler) released() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.afterFence
}

// beginFence cancels and holds. It returns the topics whose load is in flight, and
// a channel that is closed when all calls in flight have ended. again: only if the fence
// before it was not released.
func (r *Reconciler) beginFence(again bool) (late []*topic, landed chan struct{}, begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if again && !r.afterFence {
		return nil, nil, false
	}
	r.fences++
	r.fencing++
	r.afterFence = true
	r.newGeneration()
	r.gate.close()
	landed = make(chan struct{})
	for t, f := range r.load.flights {
		if f.act == actLoad {
			late = append(late, t)
		}
	}
	r.load.landed = append(r.load.landed, landed)
	r.announceLanded()
	return late, landed, true
}

func (r *Reconciler) endFence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fencing--
	r.lookAnew(time.Now())
}

// servedUnread is why a broker is not proven to serve nothing although no topic is left.
func servedUnread(unreadable []string) error {
	if len(unreadable) == 0 {
		return nil
	}
	return fmt.Errorf("the broker serves %d more that cannot be read, first %s: nobody can quiesce them", len(unreadable), unreadable[0])
}

// listForFence is what the broker serves, or what it served when last seen if it
// does not answer in time.
func (r *Reconciler) listForFence(ctx context.Context) (serving map[string]struct{}, unreadable []string, err error) {
	bound := maxFenceListing
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	held, err := r.broker.Topics(ctx)
	serving = make(map[string]struct{}, len(held.Serving))
	for _, name := range held.Serving {
		serving[name] = struct{}{}
	}
	if err == nil {
		return serving, held.Unreadable, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, t := range r.table {
		if t.Serving {
			serving[name] = struct{}{}
		}
	}
	return serving, nil, err
}

// seenServing takes a fence's listing for the view, so that what cannot be quiesced is
// known to be served.
func (r *Reconciler) seenServing(names map[string]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.clock++
	for name := range names {
		t := r.topic(name, now)
		t.changed = r.clock
		r.update(t, func(f *recovery.PlanFacts) { f.Serving, f.Quiesced = true, false })
	}
	r.changed(now)
}

// quiesceAll quiesces the topics and returns those that could not be, in order,
// with the error of the first.
func (r *Reconciler) quiesceAll(ctx context.Context, names []string) (left []string, first error) {
	next := make(chan string)
	var mu sync.Mutex
	failed := map[string]error{}
	var workers sync.WaitGroup
	for range min(r.concurrency(), len(names)) {
		workers.Go(func() {
			for name := range next {
				err := ctx.Err()
				if err == nil {
					err = r.broker.Withdraw(ctx, name)
				}
				r.fenced(name, err)
				if err != nil {
					mu.Lock()
					failed[name] = err
					mu.Unlock()
				}
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	workers.Wait()
	left = slices.Sorted(maps.Keys(failed))
	if len(left) > 0 {
		first = failed[left[0]]
	}
	return left, first
}

// fenced notes what a fence did to a topic.
func (r *Reconciler) fenced(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		result := resultError
		if errors.Is(err, context.DeadlineExceeded) {
			result = resultTimeout
		}
		r.metrics.count(actQuiesce, result)
		return
	}
	r.metrics.count(actQuiesce, resultOK)
	now := time.Now()
	t := r.topic(name, now)
	r.clock++
	t.changed = r.clock
	r.update(t, func(f *recovery.PlanFacts) { f.Serving, f.Quiesced = false, true })
	r.changed(now)
	r.settled()
}

// awaitLanded waits for the loads that were in flight and for the quiesce that
// follows each of them.
func (r *Reconciler) awaitLanded(ctx context.Context, late []*topic, landed chan struct{}) error {
	select {
	case <-landed:
	case <-ctx.Done():
		if len(late) == 0 {
			return nil // only quiesces: they do no harm
		}
		return fmt.Errorf("wait for loads in flight: %w", ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range late {
		if !t.undone {
			return fmt.Errorf("quiesce %s after the load that was in flight: not done, the topic may be served", t.name)
		}
	}
	return nil
}

// undo quiesces a topic that a load may have made the broker serve after a fence, though it is
// attached anew by then, and reports whether the broker does not serve it.
func (r *Reconciler) undo(f flight) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), f.bound)
	defer cancel()
	err := r.broker.Withdraw(ctx, f.topic.name)
	r.fenced(f.topic.name, err)
	if err != nil { // a load that did nothing may have left nothing to quiesce
		held, listErr := r.broker.Topics(ctx)
		if listErr == nil && !slices.Contains(held.Serving, f.topic.name) {
			return true
		}
		r.log.Error("a topic may be served after the fence", "topic", f.topic.name, "err", err)
	}
	return err == nil
}
