package registration

import (
	"time"

	"holdfast/agent/note"
	"holdfast/cluster"
)

// This file is the note of a cut: a broker that had no confirmed renewal for longer than it may
// serve says so in its member record, as soon as etcd answers, whether its registration outlived
// that or not. Whoever lost its own looks at the notes of the others (see suspect.go).
//
// Not guaranteed: that a loss is told from one of our own where the sidecar was restarted after it
// had seen the loss, or the wall clock was moved since, or the host went down before its last note
// was on the disk.

// lastConfirmed is our last confirmed renewal, or that of the sidecar before us; zero: what was
// noted of that last is not all that is remembered, or not when it was.
func (r *Registrar) lastConfirmed(m Past) note.Confirmed {
	last := r.Before
	if r.stood {
		last = note.Confirmed{Revision: m.ConfirmedAt, Deadline: m.Deadline}
	}
	if last.Deadline.IsZero() || last.Revision != m.ConfirmedAt {
		return note.Confirmed{}
	}
	return last
}

// cutFrom is since when we were cut off, until that is noted. So was the broker of a sidecar that
// did not run for longer than it may serve.
func (r *Registrar) cutFrom(now Life) time.Time {
	last := r.lastConfirmed(now.Past)
	if r.stood || last.Revision == 0 || time.Now().Before(last.Deadline.Add(-r.Config.LeaseDetachMargin)) {
		return now.CutFrom
	}
	return last.Deadline.Add(-r.ttl())
}

// outlivedCut reports whether there is a cut to be noted: the registration is the one from
// before it.
func outlivedCut(seen cluster.Snapshot, now Life) bool {
	return !now.CutFrom.IsZero() && seen.Registration != nil && seen.Registration.CreateRevision == now.Past.Epoch
}
