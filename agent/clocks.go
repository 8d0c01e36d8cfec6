package agent

import (
	"fmt"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
)

// noteClocks sees a suspension of the host and a step of its wall clock, before anything
// else is decided.
func (a *agent) noteClocks() {
	a.settleDoubt()
	now := a.world.Clocks()
	before := a.clocks.Load()
	defer a.clocks.Store(&now) // last: until the doubt is published, whoever asks sees the jump
	if before == nil {
		return
	}
	news := lease.CompareClocks(*before, now)
	if news.RaisesDoubt() {
		a.doubtAt(now.Boot, max(news.Jumped, 0))
		a.publish()
	}
	if d := news.Suspended; d > 0 {
		a.metrics.suspensions.Inc()
		detail := fmt.Sprintf("the host was suspended for %v; %s", d.Round(time.Millisecond), a.leaseAt(now.Boot))
		a.log.Warn("host was suspended: deadlines count on the boot clock, which ran on", "suspended_for", d, "detail", detail)
		a.event(control.Event{Kind: "agent", From: "suspended", To: "resumed", Reason: "suspension", Epoch: a.grant.Epoch, Detail: detail})
		if a.keeper.View().Phase == lease.Holding {
			a.keeper.Reestablish() // the next renewal is as late as we were: ask etcd now
		}
	}
	if d := news.Jumped; d != 0 {
		a.memory.Deadline = time.Time{} // by a clock that showed another time
		detail := fmt.Sprintf("the wall clock was moved by %v; %s", d.Round(time.Millisecond), a.leaseAt(now.Boot))
		a.keeper.RenewNow()
		a.log.Warn("wall clock was moved: deadlines count on the boot clock, which was not", "moved_by", d, "detail", detail)
		a.event(control.Event{Kind: "agent", To: "clock_jumped", Epoch: a.grant.Epoch, Detail: detail})
	}
}

// leaseAt says in a few words what the lease is worth at now.
func (a *agent) leaseAt(now lease.Instant) string {
	v := a.keeper.View().Validity
	switch {
	case !v.Known():
		return "no lease is held"
	case v.ExpiredAt(now):
		return fmt.Sprintf("the lease may have ended %v ago", now.Sub(v.Deadline()).Round(time.Millisecond))
	case !v.HeldAt(now):
		return fmt.Sprintf("the fence point is over, the lease ends in %v", v.Deadline().Sub(now).Round(time.Millisecond))
	}
	return fmt.Sprintf("the lease is valid for another %v", v.Deadline().Sub(now).Round(time.Millisecond))
}

// doubt is about the deadline: the host did not run for a while. A machine that was paused
// from outside shows it by its wall clock alone, and a clock that was set shows the same. So
// nothing goes on before a renewal is confirmed that was sent since. A clock that was set back
// in the same second by what it had lost, to within leastJump, shows nothing.
type doubt struct {
	since lease.Instant // 0: there is none
	lost  time.Duration // the time that the boot clock may not have counted
}

// doubted reports whether nothing may go on yet.
func (a *agent) doubted() bool { return a.doubt.since != 0 }

// doubtAt begins a doubt, or makes it a greater one. A store of our own is no judge: nobody
// else counts its time.
func (a *agent) doubtAt(now lease.Instant, lost time.Duration) {
	if a.presence == nil {
		a.doubt = doubt{now, a.doubt.lost + lost}
	}
}

// settleDoubt ends it with the first renewal that was sent after it began.
func (a *agent) settleDoubt() {
	if a.doubted() && a.keeper.View().Validity.SentAt >= a.doubt.since {
		a.doubt = doubt{}
	}
}

// uncounted is by how much the fence point is nearer than the boot clock tells. For as long
// as one attempt may take it is nothing: a clock that was set must not detach anybody.
// After that it counts, whether etcd has not answered or was not asked.
func (a *agent) uncounted() time.Duration {
	if !a.doubted() || a.clock() < a.countsFrom() {
		return 0
	}
	return a.doubt.lost
}

func (a *agent) countsFrom() lease.Instant { return a.doubt.since.Add(a.cfg.Timing().AttemptTimeout()) }

// jumpedSinceLoop reports whether the clocks went apart since the loop last ran, which may
// be about to find it out: what it found is in the view before this is false again.
func (a *agent) jumpedSinceLoop() bool {
	before := a.clocks.Load()
	if before == nil {
		return false
	}
	return lease.CompareClocks(*before, a.world.Clocks()).RaisesDoubt()
}
