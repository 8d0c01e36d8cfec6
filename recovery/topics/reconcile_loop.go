package topics

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast/recovery"
)

// planSpacing is the shortest time between two plans that changes of assignments
// ask for, so that ten thousand single puts are not ten thousand plans.
const planSpacing = 50 * time.Millisecond

// planning is when to plan.
type planning struct {
	asked bool
	at    time.Time // not before
	last  time.Time
	round uint64
}

// listing is when and how the broker is listed.
type listing struct {
	at      time.Time // when next; zero: now
	flying  bool
	again   bool // asked for while one was in flight
	fresh   bool // the view is of these orders, attached and not fenced since: it may be acted on
	ever    bool // this broker process was listed
	failing bool // the last listing failed
	worked  bool // something was done since the last listing began
	streak  int
	last    time.Time
	took    time.Duration

	unreadable []string // what the last one had that is no name here
}

func (l *listing) askAt(t time.Time) {
	if l.flying {
		l.again = true
	} else if t.Before(l.at) {
		l.at = t
	}
}

// Run reconciles until ctx ends, then ends what is in flight, waits for it, and
// returns nil. It is called once.
func (r *Reconciler) Run(ctx context.Context) error {
	r.begin(ctx)
	defer r.end()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.step())
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
	}
}

func (r *Reconciler) begin(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = ctx
	r.newGeneration()
	r.planSoon(time.Now())
}

func (r *Reconciler) end() {
	r.mu.Lock()
	r.newGeneration()
	r.mu.Unlock()
	r.tasks.Wait()
}

// step does everything that is due and returns how long the loop may sleep.
func (r *Reconciler) step() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.startListing(now)
	if r.plan.asked && !now.Before(r.plan.at) && r.list.fresh {
		r.makePlan(now)
	}
	r.requeueDue(now)
	r.judgeGate(now)
	r.startFetch(now)
	r.dispatch(now)
	r.judgePass(now)
	if r.changePending && now.Sub(r.lastChange) >= changeSpacing {
		r.signalChange(now)
	}
	r.armed = r.nextDue(now)
	return max(0, r.armed.Sub(now))
}

// nextDue is the earliest moment at which step has something to do by itself.
func (r *Reconciler) nextDue(now time.Time) time.Time {
	next := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	if r.changePending {
		sooner(r.lastChange.Add(changeSpacing))
	}
	if r.mayList() {
		sooner(r.list.at)
	}
	if !r.list.fresh {
		return next
	}
	if r.plan.asked {
		sooner(r.plan.at)
	}
	sooner(r.gateDue())
	if len(r.load.waiting) > 0 {
		sooner(r.load.waiting[0].retryAt)
	}
	for _, t := range []time.Time{r.load.rateAt, r.load.fetchAt} {
		if t.After(now) {
			sooner(t)
		}
	}
	return next
}

func (r *Reconciler) planSoon(now time.Time) {
	r.plan.asked, r.plan.at = true, now
}

func (r *Reconciler) planSpaced(now time.Time) {
	at := r.plan.last.Add(planSpacing)
	if at.Before(now) {
		at = now
	}
	if !r.plan.asked || at.Before(r.plan.at) {
		r.plan.asked, r.plan.at = true, at
	}
}

// makePlan asks Plan what to do and gives each topic its want.
func (r *Reconciler) makePlan(now time.Time) {
	r.plan.asked, r.plan.last = false, now
	w := recovery.Plan(recovery.PlanInput{
		Now: now, Orders: r.orders,
		Assigns: r.settings.Assigns, AssignedKnown: r.assignedKnown, MovesUnknown: !r.movesKnown, ServedKnown: r.list.fresh,
		Topics: func(yield func(string, recovery.PlanFacts) bool) {
			for name, t := range r.table {
				if !yield(name, t.PlanFacts) {
					return
				}
			}
		},
		MassChange: r.mass, Window: r.settings.AuditInterval, Share: r.settings.MassChangeShare,
	})
	r.noteMassChange(w.MassChange, now)
	if !w.Again.IsZero() {
		r.plan.asked, r.plan.at = true, w.Again
	}
	r.plan.round++
	for _, name := range w.Load {
		r.table[name].round = r.plan.round
	}
	for _, name := range w.Quiesce {
		r.table[name].round = r.plan.round
	}
	for _, t := range r.table {
		if t.round != r.plan.round {
			r.setWant(t, actNone)
		}
	}
	if len(w.Load)+len(w.Quiesce) > 0 {
		r.pass = cmp.Or(r.pass, now)
	}
	for _, name := range w.Quiesce {
		r.setWant(r.table[name], actQuiesce)
	}
	for _, name := range w.Load {
		r.setWant(r.table[name], actLoad)
	}
}

func (r *Reconciler) noteMassChange(m recovery.MassChange, now time.Time) {
	switch was := r.mass.Tripped(); {
	case !was && m.Tripped():
		r.log.Warn("mass-change guard tripped", "reason", string(m.Cause), "detail", m.Detail(), "epoch", r.orders.Epoch)
		r.changed(now)
	case was && !m.Tripped():
		r.log.Info("mass-change guard released", "reason", string(r.mass.Cause), "epoch", r.orders.Epoch)
		r.changed(now)
	}
	r.mass = m
}

func (r *Reconciler) mayList() bool {
	return r.orders.Attached && !r.afterFence && r.fencing == 0 && !r.list.flying
}

func (r *Reconciler) startListing(now time.Time) {
	if !r.mayList() || now.Before(r.list.at) {
		return
	}
	l := &r.list
	l.flying, l.again, l.worked = true, false, false
	l.last = now
	r.pass = cmp.Or(r.pass, now)
	generation, clock, parent, bound := r.generation, r.clock, r.work, r.settings.LoadTimeout
	r.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(parent, bound)
		defer cancel()
		held, err := r.broker.Topics(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.listed(generation, clock, held, err)
		r.poke()
	})
}

// listed takes the answer of a listing that began at the given generation and clock.
func (r *Reconciler) listed(generation, clock uint64, held Held, err error) {
	now := time.Now()
	l := &r.list
	l.flying, l.took = false, now.Sub(l.last)
	switch {
	case generation != r.generation: // safety rule 9: the answer to another question
		l.at = now
		return
	case err != nil:
		r.metrics.listings[resultError].Inc()
		l.streak++
		l.at = now.Add(backoff(l.streak, maxListBackoff))
		r.lastErr = fmt.Sprintf("list topics: %v", err)
		if !l.failing {
			r.log.Warn("the broker's topics cannot be listed; the last view is kept", "err", err, "epoch", r.orders.Epoch)
		}
		l.failing = true
		r.changed(now)
		return
	}
	r.metrics.listings[resultOK].Inc()
	if l.failing {
		r.log.Info("the broker's topics can be listed again", "failures", l.streak, "epoch", r.orders.Epoch)
	}
	l.failing, l.streak = false, 0
	l.at = now.Add(r.settings.AuditInterval)
	if l.again {
		l.again, l.at = false, now
	}
	l.fresh, l.ever = true, true
	r.applyListing(clock, held, now)
	r.settled()
	r.planSoon(now)
	r.changed(now)
}

// applyListing makes the broker's answer the view, except for topics that we
// changed after the question was asked. It forgets topics that nothing is left of.
func (r *Reconciler) applyListing(clock uint64, held Held, now time.Time) {
	r.sawUnreadable(held.Unreadable)
	r.plan.round++
	round := r.plan.round
	see := func(name string, isServing bool) {
		t := r.topic(name, now)
		t.round = round
		if t.changed <= clock {
			r.update(t, func(f *recovery.PlanFacts) { f.Serving, f.Quiesced = isServing, !isServing })
		}
	}
	for _, name := range held.Withdrawn {
		see(name, false)
	}
	for _, name := range held.Serving { // last: in doubt it is served
		see(name, true)
	}
	lostSince := r.mass.Since(now, r.settings.AuditInterval)
	for name, t := range r.table {
		t.unsure = t.unsure && t.changed > clock
		if t.round != round && t.changed <= clock {
			r.update(t, func(f *recovery.PlanFacts) { f.Serving, f.Quiesced = false, false })
		}
		counts := t.unsure || r.isElsewhere(t, r.assignedAt) || t.Held || t.Assigned || t.Claim == recovery.ClaimOurs || t.Serving || t.Quiesced || t.Lost && t.UnassignedAt.After(lostSince)
		if !counts && t.phase == phaseIdle {
			delete(r.table, name)
		}
	}
}

// sawUnreadable takes what the broker lists and we cannot name. It is told once.
func (r *Reconciler) sawUnreadable(names []string) {
	if slices.Equal(names, r.list.unreadable) {
		return
	}
	r.list.unreadable = names
	if len(names) > 0 {
		r.log.Warn("the broker lists what cannot be read: it is left alone", "entries", len(names), "first", names[0], "epoch", r.orders.Epoch)
		return
	}
	r.log.Info("everything that the broker lists can be read again", "epoch", r.orders.Epoch)
}

// judgePass ends the pass when the broker is as etcd asks, and has the broker
// listed once more after work, at a distance that follows what a listing costs.
func (r *Reconciler) judgePass(now time.Time) {
	if !r.assignedKnown || !r.movesKnown || r.load.wanting > 0 || len(r.load.flights) > 0 {
		return
	}
	if r.list.worked && !r.list.flying {
		r.list.worked = false
		r.list.askAt(r.list.last.Add(max(time.Second, 10*r.list.took)))
	}
	if r.orders.Paused && r.counts.Missing+r.counts.Orphan > 0 {
		return // not as etcd asks, only left alone
	}
	if r.pass.IsZero() || r.mass.Tripped() || r.list.failing || r.list.flying {
		return
	}
	r.metrics.duration.Observe(now.Sub(r.pass).Seconds())
	r.pass, r.success, r.lastErr = time.Time{}, now, ""
	if r.counts.Missing == 0 {
		r.lost.whole = max(r.lost.whole, r.lost.newest)
	}
	if r.loggedFailure {
		r.loggedFailure = false
		r.log.Info("no topic fails any more", "topics", r.counts.Assigned, "epoch", r.orders.Epoch)
	}
	r.changed(now)
}
