package topics

import (
	"context"
	"slices"
	"time"

	"holdfast/recovery"
)

const (
	// lockBatch is how many locks one call is about, so that topics are loaded while
	// others are still being acquired.
	lockBatch = 500
	// lockTimeout bounds one call to the store.
	lockTimeout = 5 * time.Second
	// maxLockBackoff bounds the pause after a call that failed.
	maxLockBackoff = 5 * time.Second
	// slowGrouping is how much earlier than due a lock may be asked for after the retry
	// window, together with others.
	slowGrouping = time.Second
)

// calling is the one call to the store that is in flight.
type calling struct {
	flying   bool
	failures int       // in a row
	notAt    time.Time // not before, after a failure
	lastErr  string
}

// Run acquires and releases until ctx ends, then ends what is in flight, waits for it, and
// returns nil. Locks stay with their lease. It is called once.
func (o *Ownership) Run(ctx context.Context) error {
	o.begin(ctx)
	defer o.end()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(o.step())
		select {
		case <-ctx.Done():
			return nil
		case <-o.wake:
		case <-timer.C:
		case <-o.reconciler.Settlings():
			o.takeStrays()
		}
	}
}

func (o *Ownership) begin(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.base = ctx
	o.newGeneration()
}

func (o *Ownership) end() {
	o.mu.Lock()
	o.endWork()
	o.mu.Unlock()
	o.tasks.Wait()
}

// takeStrays has the owners of topics looked up that are served and not assigned here.
func (o *Ownership) takeStrays() {
	strays := o.reconciler.Strays()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, topic := range strays {
		o.lock(topic)
	}
}

// step does everything that is due and returns how long the loop may sleep.
func (o *Ownership) step() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	sleep := time.Hour
	if !o.orders.Attached || !o.wantedKnown {
		return sleep
	}
	sooner := func(at time.Time) {
		if !at.IsZero() {
			sleep = min(sleep, max(0, at.Sub(now)))
		}
	}

	o.tellClaims() // before anything is found idle: no load begins between that and a release
	todo := o.decide(now, sooner)
	if now.Before(o.call.notAt) {
		sooner(o.call.notAt)
		return sleep
	}
	if o.call.flying {
		return sleep
	}
	switch {
	case len(todo.asks) > 0:
		o.startLocking(todo.asks)
		return sleep
	case len(todo.looks) > 0:
		o.startLooking(todo.looks)
		return sleep
	}
	o.followWaiting()
	if now.Before(o.auditAt) {
		sooner(o.auditAt)
	} else {
		o.startAudit()
	}
	return sleep
}

// tellClaims has the reconciler know what may be loaded and what must go.
func (o *Ownership) tellClaims() {
	var told []TopicClaim
	for l := range o.open {
		c := recovery.ClaimOf(l.State, l.wanted && o.orders.Mode == recovery.Active, l.over)
		if l.yield && !c.Foreign() {
			c = recovery.ClaimYielded
		}
		if c != l.claim {
			l.claim = c
			told = append(told, TopicClaim{Topic: l.topic, Claim: c, Owner: l.Owner})
		}
	}
	o.reconciler.SetClaims(told)
	for _, topic := range o.reconciler.Conflicts() {
		if l, ok := o.table[topic]; ok {
			o.conflicted(l)
		}
	}
}

// todo is what a pass over the open locks asks for.
type todo struct {
	asks  []LockRequest
	looks []string
}

// decide asks DecideLock about every open lock, and closes those that are as they should
// be. Locks that others hold come last: there may be many, and most are held still.
func (o *Ownership) decide(now time.Time, sooner func(time.Time)) todo {
	var t todo
	var retries []LockRequest
	idle := o.idle()
	for l := range o.open {
		_, isIdle := idle[l.topic]
		facts := recovery.LockFacts{Lock: l.State, Attached: true, Serving: !isIdle, Wanted: o.mayServe(l, isIdle)}
		if l.State == recovery.LockForeign && l.had {
			if l.had = false; l.wanted {
				o.conflicted(l)
			}
		}
		if l.asked {
			continue
		}
		switch step := recovery.DecideLock(facts); step {
		case recovery.LockLeave:
			if !isIdle { // it is given away as soon as it is known not to be served
				continue
			}
			delete(o.open, l)
			if l.yield {
				signal(o.yields)
			}
			if !l.wanted {
				o.forget(l)
			}
		case recovery.LockKeep:
			delete(o.open, l)
		case recovery.LockUnload: // the reconciler says when it is done
		case recovery.LockLook:
			if len(t.looks) < lockBatch {
				t.looks = append(t.looks, l.topic)
			}
		case recovery.LockWait:
			at := l.next
			if l.over { // many of these in one call rather than on the dot
				at = at.Add(-slowGrouping)
			}
			if at.After(now) {
				sooner(l.next)
			} else if len(retries) < lockBatch {
				retries = append(retries, LockRequest{Topic: l.topic, Step: recovery.LockTake})
			}
		default: // take, rebind, release
			if len(t.asks) < lockBatch {
				t.asks = append(t.asks, LockRequest{Topic: l.topic, Step: step, Revision: l.Revision})
			}
		}
	}
	t.asks = append(t.asks, retries[:min(len(retries), lockBatch-len(t.asks))]...)
	return t
}

// idle is those of the open topics that are certainly not served here, as far as it
// matters for them.
func (o *Ownership) idle() map[string]struct{} {
	var matter []string
	for l := range o.open {
		if l.State == recovery.LockForeign || !l.wanted || l.yield || o.orders.Mode != recovery.Active {
			matter = append(matter, l.topic)
		}
	}
	if len(matter) == 0 {
		return nil
	}
	names := o.reconciler.Idle(matter)
	idle := make(map[string]struct{}, len(names))
	for _, name := range names {
		idle[name] = struct{}{}
	}
	return idle
}

// mayServe is whether the topic is to be served here in this mode. A draining broker takes
// nothing new, and a drained one serves nothing.
func (o *Ownership) mayServe(l *lock, idle bool) bool {
	return l.wanted && !l.yield && (o.orders.Mode == recovery.Active || o.orders.Mode == recovery.Draining && !idle)
}

// forget drops an entry of which nothing is left to know.
func (o *Ownership) forget(l *lock) {
	delete(o.table, l.topic)
	delete(o.open, l)
	if l.claim != recovery.ClaimPending { // of a topic that was another's
		o.reconciler.SetClaims([]TopicClaim{{Topic: l.topic, Claim: recovery.ClaimPending}})
	}
}

// conflicted tells of a topic that was held or served here and is another's.
func (o *Ownership) conflicted(l *lock) {
	if l.conflict {
		return
	}
	l.conflict = true
	o.conflicts++
	o.metrics.conflicts.Inc()
	if !o.told {
		o.told = true
		o.log.Warn("topics are owned by another broker; they are unloaded here",
			"topic", l.topic, "owner", l.Owner, "reason", "foreign_owner", "epoch", o.orders.Epoch)
	}
}

// Yield replaces the set of topics that are assigned here and on their way to another
// broker: they are unloaded, and after that their locks are released. Neither the settle
// time nor the mass-change guard applies, since we moved them ourselves.
func (o *Ownership) Yield(topics []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, l := range o.table {
		if yield := slices.Contains(topics, topic); yield != l.yield {
			l.yield = yield
			o.open[l] = struct{}{}
		}
	}
	o.poke()
}

// Yielded reports whether the topic is on its way, is not served here any more, and its
// lock is not ours as far as we know. One that is another's, such as an earlier
// incarnation's of this broker, is for the store to refuse until it is gone: nobody here
// waits for it.
func (o *Ownership) Yielded(topic string) bool {
	o.mu.Lock()
	l, ok := o.table[topic]
	released := ok && l.yield && (l.State == recovery.LockFree || l.State == recovery.LockForeign) && l.claim.Unloads()
	o.mu.Unlock()
	return released && len(o.reconciler.Idle([]string{topic})) == 1
}

// Yields receives a value when Yielded may have another answer. It has room for one.
func (o *Ownership) Yields() <-chan struct{} { return o.yields }
