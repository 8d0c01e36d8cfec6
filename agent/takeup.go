package agent

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/recovery"
)

// deliver has the loop take up what the registrar found, and waits until it did.
func (a *agent) deliver(ctx context.Context, o outcome) error {
	return a.inLoop(ctx, func() {
		a.takeUp(o)
		who, _ := a.identity.get()
		a.publishLife(who) // the Registrar may be asked again at once
	})
}

// takeUp makes an outcome ours. A loss that led to it is dealt with first, so that
// it fences even if the new registration stands already.
func (a *agent) takeUp(o outcome) {
	a.depart(recovery.DepartEvent{Kind: recovery.TakenUp})
	a.attach(a.verdict)
	d := o.decision
	if d.Step == recovery.Register && a.grant.LeaseID != 0 {
		a.noteLoss(a.lossCause()) // the registrar saw it before anybody else
		a.attach(a.verdict)
	}
	if o.boot != "" {
		a.boot = control.BootStatus{Kind: string(o.boot), Reason: string(d.Mode.Reason), Evidence: o.evidence}
		a.metrics.boots.WithLabelValues(string(o.boot), a.metrics.bootReason(d.Mode.Reason)).Inc()
		a.log.Info("broker boot", "kind", string(o.boot), "mode", string(d.Mode.Mode), "reason", string(d.Mode.Reason), "detail", d.Detail)
		why := decidedBy(d)
		why.Kind, why.To, why.Reason, why.Epoch = "boot", string(o.boot), string(d.Mode.Reason), o.grant.Epoch
		a.event(why)
	}
	if o.grant.Epoch != a.memory.Epoch || o.grant.LeaseID != a.grant.LeaseID {
		to := "held"
		if d.Step == recovery.Register {
			to = "registered"
		}
		a.log.Info(a.shadow.saying("registration"), "to", to, "lease", strconv.FormatInt(o.grant.LeaseID, 16), "ttl", o.grant.TTL, "epoch", o.grant.Epoch, "detail", d.Detail)
		a.event(control.Event{Kind: "registration", To: to, Epoch: o.grant.Epoch, Detail: d.Detail})
	}
	if o.former != "" {
		a.noteSuccession(o)
	}
	if o.repaired != "" {
		if o.grant.Adopted {
			a.metrics.adoptions.Inc()
		}
		if o.repaired == underItsOwn {
			a.log.Info(a.shadow.saying("registration adopted"), "was", o.repaired, "epoch", o.grant.Epoch)
		} else {
			a.log.Warn(a.shadow.saying("registration repaired"), "was", o.repaired, "epoch", o.grant.Epoch)
		}
		a.event(control.Event{Kind: "registration", From: o.repaired, To: "repaired", Epoch: o.grant.Epoch})
	}
	if o.unread != "" && o.unread != a.unread {
		a.event(control.Event{Kind: "registration", To: "unreadable_record", Epoch: o.grant.Epoch, Detail: o.unread})
	}
	a.unread = o.unread
	a.grant, a.value, a.verified, a.tookUp = o.grant, o.value, true, true
	if o.unsure == a.unsure {
		a.unsure = 0
	}
	if o.cutFrom.Equal(a.cutFrom) || d.Step == recovery.Register { // no cut is older than a registration
		a.cutFrom, a.cutOver = time.Time{}, 0
	}
	a.keyAt = cmp.Or(o.seenAt, o.grant.Revision)
	if a.traits.Registers {
		a.valueOf = o.instance
		a.handed.Store(nil)
		if a.ids.registered.set(o.instance) {
			a.early = nil // of the process before
		}
	}
	id := a.ids.registered.now()
	if (a.attachment == recovery.Detached || o.restored || o.succeeds) && a.relists {
		a.needAssignments(id, o.grant.Revision)
	}
	switch {
	case o.restored:
		a.log.Warn("etcd went back in time", "detail", d.Detail)
		a.modeRev = o.stateRevision // the store went back, and so does what is newest
		a.decideMode(d, o.stateRevision, o.boot != "")
	case a.mode.Mode == "" || o.stateRevision >= a.modeRev:
		a.decideMode(d, o.stateRevision, o.boot != "")
	default:
		// The watch knows a mode that is newer than what this was decided on.
	}
	a.suspect = d.Suspect != nil && a.mode == d.Mode // else somebody has written another since
	if early := a.early; early != nil {
		a.early = nil
		early()
	}
	if o.restored || o.data != "" && a.memory.Data != "" && o.data != a.memory.Data {
		a.forgetWhole()
	}
	a.remember(func(m *memory) {
		m.BrokerID, m.FirstBootDone, m.Distrust, m.Released, m.Left = a.brokerID, true, "", false, nil
		m.Instance, m.LeaseID, m.Epoch = o.instance, o.grant.LeaseID, o.grant.Epoch
		m.Boot, m.Data, m.Place = a.boot, o.data, a.place
		if a.traits.Registers {
			m.Value = o.value
		}
		m.Revision, m.ConfirmedAt = max(o.grant.Revision, o.stateRevision), o.grant.Revision
	})
	switch seen := a.seenKey; {
	case o.restored:
		a.seenKey = nil      // the store went back, and revisions with it
		a.noted = time.Now() // the Keeper still knows the revision of before
	case seen != nil && seen.id == id && seen.revision > a.keyAt:
		// The watch was faster than the answer: what it showed is newer than the outcome.
		a.registrationSeen(*seen)
	}
}

// noteSuccession tells that a process of the broker has taken over from the one before.
func (a *agent) noteSuccession(o outcome) {
	detail := fmt.Sprintf("the broker is registered as %s, and was as %s: %s handed over", o.instance, o.former, control.Plural(o.moved, "assignment"))
	a.log.Info(a.shadow.saying("succession"), "registered_as", o.instance, "former", o.former, "assignments", o.moved, "epoch", o.grant.Epoch)
	a.event(control.Event{Kind: "registration", From: o.former, To: "succeeded", Epoch: o.grant.Epoch, Detail: detail})
}

// keySeen is the registration as the watch last showed it; kv nil: gone.
type keySeen struct {
	id       string
	kv       *cluster.KV
	revision int64
}

// storeSeen has the Registrar look when etcd, which was listed anew, may be older than
// what a renewal told. The lease and the registration of a restored backup are ours as
// if nothing had been; what it says of owners may be old. A list that was overtaken by
// a renewal costs one more look.
func (a *agent) storeSeen(revision int64) {
	if revision < a.keeper.View().Grant.Revision {
		a.keeper.Reestablish()
	}
}

// registrationSeen takes up what the watch saw of the registration.
func (a *agent) registrationSeen(seen keySeen) {
	kv, revision := seen.kv, seen.revision
	if seen.id != a.ids.answering.now() {
		return // it was on its way when another process answered
	}
	a.metrics.present.Store(kv != nil)
	a.seenKey = &seen
	if a.undecided() { // of a process that has not registered itself yet nothing is lost
		if kv != nil {
			a.value, a.valueOf = kv.Value, seen.id
			a.keeper.Reestablish()
		}
		return
	}
	if kv == nil {
		gone := a.grant.LeaseID != 0 && revision > a.keyAt
		if gone {
			a.noteLoss(a.lossCause())
		}
		if gone || a.conflict != "" {
			a.keeper.Reestablish()
		}
		return
	}
	if a.cfg.Registration == "adopt" {
		a.value, a.valueOf = kv.Value, seen.id
		if revision > a.keyAt || kv.Lease != a.grant.LeaseID {
			a.keeper.Reestablish()
		}
		return
	}
	v, err := cluster.Registration{BrokerID: a.brokerID, Value: kv.Value}.Parse()
	ours := err == nil && v.Incarnation == a.memory.Incarnation && v.Run == a.run
	if a.grant.LeaseID == 0 || revision <= a.keyAt {
		return
	}
	if ours {
		a.value = kv.Value // somebody changed what is advertised: it stays
	}
	if !ours || kv.Lease != a.grant.LeaseID {
		a.keeper.Reestablish()
	}
}
