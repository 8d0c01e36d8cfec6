package agent

import (
	"fmt"
	"strings"

	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is about records in etcd that are there and cannot be read: the era, and this
// broker's member record. See recovery.Unread for what becomes of a broker that they matter to.
// Each is named, with its key, by whoever comes across it. The record of ours is written anew
// with the next registration, or beside the one that stands; the era stays as it is while
// somebody is registered.

// unread is what cannot be read of what a decision may rest on.
func (r *registrar) unread(seen cluster.Snapshot) recovery.Unread {
	u := recovery.Unread{Fleet: r.fleetUnread}
	if seen.MemberMalformed != "" {
		u.Record = "its member record cannot be read: " + seen.MemberMalformed
	}
	if seen.EraUnsure != "" {
		u.Era = fmt.Sprintf("the era cannot be read: %s; nor can each member record that would tell it: %s", seen.Era.Unread, seen.EraUnsure)
	}
	return u
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
const unreadHint = "the record of a broker is written anew when it registers; " +
	"an era is counted anew from the member records once its key is deleted: 'etcdctl del' with that key"
