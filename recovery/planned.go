package recovery

import (
	"fmt"
	"time"
)

// PlannedStop is the note of a broker that left on purpose: it was active, and served nothing
// any more. Nobody can have declared it dead. Or of one that crashed: it was declared dead by its own
// sidecar, and is back before anybody else would have.
type PlannedStop struct {
	At time.Time // by the clock of whoever noted it
	// Data is what it had then, Found what it has now; empty: not known, or not its own.
	Data, Found DataID
	// Crash: its process had ended, unplanned, and its registration was given up for that before
	// its lease ended. At is when that was noted.
	Crash bool
	// Unread says where the note stands and why it cannot be read; empty: it can.
	Unread string
}

// Return says how long a note counts.
type Return struct {
	Now    time.Time
	Ahead  time.Duration // a note that far in the future counts as of now: clocks differ
	Within time.Duration // --return-within
	Lease  time.Duration // for how long that of a crash counts: as long as the registration would have stood
	Pause  time.Time     // until when a maintenance pause lasts, if one does; zero: none
}

func (p PlannedStop) unread() string { return "the note of a planned stop cannot be read: " + p.Unread }

// Fits reports whether the note still counts, with a sentence that says why or why not.
func (p PlannedStop) Fits(r Return) (bool, string) {
	ago := r.Now.Sub(p.At).Round(time.Second)
	switch {
	case p.Unread != "":
		return false, p.unread()
	case p.At.After(r.Now.Add(r.Ahead)):
		return false, fmt.Sprintf("it left on purpose, but at %s, which is %s ahead of this clock", p.At.UTC().Format(time.RFC3339), -ago)
	case p.Data.another(p.Found):
		return false, fmt.Sprintf("it left on purpose, but the directory %s is not the one that held its data then", p.Found.within())
	case p.Crash && ago <= r.Lease:
		return true, fmt.Sprintf("its process ended at most %s ago, and its registration was given up for that", max(0, ago))
	case p.Crash:
		return false, fmt.Sprintf("its registration was given up for the end of its process, but %s ago, longer than the TTL %s", ago, r.Lease)
	case ago <= r.Within:
		return true, fmt.Sprintf("it left on purpose %s ago", max(0, ago))
	case !r.Now.After(r.Pause):
		return true, fmt.Sprintf("it left on purpose %s ago, and the maintenance pause is not over", ago)
	}
	return false, fmt.Sprintf("it left on purpose, but %s ago, longer than --return-within %s", ago, r.Within)
}
