package harness

import (
	"sync"
	"time"
)

const (
	stallTick  = 10 * time.Millisecond
	stallLeast = 20 * time.Millisecond // shorter ones are how every scheduler works
)

// stalls is when this process was late for its own ticks, and so the machine too busy, or
// halted, to measure time on.
var stalls struct {
	sync.Mutex
	all []stall
}

// stall is a span in which nothing ran here.
type stall struct{ from, to time.Time }

// WatchStalls notes how late this process is for its own ticks, until stop is called.
// Claims about time ("within a second of the heal") are judged by it; see StoodStill.
func WatchStalls() (stop func()) {
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(stallTick)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			now := time.Now()
			if now.Sub(last)-stallTick >= stallLeast {
				stalls.Lock()
				stalls.all = append(stalls.all, stall{last.Add(stallTick), now})
				stalls.Unlock()
			}
			last = now
		}
	}()
	return func() { close(ended); <-gone }
}

// StoodStill is for how long, in all, this process did not run between two moments,
// although it wanted to; zero if nobody watches. Another process will have waited about as
// long, so this much is not its fault. It is no excuse where safety is claimed: what was
// seen served after its deadline was served after its deadline.
func StoodStill(from, to time.Time) (sum time.Duration) {
	stalls.Lock()
	defer stalls.Unlock()
	for _, s := range stalls.all {
		if s.from.Before(from) {
			s.from = from
		}
		if s.to.After(to) {
			s.to = to
		}
		sum += max(0, s.to.Sub(s.from))
	}
	return sum
}

// Violation begins a message about a safety claim that was seen broken. A test that says
// so is never run once more: by whatever chance it came out, it is true.
const Violation = "VIOLATION: "

// ViolationBy is Violation where two moments that were seen in this process differ by more
// than it stood still between them; else it is empty: which came first is not known.
func ViolationBy(late time.Duration, from, to time.Time) string {
	if late > StoodStill(from, to) {
		return Violation
	}
	return ""
}
