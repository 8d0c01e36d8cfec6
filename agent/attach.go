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
		a.noteLoss(v.LostCause)
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
		Failing: failing, Paused: v.Phase == lease.Paused || v.Phase == lease.Idle, Contested: contested, Enabled: a.cfg.Detach,
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
	if next == recovery.Attached {
		a.fenced, a.fenceAfter = "", time.Time{}
	}
	if next == recovery.Detached {
		a.detachedBy = why
		a.verified, a.askedVerify = false, false
		a.metrics.detachments.WithLabelValues(string(why)).Inc()
		began := time.Now()
		a.publish() // readiness is off from here on
		a.metrics.fenceDuration.WithLabelValues("ready").Observe(time.Since(began).Seconds())
		a.fenced, a.fenceAfter = "", time.Time{}
		a.reconciler.SetOrders(a.orders(false))
		a.fence(verdict)
	}
}

// noteLoss takes a registration for gone, once, whoever saw it first.
func (a *agent) noteLoss(cause string) {
	if a.grant.LeaseID == 0 {
		return
	}
	a.metrics.lost(cause)
	a.event(Event{Kind: "registration", From: "held", To: "lost", Reason: cause, Epoch: a.grant.Epoch})
	a.grant = lease.Grant{}
}

// lossCause says why a registration went that was not there any more.
func (a *agent) lossCause() string {
	v := a.keeper.View()
	switch {
	case v.Phase == lease.Paused, a.attachment == recovery.Detached && a.detachedBy == recovery.WhyBrokerDown:
		return "broker_down"
	case v.Validity.ExpiredAt(a.clock()):
		return "lease_expired"
	}
	return "key_deleted" // or the lease revoked; both by somebody else
}

// mustFence reports whether the broker may be serving what it must not: it is
// detached, and this process of it was not fenced yet. A sidecar that was restarted
// may find a broker that its predecessor registered; that one's lease is over when a
// TTL has passed without a confirmation.
func (a *agent) mustFence() bool {
	if !a.cfg.Detach || a.attachment != recovery.Detached || a.conflict != "" && !a.everAttached {
		return false
	}
	return a.everAttached || a.memory.Epoch != 0 && time.Since(a.started) >= a.cfg.LeaseTTL-a.cfg.LeaseDetachMargin
}

func (a *agent) fences(step string) bool {
	return slices.Contains(a.cfg.Fence, step)
}

// fenceRetry is the pause after a step of the ladder failed.
const fenceRetry = time.Second

// fence is the ladder while detached: readiness is off already; then nothing may be
// served any more. It ends before the deadline if there is one to come, and is begun
// anew until it succeeded, and for every process of the broker that comes up.
func (a *agent) fence(verdict probes.Verdict) {
	who, _ := a.identity.get()
	if !a.fences("quiesce") || verdict == probes.Down || a.fencing || a.fenced == who.Instance ||
		time.Now().Before(a.fenceAfter) || !a.mustFence() {
		return
	}
	v := a.keeper.View()
	left := v.Validity.Deadline().Sub(a.clock())
	if !v.Validity.Known() || left < fenceRetry {
		left = 5 * time.Second
	}
	a.fencing = true
	epoch := a.memory.Epoch
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, left)
		defer cancel()
		start := time.Now()
		n, err := a.reconciler.Fence(ctx)
		took := time.Since(start)
		a.metrics.fenceDuration.WithLabelValues("quiesce").Observe(took.Seconds())
		a.tell(a.life0, func() { a.noteFence(who.Instance, epoch, n, took, err) })
	})
}

func (a *agent) noteFence(instance string, epoch int64, topics int, took time.Duration, err error) {
	again := !a.fenceAfter.IsZero()
	a.fencing = false
	if err != nil {
		a.metrics.fenceFailures.WithLabelValues("quiesce").Inc()
		a.fenceAfter = time.Now().Add(fenceRetry)
		if !again {
			a.log.Error("fence step failed, trying again: stop the broker by hand if in doubt", "step", "quiesce", "quiesced", topics, "err", err)
			a.event(Event{Kind: "fence", To: "failed", Reason: "quiesce", Epoch: epoch, Detail: err.Error()})
		}
		return
	}
	a.fenced = instance
	a.log.Info("fenced", "step", "quiesce", "topics", topics, "took", took.Round(time.Millisecond))
	a.event(Event{Kind: "fence", To: "quiesced", Epoch: epoch,
		Detail: fmt.Sprintf("%s quiesced in %s", plural(topics, "topic"), took.Round(time.Millisecond))})
}
