// Package probes finds out how things are: the broker's health, its process, its
// data directory. It also serves the probe endpoints. It reports and never acts.
//
// Guaranteed:
//   - Unknown is a verdict of its own. Nothing here turns an error, a timeout or a
//     missing answer into "down", "missing" or "gone" by itself.
//   - Every Run blocks until its context ends and leaves no goroutine behind but a health check
//     that is about to see that.
//   - Snapshots are immutable, cost one atomic load, and may be taken by anybody at
//     any time. Changes channels have room for one signal: a reader that comes late
//     sees one change, and reads the newest view.
//
// Not guaranteed: that a view is still true when it is read (HealthView.At bounds
// how old it may be); that each change in between is seen; that a file system that
// hangs lets a scan go on, so look at DirView.ScannedAt. Linux only.
package probes

import "time"

// UntilTick is the time to the next whole multiple of the period. A process that sleeps pays for
// waking, hardly for what it wakes for: what is due every second is due at the same moment.
func UntilTick(period time.Duration) time.Duration {
	return period - time.Duration(time.Now().UnixNano())%period
}

// Signal puts one value into a channel of capacity one, and drops it when a value
// waits there already: both mean "something changed since you last looked".
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
