package agent

import (
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/agent/process"
)

// hostBoot names the host's present boot; empty: the host does not tell.
func (a *agent) hostBoot() string {
	if a.world.BootID != nil {
		return a.world.BootID()
	}
	boot, _ := process.BootID()
	return boot
}

// recallRenewal takes up until when the broker may serve by the word of an earlier sidecar.
func (a *agent) recallRenewal() {
	if a.shadow != nil || a.cfg.Unleased() { // neither holds a lease that anybody else knows
		return
	}
	now := a.world.Clocks()
	a.clocks.Store(&now)
	notes, last, was, doubt := note.Open(a.cfg.StateDir, a.hostBoot(), now, a.log)
	a.renewals = notes
	if a.memory.Epoch != 0 { // else it is of another store's, or nobody knows whose
		a.recalled = was
		a.memory.Confirm(was)
	}
	go notes.Run(a.life0)
	if doubt == nil {
		a.recall(last, now)
	} else if a.memory.Epoch != 0 && !a.memory.Released {
		a.log.Warn("the last renewal of the sidecar before this one is not known: the broker is fenced as soon as etcd fails to answer", "why", doubt)
	}
}

// recall takes the last renewal of the sidecar before this one for the former one's. What the
// host stood since counts as for one that ran meanwhile, see uncounted.
func (a *agent) recall(last note.Renewal, now lease.Clocks) {
	a.former = lease.Validity{SentAt: last.SentAt, TTL: last.TTL, Margin: a.cfg.LeaseDetachMargin}
	if lost := last.Lost(now); lost > 0 {
		a.doubtAt(now.Boot, lost)
		a.log.Warn("the wall clock was moved since the last renewal of the sidecar before this one: the host may have stood as long", "moved_by", lost)
	}
}

// wasRegistered reports whether the broker ever was, by this sidecar or by one before it. The
// state file may be lost, or older than the note.
func (a *agent) wasRegistered() bool { return a.memory.Epoch != 0 || a.former.Known() }

// formerFencePoint is when the broker of an earlier sidecar must be fenced.
func (a *agent) formerFencePoint() lease.Instant { return a.former.FencePoint().Add(-a.uncounted()) }

// noteRenewal has the last confirmed renewal noted. One that was sent before the clocks jumped
// is not: the note before it shows the jump.
func (a *agent) noteRenewal() {
	v, clocks := a.keeper.View(), a.clocks.Load()
	r := note.Renewal{LeaseID: v.Grant.LeaseID, SentAt: v.Validity.SentAt, TTL: v.Validity.TTL, Ahead: a.lastNoted.Ahead, Revision: v.Grant.Revision}
	switch {
	case !v.Validity.Known() && a.lastNoted == (note.Renewal{}):
		return // what the sidecar before this one noted is the last so far
	case !v.Validity.Known():
		r = note.Over
	case a.doubted():
		return
	case r != a.lastNoted && clocks != nil:
		r.Ahead = clocks.Ahead()
	}
	if a.renewals != nil && r != a.lastNoted {
		a.lastNoted = r
		a.renewals.Put(r)
	}
}

// noteFormer sees, until we were attached, whether the lease of an earlier sidecar is over:
// its fence point has passed. A process of the broker that was never registered, or that
// renews its lease itself, is left alone until etcd fails to answer: until then the
// registration is only a question away, unless a pause holds it back. So is every broker of
// which no renewal is known, and one whose registration was given up.
// Whatever is known, a TTL after our own start the lease is over for any process that may
// have had it, and another TTL later for every process: it waits for its registration no longer.
func (a *agent) noteFormer() {
	if a.formerOver || a.everAttached || !a.wasRegistered() {
		return
	}
	now := a.clock()
	switch {
	case now.Sub(a.begun) >= a.cfg.LeaseTTL-a.cfg.LeaseDetachMargin+a.patience():
	case !a.memory.Released && now < a.formerFencePoint():
		return
	case a.keeper.View().FailureStreak == 0 && !a.formerServes() && !a.paused():
		return
	}
	a.formerOver = true
}

// formerServes reports whether the process of the broker that was registered may serve: it
// has answered, or nobody has and it was not seen to end.
func (a *agent) formerServes() bool {
	if a.memory.Released || !a.former.Known() {
		return false
	}
	if who, id := a.identity.get(); id != "" {
		return who.Instance == a.memory.Instance
	}
	return a.served.Pid != 0 && !a.served.Gone()
}

// patience is for how long another process of the broker than the one that was registered may
// wait for its own registration, and one that has not answered yet where that was given up.
func (a *agent) patience() time.Duration {
	if who, _ := a.identity.get(); who.Instance == "" && a.memory.Released || who.Instance != "" && a.memory.Instance != "" && who.Instance != a.memory.Instance {
		return a.cfg.LeaseTTL
	}
	return 0
}

// wallAt is what the wall clock showed at a moment of the boot clock.
func (a *agent) wallAt(at lease.Instant) time.Time {
	if now := a.clocks.Load(); now != nil {
		return now.Wall.Add(-now.Boot.Sub(at)).Round(0)
	}
	return time.Now().Add(-a.clock().Sub(at)).Round(0)
}

// confirmed is our last confirmed renewal, as far as the Keeper still knows it.
func (a *agent) confirmed() note.Confirmed {
	v := a.keeper.View()
	c := note.Confirmed{Revision: v.Grant.Revision}
	if v.Validity.Known() {
		c.Deadline = a.wallAt(v.Validity.Deadline())
	}
	return c
}
