package topics

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/recovery"
)

// fly makes one call to the store. land takes its answer under the lock, if the orders
// still stand; the answer of older orders is dropped.
func (o *Ownership) fly(call func(ctx context.Context, s Standing) error, land func(err error, now time.Time)) {
	o.call.flying = true
	generation, parent, standing := o.generation, o.work, o.orders.Standing
	o.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(parent, lockTimeout)
		defer cancel()
		err := call(ctx, standing)
		o.mu.Lock()
		defer o.mu.Unlock()
		if generation != o.generation { // safety rule 9
			return
		}
		now := time.Now()
		o.call.flying = false
		land(err, now)
		o.poke()
	})
}

// noteCall paces the calls after a failure. A failed call says nothing about any lock
// (safety rule 4).
func (o *Ownership) noteCall(err error, now time.Time) {
	c := &o.call
	if err != nil {
		if c.failures == 0 {
			o.log.Warn("ownership locks cannot be asked for; trying again", "err", err, "epoch", o.orders.Epoch)
		}
		c.failures++
		c.notAt, c.lastErr = now.Add(backoff(c.failures, maxLockBackoff)), err.Error()
		return
	}
	if c.failures > 0 {
		o.log.Info("ownership locks can be asked for again", "failures", c.failures, "epoch", o.orders.Epoch)
	}
	c.failures, c.notAt, c.lastErr = 0, time.Time{}, ""
}

// startLocking takes, rebinds and releases.
func (o *Ownership) startLocking(asks []LockRequest) {
	for _, ask := range asks {
		l := o.table[ask.Topic]
		l.asked = true
		if l.State == recovery.LockForeign {
			o.metrics.attempts.Inc()
		}
		if ask.Step == recovery.LockRelease {
			// From now on nothing may rest on it, whatever becomes of the answer.
			o.learn(l, Lock{})
			l.doubt = true
		}
	}
	var answers []Lock
	o.fly(func(ctx context.Context, s Standing) (err error) {
		answers, err = o.store.Lock(ctx, s, asks)
		return err
	}, func(err error, now time.Time) {
		o.noteCall(err, now)
		waiting := 0
		for i, ask := range asks {
			l := o.table[ask.Topic]
			l.asked = false
			o.open[l] = struct{}{}
			if i >= len(answers) {
				if l.State != recovery.LockForeign { // that stays true until the store says otherwise
					o.learn(l, Lock{})
				}
				continue
			}
			o.answered(l, ask, answers[i], now)
			if l.over {
				waiting++
			}
		}
		if waiting > 0 && !o.warned {
			o.warned = true
			o.log.Warn("topics are held by another broker for longer than the retry window; they are asked for more rarely, the others go on",
				"topics", waiting, "window", o.settings.RetryWindow, "again", o.settings.AuditInterval, "epoch", o.orders.Epoch)
		}
	})
}

// answered takes what the store said of a lock after a request.
func (o *Ownership) answered(l *lock, ask LockRequest, k Lock, now time.Time) {
	switch {
	case ask.Step == recovery.LockRelease:
		l.doubt = false
		if k.State == recovery.LockFree {
			l.had = false
		}
	case ask.Step == recovery.LockRebind:
		l.doubt = false // a release of what was before can do nothing any more
	}
	o.learn(l, k)
	if k.State == recovery.LockForeign {
		o.refused(l, now)
		if l.again {
			l.next = now
		}
	}
	l.again = false
}

// learn takes what is known of a lock. One that a release may still hit is not relied on:
// it is to be written anew first.
func (o *Ownership) learn(l *lock, k Lock) {
	switch k.State {
	case recovery.LockFree, recovery.LockForeign:
		l.doubt = false // what a release would hit is gone
	case recovery.LockOurs:
		if l.doubt {
			k.State = recovery.LockStale
		} else {
			l.had, l.conflict = true, false
		}
	}
	if k.Owner != l.Owner {
		l.since, l.over, l.next = time.Time{}, false, time.Time{}
	}
	l.Lock = k
	o.open[l] = struct{}{}
}

// refused plans the next attempt at a lock that another holds.
func (o *Ownership) refused(l *lock, now time.Time) {
	if l.since.IsZero() {
		l.since = now
	}
	was := l.over
	w := recovery.RetryWindow{Every: o.settings.RetryInterval, Window: o.settings.RetryWindow, Slow: o.settings.AuditInterval}
	l.next, l.over = w.After(l.since, now)
	if l.over && !was && w.Window > 0 {
		o.metrics.exhausted.Inc()
	}
}

// startLooking reads locks that are not wanted and may be ours all the same.
func (o *Ownership) startLooking(topics []string) {
	for _, topic := range topics {
		o.table[topic].asked = true
	}
	var answers []Lock
	o.fly(func(ctx context.Context, s Standing) (err error) {
		answers, err = o.store.Look(ctx, s, topics)
		return err
	}, func(err error, now time.Time) {
		o.noteCall(err, now)
		for i, topic := range topics {
			l := o.table[topic]
			l.asked = false
			if err == nil {
				o.learn(l, answers[i])
			}
		}
	})
}

// startAudit asks which locks stand under our lease: of those that should and do not, and
// of those that do and are not known, the truth is to be found out.
func (o *Ownership) startAudit() {
	var topics []string
	o.fly(func(ctx context.Context, s Standing) (err error) {
		topics, err = o.store.Under(ctx, s)
		return err
	}, func(err error, now time.Time) {
		if err != nil {
			if o.auditsBad == 0 {
				o.log.Warn("ownership locks cannot be checked; trying again", "err", err, "epoch", o.orders.Epoch)
			}
			o.auditsBad++
			o.auditAt = now.Add(backoff(o.auditsBad, o.settings.AuditInterval))
			return
		}
		o.auditsBad = 0
		o.auditAt = now.Add(o.settings.AuditInterval)
		slices.Sort(topics)
		for topic, l := range o.table {
			if _, found := slices.BinarySearch(topics, topic); !found && l.State == recovery.LockOurs {
				o.log.Warn("an ownership lock that we held is not under our lease any more", "topic", topic, "epoch", o.orders.Epoch)
				o.learn(l, Lock{})
			}
		}
		for _, topic := range topics {
			l := o.lock(topic)
			if l.State != recovery.LockOurs {
				o.learn(l, Lock{})
			}
		}
	})
}

// following is the watch on locks that others hold.
type following struct {
	stop   context.CancelFunc // nil: none
	covers map[string]struct{}
}

// followWaiting watches exactly as long as there is a lock to wait for.
func (o *Ownership) followWaiting() {
	if !o.settings.Watch {
		return
	}
	var waiting []string
	fresh := 0
	for l := range o.open {
		if l.State == recovery.LockForeign {
			waiting = append(waiting, l.topic)
			if _, ok := o.follow.covers[l.topic]; !ok {
				fresh++
			}
		}
	}
	if len(waiting) > 0 && fresh == 0 {
		return
	}
	if o.follow.stop != nil {
		o.follow.stop()
		o.follow = following{}
	}
	if len(waiting) == 0 {
		return
	}
	slices.Sort(waiting)
	ctx, stop := context.WithCancel(o.work)
	o.follow = following{stop: stop, covers: make(map[string]struct{}, len(waiting))}
	for _, topic := range waiting {
		o.follow.covers[topic] = struct{}{}
	}
	generation := o.generation
	o.tasks.Go(func() {
		defer stop()
		err := o.store.FollowFree(ctx, waiting, func(topics []string) { o.freed(generation, topics) })
		if ctx.Err() == nil {
			o.log.Warn("ownership locks are not watched; they are asked for now and then", "err", err)
		}
	})
}

// freed has locks that went taken at once.
func (o *Ownership) freed(generation uint64, topics []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if generation != o.generation {
		return
	}
	for _, topic := range topics {
		switch l, ok := o.table[topic]; {
		case !ok:
		case l.asked:
			l.again = true // the answer in flight may be older than the news
		case l.State == recovery.LockForeign:
			o.learn(l, Lock{State: recovery.LockFree})
		}
	}
	o.poke()
}

type ownershipMetrics struct {
	attempts, exhausted, conflicts prometheus.Counter
}

// newOwnershipMetrics registers the metrics; reg may be nil.
func newOwnershipMetrics(reg prometheus.Registerer) *ownershipMetrics {
	f := promauto.With(reg)
	return &ownershipMetrics{
		attempts: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_acquire_retry_attempts_total",
			Help: "Attempts at ownership locks after the first was refused because another broker held the lock. A burst at a failover is normal.",
		}),
		exhausted: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_acquire_retry_window_exhausted_total",
			Help: "Topics whose ownership lock another broker held for longer than --acquire-retry-window. Growing: two brokers are assigned the same topics; see `holdfast topics`.",
		}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_ownership_conflicts_total",
			Help: "Topics held or served here whose ownership lock turned out to be another broker's; they are unloaded here at once. After an outage others may have taken over; otherwise find out who deletes locks.",
		}),
	}
}
