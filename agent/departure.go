package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is the note of a planned stop: who may leave one, and how it is written. It is
// written after the broker is proven to serve nothing and before its lease is revoked, and
// says that nobody needs to look at this broker when it comes back.

// departure is a registration that is about to be given up on purpose.
type departure struct {
	who         cluster.Who
	grant       lease.Grant
	instance    string // broker process
	data        recovery.DataID
	incarnation string
	stop, crash bool      // see cluster.Left
	at          time.Time // zero: now
}

// stopAsked is called at the moment at which an orderly stop is asked for. A broker that has
// ended by then has ended by itself.
func (a *agent) stopAsked() {
	a.upAtStop.Store(a.health.Snapshot().At(time.Now()) == probes.Up && !a.brokerGone())
}

// errNothingToLeave is why a broker leaves no note that could not come back by one.
var errNothingToLeave = errors.New("no planned stop is noted")

// mayLeave says why a planned stop of the broker may not be noted; nil: it may. Something
// else than the stop keeps such a broker from serving, or may have had it declared dead, and
// that has to be looked at when it comes back. The caller has asked that nothing is served.
func (a *agent) mayLeave() error {
	why := ""
	who, _ := a.identity.get()
	switch v := a.keeper.View(); {
	case a.shadow != nil:
		why = "a shadow registers nothing"
	case a.presence != nil:
		why = "with --registration none there is no registration to give up"
	case a.conflict != "":
		why = a.conflict
	case a.mode.Mode != recovery.Active:
		why = fmt.Sprintf("the broker is %s (%s)", a.mode.Mode, a.mode.Reason)
	case a.grant.LeaseID == 0 || v.Grant.LeaseID != a.grant.LeaseID || !v.Validity.HeldAt(a.clock()):
		why = "its registration is not surely held"
	case a.attachment == recovery.Detached:
		why = "it is detached from the cluster"
	case who.Instance != a.memory.Instance:
		why = "the decision about the process that answers is to come"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", errNothingToLeave, why)
}

func (a *agent) departure() departure {
	return departure{who: cluster.Who{Name: a.brokerID, Registered: a.ids.registered.now()}, grant: a.grant,
		instance: a.memory.Instance, data: a.memory.Data, incarnation: a.memory.Incarnation, stop: a.leaving.toEnd() && !a.leaving.briefly}
}

// noteTimeout bounds the writing of a note, and by that the age of what was proven before it.
const noteTimeout = 2 * time.Second

// noteSoon notes the departure of a broker that was just proven to serve nothing.
func (a *agent) noteSoon(ctx context.Context, d departure) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return a.note(ctx, d)
}

// noteLeft notes the departure, on what etcd holds at that moment. ErrChanged is not
// returned: what changed decides, and is named.
func noteLeft(ctx context.Context, client *cluster.Client, d departure) (err error) {
	for range tries {
		var seen cluster.Snapshot
		if seen, err = client.SnapshotOf(ctx, d.who); err != nil {
			return err
		}
		if err := d.stands(seen); err != nil {
			return err
		}
		at := d.at
		if at.IsZero() {
			at = time.Now()
		}
		_, err = client.Leave(ctx, cluster.LeaveRequest{Seen: seen, Epoch: d.grant.Epoch, LeaseID: d.grant.LeaseID,
			Left: cluster.Left{At: at, Epoch: d.grant.Epoch, Instance: d.instance, Data: string(d.data), Revision: seen.Revision, Stop: d.stop, Crash: d.crash}})
		if !errors.Is(err, cluster.ErrChanged) {
			return err
		}
	}
	return err
}

// stands says what keeps the broker from leaving, of what is in etcd; nil: nothing.
func (d departure) stands(seen cluster.Snapshot) error {
	why := ""
	switch reg, state, m := seen.Registration, seen.State, seen.Member; {
	case reg == nil || reg.CreateRevision != d.grant.Epoch || reg.LeaseID != d.grant.LeaseID:
		why = "the registration is not the one that this sidecar holds"
	case state == nil:
		why = "its mode cannot be read"
	case state.Mode != cluster.ModeActive:
		why = fmt.Sprintf("it is %s (%s) by now", state.Mode, state.Reason)
	case seen.MemberMalformed != "":
		why = "its member record cannot be read: " + seen.MemberMalformed
	case m == nil || m.Incarnation != d.incarnation:
		why = "its member record is not ours"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", errNothingToLeave, why)
}
