package probes

import "time"

// Beat is a row of moments, a second apart. What is looked at every few seconds is looked
// at on the beat: a process that sleeps pays for waking, hardly for what it wakes for, so
// what falls due within one second falls due together. The zero value has no beat.
type Beat struct{ from time.Time }

// NewBeat returns a beat that begins at from, which should carry Go's monotonic reading.
// Processes that begin at different moments keep different beats.
func NewBeat(from time.Time) Beat { return Beat{from} }

// Until returns how long to wait at now for what is due in d: d for what does not come in
// whole seconds; else, and never longer than d, to the beat.
func (b Beat) Until(d time.Duration, now time.Time) time.Duration {
	if b.from.IsZero() || d < time.Second || d%time.Second != 0 {
		return d
	}
	return d - now.Sub(b.from)%time.Second
}
