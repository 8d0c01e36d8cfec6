package recovery

import (
	"fmt"
	"time"
)

// massChangeFloor is the number of topics below which no change is a mass change:
// with few topics a large share is an ordinary day.
const massChangeFloor = 10

// MassCause says what made the mass-change guard trip.
type MassCause string

// The causes.
const (
	MassNone    MassCause = ""
	MassLost    MassCause = "assignments_lost" // many lost their assignment within one window
	MassOrphans MassCause = "orphans"          // many are served and were never assigned, as after a start
)

// MassChange is the guard against quiescing a broker because its assignments were
// deleted by mistake. It trips when at least ten topics and more than the set share
// lost their assignment within one sliding window, however slowly one by one, or
// when as many orphans are served at once. It stays tripped until a person confirms
// or until the assignments come back. The zero value has not tripped.
type MassChange struct {
	Cause MassCause
	Count int // topics concerned
	Of    int // topics that they are a share of, as it was when the guard tripped

	// ConfirmedAt is when a person last said that a mass change was meant. What had
	// lost its assignment until then is not held against a later change.
	ConfirmedAt time.Time

	from   time.Time // begin of the window at the trip: the window stays open while tripped
	cohort bool      // Of counts only what was assigned at the window's begin
}

// Tripped reports whether nothing may be quarantined.
func (m MassChange) Tripped() bool { return m.Cause != MassNone }

// Confirm lets what has happened until now proceed. It changes nothing unless the
// guard has tripped: nobody can confirm in advance what he has not seen.
func (m MassChange) Confirm(now time.Time) MassChange {
	if !m.Tripped() {
		return m
	}
	return MassChange{ConfirmedAt: now}
}

// Detail is one sentence with numbers and the next step; empty if not tripped.
func (m MassChange) Detail() string {
	const next = "nothing is quarantined until the assignments are back; if this is meant, run `holdfast confirm`"
	switch m.Cause {
	case MassLost:
		return fmt.Sprintf("%d of %d topics lost their assignment at once: %s", m.Count, m.Of, next)
	case MassOrphans:
		return fmt.Sprintf("%d of %d served topics are not assigned here: %s", m.Count, m.Of, next)
	default:
		return ""
	}
}

func (m MassChange) released() MassChange { return MassChange{ConfirmedAt: m.ConfirmedAt} }

// Since is the begin of the window in which losses count.
func (m MassChange) Since(now time.Time, window time.Duration) time.Time {
	if m.Cause == MassLost {
		return m.from
	}
	from := now.Add(-window)
	if m.ConfirmedAt.After(from) {
		return m.ConfirmedAt
	}
	return from
}

// massTally is what one pass over the topics says about losses.
type massTally struct {
	since      time.Time
	cohort     int // were assigned when the window began
	cohortLost int // of these, are not assigned now
	ever       int // are assigned, or were at some time in the window
	lost       int // of these, are not assigned now
	serving    int
	orphans    int // served, not assigned, and nobody has confirmed it
}

func (t *massTally) add(f PlanFacts, confirmed time.Time) {
	if f.Serving {
		t.serving++
		if !f.Assigned && f.UnassignedAt.After(confirmed) {
			t.orphans++
		}
	}
	lost := f.Lost && !f.Assigned && f.UnassignedAt.After(t.since)
	if !f.Assigned && !lost {
		return
	}
	before := !f.AssignedAt.After(t.since)
	t.ever++
	if before {
		t.cohort++
	}
	if lost {
		t.lost++
		if before {
			t.cohortLost++
		}
	}
}

// judge is the guard after a pass. Losses are measured twice: against what was
// assigned when the window began (so that a replacement of all topics by others
// counts), and against all that was assigned since (so that topics which came and
// went within the window count).
func (m MassChange) judge(t massTally, share float64) MassChange {
	mass := func(n, of int) bool {
		return share > 0 && n >= massChangeFloor && float64(n) > share*float64(of)
	}
	switch m.Cause {
	case MassLost:
		n := t.lost
		if m.cohort {
			n = t.cohortLost
		}
		if mass(n, m.Of) {
			m.Count = n
			return m
		}
		m = m.released()
	case MassOrphans:
		if mass(t.orphans, m.Of) {
			m.Count = t.orphans
			return m
		}
		m = m.released()
	}
	tripped := MassChange{ConfirmedAt: m.ConfirmedAt, from: t.since}
	switch {
	case mass(t.cohortLost, t.cohort):
		tripped.Cause, tripped.Count, tripped.Of, tripped.cohort = MassLost, t.cohortLost, t.cohort, true
	case mass(t.lost, t.ever):
		tripped.Cause, tripped.Count, tripped.Of = MassLost, t.lost, t.ever
	case mass(t.orphans, t.serving):
		tripped.Cause, tripped.Count, tripped.Of = MassOrphans, t.orphans, t.serving
	default:
		return m
	}
	return tripped
}
