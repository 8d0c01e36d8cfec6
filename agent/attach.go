package agent

import (
	"cmp"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// attach moves the attachment. When it is lost, readiness goes off and the fence
// ladder begins before anything else happens.
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
			a.event(control.Event{Kind: "registration", To: "contested", Reason: "identity_conflict", Detail: v.LastError})
		}
	}
	validity := a.validity()
	held := v.Validity.Known() && a.grant.LeaseID != 0
	failing := v.FailureStreak > 0
	// Nothing fails while the host is suspended, and nothing is confirmed either.
	unwell := !held || failing || a.doubted() || v.Phase == lease.Paused || contested || !validity.HeldAt(now)
	if unwell || a.unwell {
		a.healthySince = now
	}
	a.unwell = unwell
	mustGo := a.mustGo()
	next, why := recovery.NextAttachment(a.attachment, recovery.AttachFacts{
		Now: time.Duration(now), Held: held, FencePoint: time.Duration(validity.FencePoint()) - a.uncounted(),
		Failing: failing, Paused: (v.Phase == lease.Paused || v.Phase == lease.Idle) && (held || v.Validity.ExpiredAt(now)), Contested: contested, Enabled: a.cfg.Detach,
		EverAttached: a.everAttached, HealthySince: time.Duration(a.healthySince),
		RecoverWindow: a.recoverWindow(), Verified: a.verified,
		HeldBack: a.fencing.underway == recovery.StepStop || a.circumstances(a.known).Holds(recovery.Attach), MustGo: mustGo != "", Left: a.departing.GivenUp(),
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
	a.event(control.Event{Kind: "attachment", From: from.String(), To: next.String(), Reason: string(why), Epoch: a.grant.Epoch, Detail: cmp.Or(mustGo, v.LastError)})
	if next == recovery.Attached {
		a.noteCutOver()
		a.dismissLeftGuard()
		a.endFencing()
	}
	if next == recovery.Detached {
		a.detachedBy = why
		a.noteCut(why)
		a.verified, a.askedVerify = false, false
		a.metrics.detachments.WithLabelValues(string(why)).Inc()
		began := time.Now()
		a.publish() // readiness is off from here on
		a.metrics.fenceDuration.WithLabelValues(string(recovery.StepReady)).Observe(time.Since(began).Seconds())
		a.order() // before the fence, which may drain the broker itself
		a.beginFencing(verdict)
	}
}

// recoverWindow is for how long all must be well. A broker that had left comes back from nothing that
// failed: while it waited a second planned stop could not be noted.
func (a *agent) recoverWindow() time.Duration {
	if a.detachedBy == recovery.WhyLeft {
		return 0
	}
	return a.settings().DetachmentRecoverWindow
}

// mustGo is why the broker's process must be stopped whatever its registration; empty: it need not.
func (a *agent) mustGo() string {
	if why := a.identity.mustGo.Load(); why != nil {
		return *why
	}
	return ""
}

// waitsToBeAttached reports whether the very process that is fenced is registered.
func (a *agent) waitsToBeAttached() bool {
	return a.fencing.instance != "" && a.fencing.instance == a.memory.Instance && a.registered()
}

// registered reports whether etcd showed the registration to be ours since the
// detachment, and it surely stands.
func (a *agent) registered() bool {
	now := a.clock()
	granted := lease.Validity{SentAt: a.grant.SentAt, TTL: a.grant.TTL, Margin: a.cfg.LeaseDetachMargin} // the keeper may not know of it yet
	return a.verified && a.grant.LeaseID != 0 && (granted.HeldAt(now) || a.keeper.View().Validity.HeldAt(now))
}

// noteLoss takes a registration for gone, once, whoever saw it first.
func (a *agent) noteLoss(cause string) {
	if a.grant.LeaseID == 0 {
		return
	}
	if cause != lease.CauseLeft {
		a.metrics.lost(cause)
	}
	a.event(control.Event{Kind: "registration", From: "held", To: "lost", Reason: cause, Epoch: a.grant.Epoch})
	a.remember(func(m *memory) { m.Confirm(a.confirmed()) })
	a.grant = lease.Grant{}
}

// lossCause says why a registration went that was not there any more.
func (a *agent) lossCause() string {
	v := a.keeper.View()
	switch {
	case a.departing.GivenUp():
		return lease.CauseLeft
	case !v.Validity.ExpiredAt(a.clock()) && a.presence == nil: // or the lease revoked; both by somebody else
		return "key_deleted"
	case v.Phase == lease.Paused, a.attachment == recovery.Detached && a.detachedBy == recovery.WhyBrokerDown:
		return "broker_down"
	}
	return "lease_expired"
}
