package agent

import (
	"cmp"
	"context"
	"errors"
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
