package agent

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
)

// readTogether is how far apart two readings of one moment may be.
const readTogether = time.Millisecond

// hostClocks reads the host's clocks together: if it was kept from running in
// between, it reads again.
func hostClocks() Clocks {
	for {
		mono := monotonic()
		c := Clocks{Boot: lease.BootClock(), Mono: mono, Wall: time.Now()}
		if monotonic()-mono < readTogether {
			return c
		}
	}
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return time.Duration(ts.Nano())
}

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
	news := compareClocks(*before, now)
	if news.raisesDoubt() {
		a.doubtAt(now.Boot, max(news.Jumped, 0))
		a.publish()
	}
	if d := news.Suspended; d > 0 {
		a.metrics.suspensions.Inc()
		detail := fmt.Sprintf("the host was suspended for %v; %s", d.Round(time.Millisecond), a.leaseAt(now.Boot))
		a.log.Warn("host was suspended: deadlines count on the boot clock, which ran on", "suspended_for", d, "detail", detail)
		a.event(Event{Kind: "agent", From: "suspended", To: "resumed", Reason: "suspension", Epoch: a.grant.Epoch, Detail: detail})
		if a.keeper.View().Phase == lease.Holding {
			a.keeper.Reestablish() // the next renewal is as late as we were: ask etcd now
		}
	}
	if d := news.Jumped; d != 0 {
		a.memory.Deadline = time.Time{} // by a clock that showed another time
		detail := fmt.Sprintf("the wall clock was moved by %v; %s", d.Round(time.Millisecond), a.leaseAt(now.Boot))
		a.keeper.RenewNow()
		a.log.Warn("wall clock was moved: deadlines count on the boot clock, which was not", "moved_by", d, "detail", detail)
		a.event(Event{Kind: "agent", To: "clock_jumped", Epoch: a.grant.Epoch, Detail: detail})
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
