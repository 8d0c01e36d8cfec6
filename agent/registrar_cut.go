package agent

import (
	"cmp"
	"time"

	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the note of a cut: a broker that had no confirmed renewal for longer than it may
// serve says so in its member record, as soon as etcd answers, whether its registration outlived
// that or not. Whoever lost its own looks at the notes of the others (see registrar_suspect.go).
//
// Not guaranteed: that a loss is told from one of our own where the sidecar was restarted after it
// had seen the loss, or the wall clock was moved since, or the host went down before its last note
// was on the disk.

// lastConfirmed is our last confirmed renewal, or that of the sidecar before us; zero: what was
// noted of that last is not all that is remembered, or not when it was.
func (r *registrar) lastConfirmed(m memory) note.Confirmed {
	last := r.before
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
func (r *registrar) cutFrom(now life) time.Time {
	last := r.lastConfirmed(now.memory)
	if r.stood || last.Revision == 0 || time.Now().Before(last.Deadline.Add(-r.cfg.LeaseDetachMargin)) {
		return now.cutFrom
	}
	return last.Deadline.Add(-r.ttl())
}

// outlivedCut reports whether there is a cut to be noted: the registration is the one from
// before it.
func outlivedCut(seen cluster.Snapshot, now life) bool {
	return !now.cutFrom.IsZero() && seen.Registration != nil && seen.Registration.CreateRevision == now.memory.Epoch
}

// cutNote is the note that goes with a registration which is kept: a new one, or the one that
// stands in its record already.
func cutNote(seen cluster.Snapshot, now life) *cluster.Cut {
	switch {
	case outlivedCut(seen, now):
		return &cluster.Cut{From: now.cutFrom, Until: time.Now(), Revision: cmp.Or(now.cutOver, seen.Revision)}
	case seen.Member != nil && seen.Registration != nil && seen.Member.ModRevision >= seen.Registration.CreateRevision:
		return seen.Member.Cut
	}
	return nil
}

// noteCut remembers from when on etcd was not heard of, until that is noted in etcd.
func (a *agent) noteCut(why recovery.Why) {
	if why != recovery.WhyFencePoint && why != recovery.WhyLeaseLost {
		return
	}
	if a.cutOver = 0; !a.cutFrom.IsZero() {
		return
	}
	a.cutFrom = time.Now()
	if v := a.keeper.View().Validity; v.Known() {
		a.cutFrom = a.cutFrom.Add(-a.clock().Sub(v.SentAt))
	}
}

// noteCutOver has a cut noted that is over, and was not when its registration was looked at
// last. Until it can be, the revision of now stands for the end of the cut.
func (a *agent) noteCutOver() {
	if !a.cutFrom.IsZero() && a.cutOver == 0 {
		a.cutOver = a.keeper.View().Grant.Revision
		a.keeper.Reestablish()
	}
}
