package probes

import "time"

// Verdict is what we hold of the broker's health. The zero value is Unknown.
type Verdict int

// The verdicts. Unknown is neither: no result yet, or what was known is void.
const (
	Unknown Verdict = iota
	Up
	Down
)

// String is the word used in status, logs and the journal.
func (v Verdict) String() string {
	switch v {
	case Up:
		return "up"
	case Down:
		return "down"
	default:
		return "unknown"
	}
}

// Judge turns single results into a verdict. It is pure: no clock, no goroutine.
//
//	Unknown, 1 success               → Up   (Rise successes if it was Down before the loss)
//	Unknown, Fall failures in a row  → Down
//	Up,      Fall failures in a row  → Down
//	Down,    Rise successes in a row → Up
//	any,     Lose                    → Unknown, both counts at zero
//	Down,    Skip                    → Unknown; every other stays what it is
//
// The exception in the first line keeps a broker that crashes again and again from
// looking healthy after each first answer: losing it while it is Down does not
// forgive the Rise that it owes.
type Judge struct {
	rise, fall int
	verdict    Verdict
	since      time.Time
	successes  int
	failures   int
	owesRise   bool
}

// Change is what one observation did to the verdict. From equals To when nothing changed.
type Change struct{ From, To Verdict }

// Changed is true when the verdict is another one than before.
func (c Change) Changed() bool { return c.From != c.To }

// NewJudge begins with Unknown at now. A rise or fall below one counts as one.
func NewJudge(rise, fall int, now time.Time) Judge {
	return Judge{rise: max(rise, 1), fall: max(fall, 1), since: now}
}

// Observe takes in one result.
func (j *Judge) Observe(ok bool, now time.Time) Change {
	from := j.verdict
	if ok {
		j.successes, j.failures = j.successes+1, 0
		need := 1
		if j.owesRise {
			need = j.rise
		}
		if j.verdict != Up && j.successes >= need {
			j.verdict, j.owesRise = Up, false
		}
	} else {
		j.successes, j.failures = 0, j.failures+1
		if j.verdict != Down && j.failures >= j.fall {
			j.verdict, j.owesRise = Down, true
		}
	}
	return j.moved(from, now)
}

// Skip takes in a result that says nothing of the broker's health, and yet that it is there: an
// Up stays. A Down was a silence, and is over.
func (j *Judge) Skip(now time.Time) Change {
	if j.verdict == Down {
		return j.Lose(now)
	}
	j.failures = 0
	return Change{From: j.verdict, To: j.verdict}
}

// Lose makes everything observed so far void: the broker that was asked is gone.
func (j *Judge) Lose(now time.Time) Change {
	from := j.verdict
	j.verdict, j.successes, j.failures = Unknown, 0, 0
	return j.moved(from, now)
}

func (j *Judge) moved(from Verdict, now time.Time) Change {
	if from != j.verdict {
		j.since = now
	}
	return Change{From: from, To: j.verdict}
}
