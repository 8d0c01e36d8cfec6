package recovery

import "time"

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
