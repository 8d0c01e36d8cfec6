package agent

import (
	"time"

	"holdfast/agent/lease"
)

const (
	// leastSuspension is the smallest lead of the boot clock that counts. Both clocks
	// are read one after the other, so a busy host shows a small one.
	leastSuspension = 100 * time.Millisecond
	// leastJump is the smallest step of the wall clock that counts. Slewing changes
	// it by half a millisecond in a second.
	leastJump = time.Second
)

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

// inDoubt is doubted for everybody else: it is safe for concurrent use, and sees a jump of the
// clocks before the loop does.
func (a *agent) inDoubt() bool {
	return a.presence == nil && (a.jumpedSinceLoop() || a.view.Load().doubted) // in this order
}

// jumpedSinceLoop reports whether the clocks went apart since the loop last ran, which may
// be about to find it out: what it found is in the view before this is false again.
func (a *agent) jumpedSinceLoop() bool {
	before := a.clocks.Load()
	if before == nil {
		return false
	}
	return compareClocks(*before, a.world.Clocks()).raisesDoubt()
}

// Clocks is one reading of the host's clocks, taken together.
type Clocks struct {
	Boot lease.Instant // runs on while the host is suspended; deadlines count on it
	Mono time.Duration // stands still then; Go's timers count on it
	Wall time.Time     // anybody may set it; nothing counts on it
}

// ahead is by how much the wall clock is ahead of the boot clock.
func (c Clocks) ahead() time.Duration { return time.Duration(c.Wall.UnixNano() - int64(c.Boot)) }

// clockNews is what happened between two readings. Zero: nothing.
type clockNews struct {
	Suspended time.Duration
	Jumped    time.Duration // of the wall clock; negative: backwards
}

// raisesDoubt reports whether the host may not have run. A wall clock that was set back may
// hide a pause: by how long, nothing tells.
func (n clockNews) raisesDoubt() bool { return n.Suspended > 0 || n.Jumped != 0 }

// compareClocks says what happened from one reading to the next.
func compareClocks(before, now Clocks) (news clockNews) {
	boot, mono := now.Boot.Sub(before.Boot), now.Mono-before.Mono
	if d := boot - mono; d >= leastSuspension {
		news.Suspended = d
	}
	// Round strips the monotonic reading, which would hide the jump.
	wall := now.Wall.Round(0).Sub(before.Wall.Round(0))
	if d := wall - boot; d >= leastJump || d <= -leastJump {
		news.Jumped = d
	}
	return news
}
