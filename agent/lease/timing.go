package lease

import (
	"math/rand/v2"
	"time"
)

// Bounds of the renewal schedule. They come from the promise that a renewal is
// confirmed within a second of the moment that etcd can be reached again.
const (
	// RetryCeiling is the longest pause between the starts of two attempts while
	// the lease may still be alive. With settle it makes a second: an attempt that
	// left right before the heal and was refused is followed by one that has settle
	// left for its way there and back.
	RetryCeiling = time.Second - settle
	// MinAttemptTimeout keeps a short TTL from making every attempt too short.
	MinAttemptTimeout = 500 * time.Millisecond
	// settle is what a heal may cost beyond the retry: a new connection and two round
	// trips, the renewal's and its proof's, on a slow path.
	settle = 250 * time.Millisecond
)

// Timing is the effective schedule of one lease. Durations are positive.
type Timing struct {
	TTL            time.Duration // as granted by etcd, which raises small ones
	RenewInterval  time.Duration // between the sends of two renewals while all is well, at most
	Jitter         time.Duration // by up to this a renewal is sent sooner; 0: none is
	Margin         time.Duration // fence point = deadline − Margin
	BackoffInitial time.Duration // first pause after a failed attempt
	BackoffMax     time.Duration // longest pause once the lease may be gone
}

// AttemptTimeout bounds one keep-alive, and as much again the read that proves it: TTL/8,
// at least MinAttemptTimeout.
func (t Timing) AttemptTimeout() time.Duration {
	return max(t.TTL/8, MinAttemptTimeout)
}

// untilNext is the time from the send of a confirmed renewal of the lease to the next one. A
// fleet that was started at once, or comes back after a cut, renews inStep: the next renewals
// fall anywhere in the interval. It only ever shortens the interval, which the worst case
// counts with. The same lease and send give the same time.
func (t Timing) untilNext(leaseID int64, sentAt Instant, inStep bool) time.Duration {
	if t.Jitter <= 0 {
		return t.RenewInterval
	}
	most := t.Jitter
	if inStep {
		most = t.RenewInterval - t.Jitter
	}
	draw := rand.New(rand.NewPCG(uint64(leaseID), uint64(sentAt)))
	return t.RenewInterval - time.Duration(draw.Int64N(int64(most)))
}

// LongestRenewInterval leaves room for two attempts before the fence point: the
// second starts when the first has timed out and the first pause is over, at most
// RetryCeiling after the first, and may take its whole timeout. That is also
// room for a cut that does not detach: the two take longer than a heal may cost.
func (t Timing) LongestRenewInterval() time.Duration {
	return t.TTL - t.Margin - t.RetryAfter() - t.AttemptTimeout()
}

// RetryAfter is the longest time from the start of the first attempt that is not
// answered to the start of the second.
func (t Timing) RetryAfter() time.Duration {
	return min(t.AttemptTimeout()+t.BackoffInitial, RetryCeiling)
}

// SurvivesDetach is the longest cut, starting at any phase of the schedule, that
// does not detach the broker. When the cut starts, the last confirmed renewal was
// sent up to RenewInterval ago and the fence point is TTL − Margin after that send;
// after the heal the next confirmation takes at most RetryCeiling + settle.
// Zero or negative: even a short hiccup may detach.
func (t Timing) SurvivesDetach() time.Duration {
	return t.TTL - t.Margin - t.RenewInterval - RetryCeiling - settle
}

// SurvivesExpiry is the longest cut, starting at any phase, after which the
// registration is still in etcd.
func (t Timing) SurvivesExpiry() time.Duration {
	return t.TTL - t.RenewInterval - RetryCeiling - settle
}

// backoff is a jittered exponential series. The zero failures give the first pause.
type backoff struct {
	initial, max time.Duration
	failures     int
}

// next returns the pause after one more failure: initial × 2^n, at most max, of
// which the last fifth is random so that a fleet does not come back in step.
func (b *backoff) next() time.Duration {
	d := min(b.initial<<min(b.failures, 16), b.max)
	b.failures++
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// reset starts the series over.
func (b *backoff) reset() { b.failures = 0 }
