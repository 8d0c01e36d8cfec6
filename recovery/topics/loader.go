package topics

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"holdfast/recovery"
)

// Records are fetched recordBatch at a time, as soon as fewer than recordLow topics
// have theirs, so that loads need not wait for etcd.
const (
	recordBatch = 256
	recordLow   = 128
)

// flight is one call to the broker.
type flight struct {
	topic      *topic
	act        act
	record     []byte
	ctx        context.Context
	bound      time.Duration // of the call
	generation uint64
	fences     uint64 // fences that had begun when it took off
	retry      bool
}

// loading is the work under way. Each queue comes twice: fresh topics, and topics
// that failed before, so that these can never keep those waiting.
type loading struct {
	wanting  int // topics with a want
	pending  [2]queue
	ready    [2]queue
	quiesce  [2]queue
	waiting  dueHeap
	flights  map[*topic]flight
	loads    int // flights that load
	retrying int // flights that failed before
	landed   []chan struct{}

	readyLen int // upper bound of the loads that are ready
	fetching bool
	fetchAt  time.Time
	fetchBad int // failed fetches in a row
	rateAt   time.Time
}

// reset drops what is queued; flights stay until they land.
func (l *loading) reset() {
	l.pending, l.ready, l.quiesce = [2]queue{}, [2]queue{}, [2]queue{}
	l.readyLen, l.fetchAt, l.fetchBad, l.rateAt = 0, time.Time{}, 0, time.Time{}
}

// enqueue puts an idle topic in the queue of its want.
func (r *Reconciler) enqueue(t *topic) {
	switch t.want {
	case actLoad:
		t.phase = phasePending
		r.load.pending[lane(t)].push(t)
	case actQuiesce:
		t.phase = phaseReady
		r.load.quiesce[lane(t)].push(t)
	}
}

// requeueDue queues the topics whose retry is due.
func (r *Reconciler) requeueDue(now time.Time) {
	for len(r.load.waiting) > 0 && !r.load.waiting[0].retryAt.After(now) {
		r.enqueue(heap.Pop(&r.load.waiting).(*topic))
	}
}

// startFetch reads the next batch of records if few topics have theirs.
func (r *Reconciler) startFetch(now time.Time) {
	l := &r.load
	if l.fetching || l.readyLen >= recordLow || now.Before(l.fetchAt) {
		return
	}
	var batch []*topic
	for i := range l.pending {
		for len(batch) < recordBatch {
			t := l.pending[i].pop(phasePending)
			if t == nil {
				break
			}
			t.phase = phaseFetching
			batch = append(batch, t)
		}
	}
	if len(batch) == 0 {
		return
	}
	names := make([]string, len(batch))
	for i, t := range batch {
		names[i] = t.name
	}
	l.fetching = true
	generation, parent, bound := r.generation, r.work, r.settings.LoadTimeout
	r.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(parent, bound)
		defer cancel()
		records, err := r.records.Records(ctx, names)
		r.mu.Lock()
		defer r.mu.Unlock()
		l.fetching = false
		r.poke()
		if generation != r.generation { // safety rule 9
			return
		}
		r.fetched(batch, records, err)
	})
}

// fetched takes the records of a batch. A failed read leaves the topics as they
// were: it says nothing about them (safety rule 4).
func (r *Reconciler) fetched(batch []*topic, records map[string][]byte, err error) {
	l, now := &r.load, time.Now()
	if err != nil {
		if l.fetchBad == 0 {
			r.log.Warn("topic records cannot be read; loading waits", "topics", len(batch), "err", err, "epoch", r.orders.Epoch)
		}
		l.fetchBad++
		l.fetchAt = now.Add(backoff(l.fetchBad, maxListBackoff))
		r.lastErr = fmt.Sprintf("read topic records: %v", err)
		r.changed(now)
	} else if l.fetchBad > 0 {
		r.log.Info("topic records can be read again", "failures", l.fetchBad, "epoch", r.orders.Epoch)
		l.fetchBad = 0
	}
	for _, t := range batch {
		switch {
		case t.phase != phaseFetching: // it is not to be loaded any more
		case err != nil:
			r.enqueue(t)
		default:
			t.record = records[t.name]
			t.phase = phaseReady
			l.ready[lane(t)].push(t)
			l.readyLen++
		}
	}
}

// dispatch begins calls, as many as may be under way at a time.
func (r *Reconciler) dispatch(now time.Time) {
	for len(r.load.flights) < r.settings.Concurrency {
		f, ok := r.take(now)
		if !ok {
			return
		}
		r.tasks.Go(func() { r.serve(f) })
	}
}

// serve makes a call, and begins what may follow it.
func (r *Reconciler) serve(f flight) {
	err := r.call(f)
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.act == actLoad && f.fences != r.fences {
		r.mu.Unlock()
		undone := r.undo(f)
		r.mu.Lock()
		f.topic.undone = undone
	}
	now := time.Now()
	r.land(f, err, now)
	r.startFetch(now)
	r.dispatch(now)
	r.poke()
}

// take is the next call to make: first what must be quiesced, then fresh loads,
// then retries. Retries hold at most half of the workers, so that topics that hang
// leave room for the others.
func (r *Reconciler) take(now time.Time) (flight, bool) {
	if !r.list.fresh {
		return flight{}, false
	}
	l := &r.load
	mayRetry := l.retrying < max(1, r.settings.Concurrency/2)
	for i := range l.quiesce {
		if i == 1 && !mayRetry {
			break
		}
		if t := l.quiesce[i].pop(phaseReady); t != nil {
			return r.fly(t), true
		}
	}
	for i := range l.ready {
		if i == 1 && !mayRetry || l.ready[i].empty() {
			continue
		}
		if !r.mayLoad(now) {
			break
		}
		for !l.ready[i].empty() {
			before := len(l.ready[i].items) - l.ready[i].head
			t := l.ready[i].pop(phaseReady)
			l.readyLen -= before - (len(l.ready[i].items) - l.ready[i].head)
			if t != nil {
				return r.fly(t), true
			}
		}
	}
	return flight{}, false
}

// mayLoad takes one load from the rate, or notes when the next may begin.
func (r *Reconciler) mayLoad(now time.Time) bool {
	if r.limiter == nil {
		return true
	}
	reservation := r.limiter.ReserveN(now, 1)
	delay := reservation.DelayFrom(now)
	if delay <= 0 {
		return true
	}
	reservation.CancelAt(now)
	r.load.rateAt = now.Add(delay)
	return false
}

func (r *Reconciler) fly(t *topic) flight {
	f := flight{topic: t, act: t.want, record: t.record, ctx: r.work, bound: r.settings.LoadTimeout, generation: r.generation, fences: r.fences, retry: t.attempt > 0}
	t.phase, t.record, t.undone = phaseFlying, nil, false
	r.load.flights[t] = f
	if f.act == actLoad {
		r.load.loads++
	}
	if f.retry {
		r.load.retrying++
	}
	return f
}

// call makes the call, bounded by its timeout and by the orders it was begun under.
func (r *Reconciler) call(f flight) error {
	ctx, cancel := context.WithTimeout(f.ctx, f.bound)
	defer cancel()
	if f.act == actLoad {
		return r.broker.Serve(ctx, f.topic.name, f.record)
	}
	return r.broker.Withdraw(ctx, f.topic.name)
}

// land takes the result of a call, at a cost that does not depend on the number of
// topics. A result of older orders is dropped: whether the call did anything is not
// known, so the broker is listed again.
func (r *Reconciler) land(f flight, err error, now time.Time) {
	l, t := &r.load, f.topic
	delete(l.flights, t)
	if f.act == actLoad {
		l.loads--
	}
	if f.retry {
		l.retrying--
	}
	r.announceLanded()
	t.phase = phaseIdle
	r.clock++
	t.changed = r.clock
	r.changed(now)
	if f.act == actQuiesce {
		r.settled()
	}

	t.unsure = err != nil || f.generation != r.generation
	if t.unsure && !t.Claim.Loads() {
		r.list.askAt(now) // its lock is waited for
	}
	if f.generation != r.generation {
		r.metrics.count(f.act, resultDropped)
		r.setWant(t, actNone)
		r.list.askAt(now)
		return
	}
	if err != nil {
		r.failedCall(f, err, now)
		return
	}
	r.metrics.count(f.act, resultOK)
	r.noteAnew(f)
	r.update(t, func(facts *recovery.PlanFacts) {
		facts.Serving, facts.Quiesced = f.act == actLoad, f.act == actQuiesce
	})
	t.attempt = 0
	r.setError(t, "")
	r.list.worked = true
	r.gate.progress = now
	if t.want == f.act {
		r.setWant(t, actNone)
	} else { // it was planned without the outcome
		r.enqueue(t)
		r.planSpaced(now)
		r.wakeBy(r.plan.at)
	}
	r.judgeGate(now)
}

func (r *Reconciler) failedCall(f flight, err error, now time.Time) {
	t, result, text := f.topic, resultError, err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		result, text = resultTimeout, fmt.Sprintf("no answer to %s within %s", f.act, f.bound)
	}
	r.metrics.count(f.act, result)
	if !r.loggedFailure {
		r.loggedFailure = true
		r.log.Warn("a topic failed; it is retried, the others go on",
			"topic", t.name, "action", f.act.String(), "err", text, "epoch", r.orders.Epoch)
	}
	r.lastErr = fmt.Sprintf("%s %s: %s", f.act, t.name, text)
	switch t.want {
	case f.act:
		t.attempt++
		r.setError(t, text)
		t.refused = errors.Is(err, ErrRefused)
		most := maxCallBackoff
		if f.act == actQuiesce {
			most = maxQuiesceBackoff
		}
		t.phase, t.retryAt = phaseWaiting, now.Add(backoff(t.attempt, most))
		heap.Push(&r.load.waiting, t)
		r.wakeBy(t.retryAt)
	default:
		t.attempt = 0
		r.setError(t, "")
		r.enqueue(t)
	}
}

// announceLanded tells the fences that wait for flights older than they are.
func (r *Reconciler) announceLanded() {
	if len(r.load.landed) == 0 {
		return
	}
	for f := range maps.Values(r.load.flights) {
		if f.fences != r.fences {
			return
		}
	}
	for _, c := range r.load.landed {
		close(c)
	}
	r.load.landed = nil
}
