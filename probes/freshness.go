package probes

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Freshness remembers when something last ran, for a check that must cost nothing
// and take no lock: the loop it watches may be stuck holding one.
type Freshness struct {
	what string
	last atomic.Pointer[time.Time]
}

// NewFreshness begins as touched at now. what names the thing in errors: "agent loop".
func NewFreshness(what string, now time.Time) *Freshness {
	f := &Freshness{what: what}
	f.Touch(now)
	return f
}

// Touch records that it ran at now.
func (f *Freshness) Touch(now time.Time) { f.last.Store(&now) }

// Last is the time of the last Touch.
func (f *Freshness) Last() time.Time { return *f.last.Load() }

// Err is nil while the last Touch is at most bound ago. With times from time.Now
// the age is monotonic: neither a suspended host nor a wall clock that was set
// makes it fail.
func (f *Freshness) Err(now time.Time, bound time.Duration) error {
	if age := now.Sub(f.Last()); age > bound {
		return fmt.Errorf("%s has not run for %v", f.what, age.Round(time.Second))
	}
	return nil
}
