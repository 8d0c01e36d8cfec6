package registration

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
func (r *Registrar) recalled(ctx context.Context, seen cluster.Snapshot, now Life) error {
	if !now.Recalls || !noted(seen) || r.holder(seen, now.Past) == recovery.Another {
		return nil
	}
	note := seen.Member.Left
	left := LeftProcess{Instance: note.Instance, At: note.At}
	if note.Malformed != "" || !note.Stop || note.Epoch != now.Past.Epoch || left.Instance != now.Instance || left.Rest(r.Config) <= 0 {
		return nil
	}
	if r.Recall != nil {
		r.Recall(ctx, left)
	}
	return fmt.Errorf("%w: %s", lease.ErrDeferred, left.Waits(r.Config))
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
func (r *Registrar) noteUnread(seen cluster.Snapshot) {
	what := unreadable(seen)
	if what != "" && what != r.unreadSaid {
		r.Log.Warn("a record in etcd cannot be read", "which", what, "hint", UnreadHint)
	}
	r.unreadSaid = what
}

// UnreadHint says how it is mended.
const UnreadHint = "the record of a broker is written anew when it registers; an era that cannot be read may be deleted: 'etcdctl del' with that key"
