package agent

import (
	"context"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the way back from a planned stop: what the registrar makes of the note in the
// member record.

// noted reports whether the member record holds a note of a planned stop, readable or not.
// Whoever takes the registration up takes it away, before clients come: left there it would
// excuse a crash that is still to come.
func noted(seen cluster.Snapshot) bool { return seen.Member != nil && seen.Member.Left != nil }

func plannedStop(seen cluster.Snapshot, found recovery.DataID) *recovery.PlannedStop {
	if !noted(seen) {
		return nil
	}
	left := seen.Member.Left
	return &recovery.PlannedStop{At: left.At, Data: recovery.DataID(left.Data), Found: found, Crash: left.Crash, Unread: left.Malformed}
}

// returning says how long a note counts from here.
func (r *registrar) returning() recovery.Return {
	back := recovery.Return{Now: time.Now(), Ahead: r.cfg.LeaseTTL, Within: r.cfg.ReturnWithin, Lease: r.ttl()}
	if r.pauseEnds != nil {
		back.Pause = r.pauseEnds()
	}
	return back
}

// recalled holds a process back that is to be stopped by the note of a sidecar before this one,
// which did not live to remember it.
func (r *registrar) recalled(ctx context.Context, seen cluster.Snapshot, now life) error {
	if !now.recalls || !noted(seen) || r.holder(seen, now.memory) == recovery.Another {
		return nil
	}
	note := seen.Member.Left
	left := leftProcess{Instance: note.Instance, At: note.At}
	if note.Malformed != "" || !note.Stop || note.Epoch != now.memory.Epoch || left.Instance != now.instance || left.rest(r.cfg) <= 0 {
		return nil
	}
	if r.recall != nil {
		r.recall(ctx, left)
	}
	return fmt.Errorf("%w: %s", lease.ErrDeferred, left.waits(r.cfg))
}

// leaves holds a take-up back while the departure of that very process is being noted, and
// after it: it would take the note away, and who is stopped then would not be excused. What
// is asked here was set before the note was begun, and etcd was looked at before that is
// asked: a take-up that saw no note is refused by the guard of the member record.
func (r *registrar) leaves(out outcome) error {
	if out.decision.Step == recovery.Conflict || !r.life().leaves {
		return nil
	}
	return fmt.Errorf("%w: the broker leaves on purpose", lease.ErrDeferred)
}
