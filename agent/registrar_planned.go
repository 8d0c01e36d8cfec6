package agent

import (
	"context"
	"fmt"
	"strings"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the way back from a planned stop: what the registrar makes of the note in the
// member record, and of records that cannot be read.

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

// unreadable names what cannot be read of the era and of this broker, and where it stands;
// empty: all of it can.
func unreadable(seen cluster.Snapshot) string {
	var each []string
	if seen.MemberMalformed != "" {
		each = append(each, "member record "+seen.MemberMalformed)
	}
	if m := seen.Member; m != nil && m.Left != nil && m.Left.Malformed != "" {
		each = append(each, "note of a planned stop "+m.Left.Malformed)
	}
	if seen.Era.Unread != "" {
		each = append(each, "era "+seen.Era.Unread)
	}
	return strings.Join(each, "; ")
}

// noteUnread says once what cannot be read, also where nothing comes of the look.
func (r *registrar) noteUnread(seen cluster.Snapshot) {
	what := unreadable(seen)
	if what != "" && what != r.unreadSaid {
		r.log.Warn("a record in etcd cannot be read", "which", what, "hint", unreadHint)
	}
	r.unreadSaid = what
}

// unreadHint says how it is mended.
const unreadHint = "the record of a broker is written anew when it registers; an era that cannot be read may be deleted: 'etcdctl del' with that key"
