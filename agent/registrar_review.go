package agent

import (
	"context"
	"fmt"
	"time"

	"holdfast/cluster"
	"holdfast/recovery"
)

// This file reviews what was decided of a broker that could not wait for proof of life
// (see registrar_life.go): it was drained at once, by what stood, and serves after all when no
// other broker is seen to have lived on.
//
// Not guaranteed: that it does so where its sidecar or its broker is restarted meanwhile. Then
// the drain is as any other, and an operator lifts it.

// review is such a drain while it is looked at again.
type review struct {
	seen      cluster.Snapshot // and now: what it was decided on
	now       life
	instance  string // the broker's process
	mode      recovery.ModeRecord
	otherwise recovery.Decision // when nobody lived on
	epoch     int64             // of the registration since then
	state     int64             // the revision of the drain; 0: it was to be written, and is not known to be
	watch     *lifeWatch
	told      bool // the loop knows that it is looked at again
}

// stands takes up that the drain was written.
func (rv *review) stands(epoch, state int64) {
	rv.epoch, rv.state = epoch, state
	// Whoever registers from now on does so while the registration that we had is gone.
	rv.watch = &lifeWatch{epoch: rv.now.memory.Epoch, begun: time.Now(), since: rv.seen.Revision, gone: epoch - 1}
}

// found reports whether the drain stands though the answer to its write was lost.
func (rv *review) found(seen cluster.Snapshot) bool {
	s := seen.State
	return s != nil && seen.Registration != nil && seen.StateRevision > rv.seen.StateRevision &&
		s.Mode == string(rv.mode.Mode) && s.Reason == string(rv.mode.Reason) && s.By == rv.mode.By
}

// otherwise is what would have been decided if it were known that nobody lived on, of a broker that
// was not asked to wait for that, and whether it is another mode.
func (r *registrar) otherwise(seen cluster.Snapshot, now life, out outcome) (d recovery.Decision, another bool) {
	if !r.hasty && !r.adopting() || out.decision.Mode.Mode != recovery.Drained {
		return d, false
	}
	lived, how := r.lived, r.livedHow
	defer func() { r.lived, r.livedHow = lived, how }()
	r.lived, r.livedHow = recovery.Lingering, ""
	d = r.decide(seen, now).decision
	return d, d.Mode.Mode == recovery.Active
}

// meanReview is called before a drain is written, if proof of life would have had a say in it:
// its answer may be lost.
func (r *registrar) meanReview(seen cluster.Snapshot, now life, out outcome) {
	if d := out.decision; d.Review && d.Write {
		otherwise, _ := r.otherwise(seen, now, out)
		r.reviewed = &review{seen: seen, now: now, instance: out.instance, mode: d.Mode, otherwise: otherwise}
	}
}

// beginReview looks at the peers for the first time after such a drain was written.
func (r *registrar) beginReview(ctx context.Context, client *cluster.Client, out *outcome) {
	rv := r.reviewed
	if rv == nil || rv.state != 0 || !out.decision.Write {
		return
	}
	rv.stands(out.grant.Epoch, out.stateRevision)
	if r.watch(ctx, client, rv) == nil && r.lived != recovery.Unwatched {
		r.askLater(0)
	}
	r.tellReview(rv, &out.decision)
}

// tellReview has the decision say that it is looked at again.
func (r *registrar) tellReview(rv *review, d *recovery.Decision) {
	d.Review = true
	d.Detail += fmt.Sprintf("; by %s at the latest it is known whether they live: if none does, it is active again by itself",
		rv.watch.begun.Add(max(rv.watch.Until(), r.ttl())).UTC().Format(time.RFC3339))
}

// reviewDrain looks at the peers once more, and changes what was decided of a registration that
// stands when they tell that nobody lived on. What somebody else decided meanwhile stays.
func (r *registrar) reviewDrain(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, out *outcome) {
	rv, d := r.reviewed, &out.decision
	if rv == nil {
		return
	}
	if rv.state == 0 && rv.found(seen) {
		rv.stands(seen.Registration.CreateRevision, seen.StateRevision)
	}
	if rv.state == 0 || d.Step != recovery.Keep || out.instance != rv.instance || d.Write || seen.StateRevision != rv.state || seen.Registration.CreateRevision != rv.epoch {
		r.reviewed = nil
		return
	}
	if !rv.told {
		r.tellReview(rv, d)
	}
	if r.paused() {
		r.askLater(r.cfg.RenewInterval)
		return
	}
	if err := r.watch(ctx, client, rv); err != nil {
		return
	}
	switch r.lived {
	case recovery.Unwatched:
	case recovery.Lingering:
		*d = rv.otherwise
		d.Step, d.Write, d.Review = recovery.Keep, true, false
		d.Detail = "drained only until it was known whether other brokers lived on: " + r.livedHow
	default:
		d.Review = false
		r.log.Warn("the drain stands and waits for an operator: find out why, then 'holdfast activate'", "reason", string(d.Mode.Reason), "detail", r.livedHow)
		r.reviewed = nil
	}
}

// watch looks at the peers, and has us asked again as long as it is not known whether they live.
func (r *registrar) watch(ctx context.Context, client *cluster.Client, rv *review) error {
	r.peersSeen = rv.watch
	err := r.watchPeers(ctx, client, rv.seen, rv.now)
	if err != nil {
		r.log.Debug("whether other brokers live is not known yet", "err", err)
		r.askLater(recovery.Apart(r.cfg.RenewInterval))
	}
	return err
}

// askLater has us asked again after that time.
func (r *registrar) askLater(d time.Duration) {
	if r.later != nil {
		r.later(d)
	}
}
