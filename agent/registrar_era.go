package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/cluster"
	"holdfast/recovery"
)

// This file tells a restart of the whole cluster from a cluster that lived on without this
// broker and restarted later: both make the era grow. Who registers first in an era notes in
// its key until when it was alive before; whoever was longer, by more than a TTL, says so.
//
// Not guaranteed: that a broker which is the first to come back is told that others lived
// longer. And where etcd does not remember the revision any more at which they were last
// confirmed, two clocks decide, if they are further apart than clocks may be wrong.

// eraFacts are what is known of the fleet before the present era. A broker that was registered
// in this era has nothing to say of it.
func (r *registrar) eraFacts(seen cluster.Snapshot, m memory) recovery.EraFacts {
	f := recovery.EraFacts{Fleet: recovery.FleetAlive(seen.Era.Alive), Now: time.Now(), TTL: r.ttl()}
	if !seen.AnyRegistered || seen.Member != nil && seen.Member.Era < seen.Era.N {
		f.Ours = r.wasAlive(seen, m)
	}
	return f
}

// wasAlive is our last confirmed renewal, by our clock; zero: not known.
func (r *registrar) wasAlive(seen cluster.Snapshot, m memory) recovery.FleetAlive {
	if m.Deadline.IsZero() || seen.Revision < m.highest() {
		return recovery.FleetAlive{}
	}
	return recovery.FleetAlive{Until: m.Deadline.Add(-r.ttl()), Revision: m.ConfirmedAt}
}

// outlive finds out whether the fleet before the present era outlived us. An outage that left
// nobody registered is judged without that. Where our record cannot be read, it is not known
// that we were registered before this era; but then we were confirmed after it began.
func (r *registrar) outlive(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) error {
	r.outlived, r.fleetUnread = "", ""
	runs := now.memory.Instance == now.instance
	if seen.Registration != nil || runs && !seen.AnyRegistered {
		return nil
	}
	f, m, id := r.eraFacts(seen, now.memory), seen.Member, cmp.Or(seen.Former.BrokerID, seen.BrokerID)
	switch {
	case seen.MemberMalformed != "":
		f.Ours = r.wasAlive(seen, now.memory)
	case m == nil || m.Era >= seen.Era.N:
		return nil
	default: // it was registered then, though nobody may have noted that here
		f.Ours.Revision = max(f.Ours.Revision, m.ModRevision)
		id = cmp.Or(m.RegisteredAs, seen.BrokerID)
	}
	if seen.Era.Unread != "" && !f.Ours.Until.IsZero() {
		r.fleetUnread = "until when the fleet before its era was alive cannot be read: " + seen.Era.Unread
	}
	if !f.AsksStore() || f.Fleet.Revision > seen.Revision { // of no revision yet: no sign of life
		return nil
	}
	if left := plannedStop(seen, now.data); left != nil && left.Covers(f.Fleet.Until, r.returning()) {
		return nil // a cluster that was stopped one after the other
	}
	stood, err := client.RegisteredAt(ctx, id, f.Fleet.Revision)
	if f.Stood, f.Forgotten = stood, errors.Is(err, cluster.ErrCompacted); err != nil && !f.Forgotten {
		return err
	}
	r.outlived = f.Outlived()
	return nil
}

// aliveNote is what a registration notes of the fleet before its era; nil: nothing that is not
// known.
func (r *registrar) aliveNote(seen cluster.Snapshot, m memory) *cluster.Alive {
	note, ok := r.eraFacts(seen, m).Raise(!seen.AnyRegistered)
	if !ok {
		return nil
	}
	alive := cluster.Alive(note)
	return &alive
}

// What follows is about records in etcd that are there and cannot be read: the era, and this
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
