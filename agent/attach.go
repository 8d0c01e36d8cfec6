package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// attach moves the attachment, and fences when it was lost.
func (a *agent) attach(verdict probes.Verdict) {
	v, now := a.keeper.View(), a.clock()
	if v.Losses > a.losses {
		a.losses = v.Losses
		a.metrics.lost(v.LostCause)
		a.event(Event{Kind: "registration", From: "held", To: "lost", Reason: v.LostCause, Epoch: a.grant.Epoch})
		a.grant = lease.Grant{}
	}
	contested := v.Phase == lease.Contested
	if contested != (a.conflict != "") {
		a.conflict = ""
		if contested {
			a.conflict = v.LastError
			a.log.Error("identity conflict", "err", v.LastError)
			a.event(Event{Kind: "registration", To: "contested", Reason: "identity_conflict", Detail: v.LastError})
		}
	}
	held := v.Validity.Known() && a.grant.LeaseID != 0
	failing := v.FailureStreak > 0
	unwell := !held || failing || v.Phase == lease.Paused || contested
	if unwell || a.unwell {
		a.healthySince = now
	}
	a.unwell = unwell
	next, why := recovery.NextAttachment(a.attachment, recovery.AttachFacts{
		Now: time.Duration(now), Held: held, FencePoint: time.Duration(v.Validity.FencePoint()),
		Failing: failing, Paused: v.Phase == lease.Paused, Contested: contested, Enabled: a.cfg.Detach,
		EverAttached: a.everAttached, HealthySince: time.Duration(a.healthySince),
		RecoverWindow: a.cfg.DetachmentRecoverWindow, Verified: a.verified,
	})
	if next == a.attachment {
		return
	}
	from := a.attachment
	a.attachment = next
	a.everAttached = a.everAttached || next == recovery.Attached
	level := a.log.Info
	if next != recovery.Attached {
		level = a.log.Warn
	}
	level("attachment", "from", from.String(), "to", next.String(), "reason", string(why), "epoch", a.grant.Epoch)
	a.event(Event{Kind: "attachment", From: from.String(), To: next.String(), Reason: string(why), Epoch: a.grant.Epoch, Detail: v.LastError})
	if next == recovery.Detached {
		a.verified, a.askedVerify = false, false
		a.metrics.detachments.WithLabelValues(string(why)).Inc()
		a.publish() // readiness is off from here on
		a.fence(v, verdict)
	}
}

func (a *agent) fences(step string) bool {
	return slices.Contains(a.cfg.Fence, step)
}

// fence is the ladder after a detachment: readiness is off already; then nothing
// may be served any more. It ends before the deadline if there is one to come.
func (a *agent) fence(v lease.View, verdict probes.Verdict) {
	a.reconciler.SetOrders(recovery.Orders{})
	if !a.fences("quiesce") || verdict == probes.Down {
		return
	}
	left := v.Validity.Deadline().Sub(a.clock())
	if !v.Validity.Known() || left <= 0 {
		left = 5 * time.Second
	}
	epoch := a.grant.Epoch
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, left)
		defer cancel()
		start := time.Now()
		n, err := a.reconciler.Fence(ctx)
		took := time.Since(start)
		a.metrics.fenceDuration.WithLabelValues("quiesce").Observe(took.Seconds())
		e := Event{Kind: "fence", To: "quiesced", Epoch: epoch,
			Detail: fmt.Sprintf("%s quiesced in %s", plural(n, "topic"), took.Round(time.Millisecond))}
		if err != nil {
			a.metrics.fenceFailures.WithLabelValues("quiesce").Inc()
			a.log.Error("fence step failed", "step", "quiesce", "quiesced", n, "err", err)
			e.To, e.Reason, e.Detail = "failed", "quiesce", err.Error()
		} else {
			a.log.Info("fenced", "step", "quiesce", "topics", n, "took", took.Round(time.Millisecond))
		}
		a.event(e)
	})
}
