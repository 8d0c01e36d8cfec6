package guard

import (
	"time"

	"holdfast/agent/lease"
)

// Look is the longest pause between two looks at the sidecar's word. The word moves
// later with each renewal, or is taken back; it is never given less than most of a TTL
// ahead of its moment, so a look this often cannot miss one.
const Look = 500 * time.Millisecond

// Points says when the guard begins to stop the broker and when it kills it. The
// sidecar's own ladder has from margin to margin/3 before the deadline for readiness,
// quiesce and stop. Then nothing but a dead or stuck sidecar can be the reason that the
// broker still serves. It has from margin/3 to margin/6 to end in an orderly way; the
// last sixth is for the kernel to end it and for both clocks to be a little wrong.
func Points(v lease.Validity) (stopAt, killAt lease.Instant) {
	return v.StopAt(), v.Deadline().Add(-v.Margin / 6)
}

// Orders are the sidecar's word, as one look saw them.
type Orders struct {
	StopAt  lease.Instant // 0: disarmed
	KillAt  lease.Instant
	Spent   lease.Instant // the StopAt that was acted upon already
	Goodbye bool
}

// patience is how long a stop that begins at now may take before the kill; not above 0:
// the time for that is over.
func (o Orders) patience(now lease.Instant) time.Duration { return o.KillAt.Sub(now) }

// Sight is what the guard sees at one moment.
type Sight struct {
	Orders
	Born     lease.Instant // when the broker's process started; 0: not known
	Gone     bool          // it has ended
	Orphaned bool          // the sidecar does not live
}

// armed reports whether there is a word about this process that was not acted upon. A
// process that started after the moment was not meant: the old one was stopped, by
// whomever, and if a new one could not live, no lease could be had for it.
func (s Sight) armed() bool { return s.StopAt > s.Born && s.StopAt != s.Spent }

// Do is what to do next.
type Do int

// What there is to do.
const (
	Wait  Do = iota // until Decision.Until, or until the process ends
	Stop            // the broker; then end
	Leave           // end, for Decision.Why
)

// Why says why a guard ended.
type Why string

// The reasons to end.
const (
	BrokerGone Why = "broker_gone"
	Farewell   Why = "goodbye"
	Orphaned   Why = "orphaned"    // disarmed, and there is no sidecar to arm it again
	Fired      Why = "guard_fired" // it stopped the broker
)

// Decision is the next thing to do.
type Decision struct {
	Do    Do
	Until lease.Instant // with Wait
	Why   Why           // with Stop and Leave
}

// Decide says what a guard does at now. It is asked again at the end of each wait, so
// one who was kept from running, or whose host was suspended, acts on the word as it is
// then.
func Decide(s Sight, now lease.Instant) Decision {
	switch {
	case s.Gone:
		return Decision{Do: Leave, Why: BrokerGone}
	case s.Goodbye:
		return Decision{Do: Leave, Why: Farewell}
	case !s.armed() && s.Orphaned:
		return Decision{Do: Leave, Why: Orphaned}
	case !s.armed():
		return Decision{Until: now.Add(Look)}
	case now < s.StopAt:
		return Decision{Until: min(s.StopAt, now.Add(Look))}
	}
	return Decision{Do: Stop, Why: Fired}
}
