package lease

import (
	"math/rand/v2"
	"time"
)

// backoff is a jittered exponential series. The zero failures give the first pause.
type backoff struct {
	initial, max time.Duration
	failures     int
}

// next returns the pause after one more failure: initial × 2^n, at most max, of
// which the last fifth is random so that a fleet does not come back in step.
func (b *backoff) next() time.Duration {
	d := b.max
	if b.failures < 16 {
		d = min(b.initial<<b.failures, b.max)
	}
	b.failures++
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// reset starts the series over.
func (b *backoff) reset() { b.failures = 0 }
