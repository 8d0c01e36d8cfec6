package probes

// Verdict is what we hold of the broker's health. The zero value is Unknown.
type Verdict int

// The verdicts. Unknown is neither: no result yet, or what was known is void.
const (
	Unknown Verdict = iota
	Up
	Down
)

// String is the word used in status, logs and the journal.
func (v Verdict) String() string { return [...]string{"unknown", "up", "down"}[v] }

// judge turns single results into a verdict. It is pure: no clock, no goroutine.
//
//	Unknown, 1 success               → Up   (rise successes if it was Down before the loss)
//	Unknown, fall failures in a row  → Down
//	Up,      fall failures in a row  → Down
//	Down,    rise successes in a row → Up
//	any,     lose                    → Unknown, both counts at zero
//	Down,    skip                    → Unknown; every other stays what it is
//
// The exception in the first line keeps a broker that crashes again and again from
// looking healthy after each first answer: losing it while it is Down does not
// forgive the rise that it owes.
type judge struct {
	verdict             Verdict
	successes, failures int // in a row
	owesRise            bool
}

// observe takes in one result.
func (j *judge) observe(ok bool, rise, fall int) {
	if !ok {
		j.successes, j.failures = 0, j.failures+1
		if j.failures >= fall {
			j.verdict, j.owesRise = Down, true
		}
		return
	}
	j.successes, j.failures = j.successes+1, 0
	if !j.owesRise || j.successes >= rise {
		j.verdict, j.owesRise = Up, false
	}
}

// skip takes in a result that says nothing of the broker's health, and yet that it is there: an
// Up stays. A Down was a silence, and is over.
func (j *judge) skip() {
	j.failures = 0
	if j.verdict == Down {
		j.lose()
	}
}

// lose makes everything observed so far void: the broker that was asked is gone.
func (j *judge) lose() { j.verdict, j.successes, j.failures = Unknown, 0, 0 }
