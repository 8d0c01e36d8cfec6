package guard

import (
	"time"

	"holdfast/agent/lease"
)

const (
	// Look is the pause between two looks at the word of a sidecar that gave none, and the
	// least one otherwise. A word is never given less than most of a TTL ahead of its
	// moment, so a look this often cannot miss one.
	Look = 500 * time.Millisecond
	// Silence is for how long the sidecar's loop, which beats each second, may not have
	// beaten before whoever starts the broker again is on his own.
	Silence = 2 * time.Second
	// SeekEvery is the pause between two looks for a broker that was started again.
	SeekEvery = 250 * time.Millisecond
	// Grace is the time from the stop to the kill of a broker that was proven to serve
	// nothing when the word was given.
	Grace = 2 * time.Second
)

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
	Spent   lease.Instant // the StopAt at which the broker was stopped already
	Beat    lease.Instant // when the sidecar's loop last ran; 0: never
	Nap     time.Duration // for how long the word may be left unread; below Look: Look
	Goodbye bool
}

// Postponed is the word of a sidecar that has just proven that nothing is served: it is
// good until stopAt. It is never taken for an earlier moment than the word before.
func (o Orders) Postponed(stopAt lease.Instant) Orders {
	if stopAt > o.StopAt {
		o.StopAt, o.KillAt = stopAt, stopAt.Add(Grace)
	}
	return o
}

// patience is how long a stop that begins at now may take before the kill; not above 0:
// the time for that is over.
func (o Orders) patience(now lease.Instant) time.Duration { return o.KillAt.Sub(now) }

// silentFrom is when the sidecar's loop counts as silent, if it does not beat before.
func (o Orders) silentFrom() lease.Instant { return o.Beat.Add(Silence) }

// Sight is what the guard sees at one moment.
type Sight struct {
	Orders
	Born     lease.Instant // when the process that it holds had started; 0: it holds none, and has a stop command only
	Gone     bool          // that process has ended, and what is left of its group; or there is nothing to hold
	Orphaned bool          // the sidecar does not live
}

// due reports whether what the guard holds has to be stopped, the moment being here. A
// process that started after the moment was not meant: the old one was stopped, by
// whomever, and a sidecar whose loop runs sees to it that the new one serves nothing.
func (s Sight) due(now lease.Instant) bool {
	switch {
	case s.Gone:
		return false
	case s.Born == 0:
		return s.Spent != s.StopAt
	}
	return s.Born < s.StopAt || now >= s.silentFrom()
}

// Do is what to do next.
type Do int

// What there is to do.
const (
	Wait  Do = iota // until Decision.Until, or until the process ends
	Stop            // what the guard holds
	Seek            // look for a broker that somebody started again, and stop it; again at Decision.Until
	Leave           // end
)

// Fired is what an event says of a stop by the guard.
const Fired = "guard_fired"

// Decision is the next thing to do.
type Decision struct {
	Do    Do
	Until lease.Instant // with Wait and Seek
}

// Decide says what a guard does at now. It is asked again at the end of each wait, so
// one who was kept from running, or whose host was suspended, acts on the word as it is
// then.
func Decide(s Sight, now lease.Instant) Decision {
	nap := now.Add(max(s.Nap, Look))
	switch {
	case s.Goodbye, s.StopAt == 0 && s.Orphaned: // disarmed, and there is no sidecar to arm it again
		return Decision{Do: Leave}
	case s.StopAt == 0:
		return Decision{Until: now.Add(Look)}
	case now < s.StopAt:
		return Decision{Until: min(s.StopAt, nap)}
	case s.due(now):
		return Decision{Do: Stop}
	case now >= s.silentFrom(): // it stands: nobody fences what is started again
		return Decision{Do: Seek, Until: now.Add(SeekEvery)}
	}
	return Decision{Until: min(s.silentFrom(), nap)}
}
