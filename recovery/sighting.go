package recovery

import "time"

// Sighting is one answer about the lease of a peer's registration.
type Sighting struct {
	Peer  string
	Lease int64
	// Asked and Answered are the moments around it, by a clock that stands while the host is
	// suspended, as etcd's does.
	Asked, Answered time.Duration
	Left            time.Duration // until the lease ends, rounded down to the second
	Granted         time.Duration // what it has after a renewal; 0: not known
	// Unknown: etcd did not say when the lease ends.
	Unknown bool
	// Refused: etcd does not let us ask; why, in words for an operator. Empty: it does.
	Refused string
}

// least is how much of time must pass between two looks, so that a lease which ends is seen
// to sink: etcd answers in whole seconds.
const least = time.Second

// Apart is how far apart two looks have to be.
func Apart(renewal time.Duration) time.Duration { return max(renewal, least) }

// rose reports whether the lease was renewed between two looks: it is above where it would have
// sunk, and no lower than what a renewal in that time has left of it. One that stays at its end,
// because etcd is slow to delete it, was not, nor one that stands still anywhere else.
func rose(before, now Sighting) bool {
	passed, most := now.Asked-before.Answered, now.Answered-before.Asked
	return before.told() && now.told() && passed >= least && now.Left > 0 &&
		now.Left >= before.Left-passed/2 && now.Left > now.Granted-most-time.Second
}

// told reports whether etcd said when the lease ends.
func (s Sighting) told() bool { return !s.Unknown && s.Refused == "" }

// LeaseLook is one look at how long a lease still lasts.
type LeaseLook struct {
	Sent, Answered time.Duration // on a clock that does not jump
	Left           time.Duration // rounded down to the second
	Term           uint64        // raft term of the answer
}

// LooksApart is how long after a look the next one tells whether a lease is renewed each
// interval. Seconds are all that etcd tells, and a renewal may be a little late.
func LooksApart(interval time.Duration) time.Duration {
	return max(2*interval, interval+3*time.Second)
}

// Renewed reports whether the lease was renewed between two looks, if they tell. A leader
// change lifts each lease, renewed or not.
func Renewed(first, second LeaseLook, interval time.Duration) (renewed, known bool) {
	elapsed := second.Sent - first.Answered
	if first.Term != second.Term || elapsed < LooksApart(interval) {
		return false, false
	}
	return second.Left >= first.Left+time.Second-elapsed, true
}
