package recovery

import "time"

// Bounds of a maintenance pause.
const (
	MinPause = time.Second
	MaxPause = 24 * time.Hour
)

// Waits reports whether a decision must wait for the end of a pause. What may go on
// is a registration that stands, in the mode that we had or that a person set, and the way
// back from a planned stop: somebody asked for it, and it recovers nothing.
func (d Decision) Waits(had ModeRecord) bool {
	if d.Planned {
		return false
	}
	switch d.Step {
	case Conflict:
		return false
	case Keep:
		return d.Write && d.Mode.Mode != had.Mode
	}
	return true
}

// HeldByPause reports whether a pause holds the topics of a broker in this mode. A
// person's drained is a person's word too, and the later one: it is carried out.
func (m ModeRecord) HeldByPause() bool { return m.Mode != Drained || m.By == ByHoldfast }

// Pause is a stretch of maintenance that ends by itself. Two clocks bound it, and
// the first to be over ends it: the wall clock, which people read, and the boot
// clock, which nobody can set back.
type Pause struct {
	Owner  string    `json:"owner"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until"`
	// BootID names the boot of the host that Ends counts in; empty: not known.
	BootID string        `json:"boot_id"`
	Ends   time.Duration `json:"ends"` // by the boot clock
}

// NewPause begins now and lasts d.
func NewPause(owner, reason string, d time.Duration, now time.Time, bootID string, clock time.Duration) Pause {
	at := now.Round(0).UTC() // without the monotonic reading, which a state file cannot hold
	return Pause{Owner: owner, Reason: reason, At: at, Until: at.Add(d), BootID: bootID, Ends: clock + d}
}

// Left is how long the pause still lasts; not positive: it is over.
func (p Pause) Left(now time.Time, bootID string, clock time.Duration) time.Duration {
	left := min(p.Until.Sub(now.Round(0)), p.Until.Sub(p.At))
	if p.BootID == bootID {
		left = min(left, p.Ends-clock)
	}
	return left
}

// Rebase lets the boot clock of another boot bound what is left.
func (p Pause) Rebase(now time.Time, bootID string, clock time.Duration) Pause {
	if p.BootID != bootID {
		p.Ends, p.BootID = clock+p.Left(now, bootID, clock), bootID
	}
	return p
}
