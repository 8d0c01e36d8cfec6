package agent

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/recovery"
)

// deliver has the loop take up what the registrar found, and waits until it did. Without an etcd, what an
// operator changed since it was decided is cluster.ErrChanged, and nothing is taken up.
func (a *agent) deliver(ctx context.Context, o registration.Outcome) error {
	changed, wait := false, a.inLoop
	if a.presence != nil {
		wait = a.await
	}
	err := wait(ctx, func() {
		if a.presence != nil {
			if changed = a.modeRev != o.ModeRev; changed {
				return
			}
			a.presence.Well(o.Grant.SentAt)
			a.metrics.present.Store(true)
		}
		a.takeUp(o)
		who, _ := a.identity.get()
		a.publishLife(who) // the Registrar may be asked again at once
	})
	if err == nil && changed { // on an error the loop may still be writing it
		err = cluster.ErrChanged
	}
	return err
}

// takeUp makes an outcome ours. A loss that led to it is dealt with first, so that
// it fences even if the new registration stands already.
func (a *agent) takeUp(o registration.Outcome) {
	a.depart(recovery.DepartEvent{Kind: recovery.TakenUp})
	a.attach(a.verdict)
	d := o.Decision
	if d.Step == recovery.Register && a.grant.LeaseID != 0 {
		a.noteLoss(a.lossCause()) // the registrar saw it before anybody else
		a.attach(a.verdict)
	}
	if o.Boot != "" {
		a.boot = control.BootStatus{Kind: string(o.Boot), Reason: string(d.Mode.Reason), Evidence: o.Evidence}
		a.metrics.boots.WithLabelValues(string(o.Boot), a.metrics.bootReason(d.Mode.Reason)).Inc()
		a.log.Info("broker boot", "kind", string(o.Boot), "mode", string(d.Mode.Mode), "reason", string(d.Mode.Reason), "detail", d.Detail)
		why := decidedBy(d)
		why.Kind, why.To, why.Reason, why.Epoch = "boot", string(o.Boot), string(d.Mode.Reason), o.Grant.Epoch
		a.event(why)
	}
	if o.Grant.Epoch != a.memory.Epoch || o.Grant.LeaseID != a.grant.LeaseID {
		to := "held"
		if d.Step == recovery.Register {
			to = "registered"
		}
		a.log.Info(a.shadow.saying("registration"), "to", to, "lease", strconv.FormatInt(o.Grant.LeaseID, 16), "ttl", o.Grant.TTL, "epoch", o.Grant.Epoch, "detail", d.Detail)
		a.event(control.Event{Kind: "registration", To: to, Epoch: o.Grant.Epoch, Detail: d.Detail})
	}
	if o.Former != "" {
		a.noteSuccession(o)
	}
	if o.Repaired != "" {
		if o.Grant.Adopted {
			a.metrics.adoptions.Inc()
		}
		if o.Repaired == registration.UnderItsOwn {
			a.log.Info(a.shadow.saying("registration adopted"), "was", o.Repaired, "epoch", o.Grant.Epoch)
		} else {
			a.log.Warn(a.shadow.saying("registration repaired"), "was", o.Repaired, "epoch", o.Grant.Epoch)
		}
		a.event(control.Event{Kind: "registration", From: o.Repaired, To: "repaired", Epoch: o.Grant.Epoch})
	}
	if o.Unread != "" && o.Unread != a.unread {
		a.event(control.Event{Kind: "registration", To: "unreadable_record", Epoch: o.Grant.Epoch, Detail: o.Unread})
	}
	a.unread = o.Unread
	a.grant, a.value, a.verified, a.tookUp = o.Grant, o.Value, true, true
	if o.Unsure == a.unsure {
		a.unsure = 0
	}
	if o.CutFrom.Equal(a.cutFrom) || d.Step == recovery.Register { // no cut is older than a registration
		a.cutFrom, a.cutOver = time.Time{}, 0
	}
	a.keyAt = cmp.Or(o.SeenAt, o.Grant.Revision)
	if a.traits.Registers {
		a.valueOf = o.Instance
		a.handed.Store(nil)
		if a.ids.registered.set(o.Instance) {
			a.early = nil // of the process before
		}
	}
	id := a.ids.registered.now()
	if (a.attachment == recovery.Detached || o.Restored || o.Succeeds) && a.relists {
		a.needAssignments(id, o.Grant.Revision)
	}
	switch {
	case o.Restored:
		a.log.Warn("etcd went back in time", "detail", d.Detail)
		a.modeRev = o.StateRevision // the store went back, and so does what is newest
		a.decideMode(d, o.StateRevision, o.Boot != "")
	case a.mode.Mode == "" || o.StateRevision >= a.modeRev:
		a.decideMode(d, o.StateRevision, o.Boot != "")
	default:
		// The watch knows a mode that is newer than what this was decided on.
	}
	a.suspect = d.Suspect != nil && a.mode == d.Mode // else somebody has written another since
	if early := a.early; early != nil {
		a.early = nil
		early()
	}
	if o.Restored && a.moves != nil {
		a.moves.Forget()
	}
	if o.Restored || o.Data != "" && a.memory.Data != "" && o.Data != a.memory.Data {
		a.forgetWhole()
	}
	a.remember(func(m *memory) {
		m.BrokerID, m.FirstBootDone, m.Distrust, m.Released, m.Left = a.brokerID, true, "", false, nil
		m.Instance, m.LeaseID, m.Epoch = o.Instance, o.Grant.LeaseID, o.Grant.Epoch
		m.Boot, m.Data, m.Place = a.boot, o.Data, a.place
		if a.traits.Registers {
			m.Value = o.Value
		}
		m.Revision, m.ConfirmedAt = max(o.Grant.Revision, o.StateRevision), o.Grant.Revision
	})
	switch seen := a.seenKey; {
	case o.Restored:
		a.seenKey = nil      // the store went back, and revisions with it
		a.noted = time.Now() // the Keeper still knows the revision of before
	case seen != nil && seen.id == id && seen.revision > a.keyAt:
		// The watch was faster than the answer: what it showed is newer than the outcome.
		a.registrationSeen(*seen)
	}
}

// noteSuccession tells that a process of the broker has taken over from the one before.
func (a *agent) noteSuccession(o registration.Outcome) {
	detail := fmt.Sprintf("the broker is registered as %s, and was as %s: %s handed over", o.Instance, o.Former, control.Plural(o.Moved, "assignment"))
	a.log.Info(a.shadow.saying("succession"), "registered_as", o.Instance, "former", o.Former, "assignments", o.Moved, "epoch", o.Grant.Epoch)
	a.event(control.Event{Kind: "registration", From: o.Former, To: "succeeded", Epoch: o.Grant.Epoch, Detail: detail})
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
