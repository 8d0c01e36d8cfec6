package agent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file tells a broker that the cluster declared dead from one that lost its registration
// together with others: a cut of about one TTL for everybody ends some leases and not others,
// by when each was renewed last. Whoever was cut off and kept the registration says so in its
// member record, as soon as etcd answers; whoever lost it looks at the others' records.
//
// A broker, or a sidecar, that was restarted meanwhile asks the same: what befell everybody
// drains nobody. But whoever was away for long finds all others registered anew, one after the
// other, by a cluster that lived on: it asks within two TTLs of its last renewal only, and where
// that is known by the note of each renewal.
//
// Not guaranteed: that those who lost theirs one by one, while a sidecar that ran on was cut off
// for long, are told from a loss at one time: there is no limit to how long, so it may be days.
// Nor that a loss is told from one of our own where the sidecar was restarted after it had seen
// the loss, or the wall clock was moved since, or the host went down before its last note was on
// the disk.

// lossSeen is one loss of the registration, as the registrar knows it.
type lossSeen struct {
	epoch  int64         // of the registration that was lost
	since  lease.Instant // when etcd first showed it
	looked bool          // at the others
	// settled: beside is what became of them. Nothing changes that any more.
	settled bool
	beside  recovery.SharedLoss
}

// noteLossSeen begins the time that others have to note that they were cut off as well.
func (r *registrar) noteLossSeen(seen cluster.Snapshot, m memory) {
	switch {
	case seen.Registration != nil && seen.Registration.CreateRevision == m.Epoch:
		r.loss = lossSeen{}
	case r.loss.since == 0 || r.loss.epoch != m.Epoch:
		r.loss = lossSeen{epoch: m.Epoch, since: r.clock()}
	}
}

// lossWait is how long others have for that: one renewal, and no less than what a renewal that
// failed is tried again after.
func (r *registrar) lossWait() time.Duration {
	return max(r.cfg.RenewInterval, 2*lease.RetryCeiling)
}

// compareLoss decides anew about a broker that would be drained or stopped for the loss of its
// registration, once it is known what became of the others. Until then it defers.
func (r *registrar) compareLoss(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life, out *outcome) error {
	if r.cfg.FleetLossShare == 0 || r.paused() || !r.comparable(seen, now.memory, out.decision.Row) {
		return nil
	}
	left := r.loss.since.Add(r.lossWait()).Sub(r.clock())
	if r.foretells { // by what others say now
		left = 0
	}
	if !r.loss.settled && r.loss.looked && left > 0 {
		return r.lossUnsettled(left)
	}
	if !r.loss.settled {
		beside, err := r.companions(ctx, client, seen, now.memory)
		if err != nil {
			return err
		}
		r.loss.looked, r.loss.beside = true, beside
		r.loss.settled = left <= 0 || r.hasty && out.boot != "" || beside.Looked == 0 || beside.Reaches(r.cfg.FleetLossShare)
	}
	if !r.loss.settled {
		r.askLater(left)
		return r.lossUnsettled(left)
	}
	*out = r.decide(seen, now)
	return nil
}

// comparable reports whether the row is that of a loss, and it is known when we were confirmed
// last.
func (r *registrar) comparable(seen cluster.Snapshot, m memory, row recovery.Reason) bool {
	switch row {
	case recovery.ReasonRegistrationExpired, recovery.ReasonSessionExpired, recovery.ReasonUnreadableRecord:
		if r.stood {
			return true
		}
	case recovery.ReasonStaleRestart:
		if m.Released || noted(seen) {
			return false // it had left before
		}
	default:
		return false
	}
	last := r.lastConfirmed(m)
	since := time.Since(last.Deadline.Add(-r.ttl()))
	return last.Revision != 0 && since >= 0 && since < 2*r.ttl()
}

// lastConfirmed is our last confirmed renewal, or that of the sidecar before us; zero: what was
// noted of that last is not all that is remembered, or not when it was.
func (r *registrar) lastConfirmed(m memory) confirmation {
	last := r.before
	if r.stood {
		last = confirmation{Revision: m.ConfirmedAt, Deadline: m.Deadline}
	}
	if last.Deadline.IsZero() || last.Revision != m.ConfirmedAt {
		return confirmation{}
	}
	return last
}

// besides is what became of the others, where that counts.
func (r *registrar) besides(seen cluster.Snapshot, m memory, row recovery.Reason) recovery.SharedLoss {
	if !r.comparable(seen, m, row) {
		return recovery.SharedLoss{}
	}
	return r.loss.beside
}

func (r *registrar) lossUnsettled(left time.Duration) error {
	return fmt.Errorf("%w: whether others lost their registrations at the same time, or were cut off, is known in %s",
		lease.ErrDeferred, formatDuration(max(left.Round(time.Second), time.Second)))
}

func (r *registrar) companions(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, m memory) (recovery.SharedLoss, error) {
	list, err := client.Companions(ctx, seen.Name, m.ConfirmedAt)
	if cluster.Denied(err) {
		return recovery.SharedLoss{Unknown: "etcd does not show their member records: grant this user read on " + client.Keys().Members()}, nil
	}
	if err != nil {
		return recovery.SharedLoss{}, err
	}
	beside := make([]recovery.Companion, len(list))
	for i, c := range list {
		b := recovery.Companion{ID: c.Name, Lost: c.Lost, Left: c.Planned, Unread: c.MemberMalformed}
		if c.Member != nil && c.Member.Cut != nil {
			b.BackAt, b.Unread = c.Member.Cut.Revision, c.Member.Cut.Malformed
		}
		if c.Member != nil && c.Member.Left != nil && !c.Member.Left.Crash {
			b.Left, b.Unread = true, cmp.Or(c.Member.Left.Malformed, b.Unread)
		}
		if b.Unread != "" {
			b.Unread = "the record of " + c.Name + " cannot be read: " + b.Unread
		}
		beside[i] = b
	}
	return recovery.CompareLoss(beside, m.ConfirmedAt), nil
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

// plannedNote is what stands in the record of a registration that is kept of a planned stop
// before it.
func plannedNote(seen cluster.Snapshot) int64 {
	if m := seen.Member; m != nil && seen.Registration != nil && m.ModRevision >= seen.Registration.CreateRevision {
		return m.Planned
	}
	return 0
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
