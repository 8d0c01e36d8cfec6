package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Departure is a registration that is about to be given up on purpose.
type Departure struct {
	Who         cluster.Who
	Grant       lease.Grant
	Instance    string // broker process
	Data        recovery.DataID
	Incarnation string
	Stop, Crash bool // see cluster.Left
}

// NoteDeparture notes the departure, on what etcd holds at that moment. ErrChanged is not
// returned: what changed decides, and is named.
func NoteDeparture(ctx context.Context, client *cluster.Client, d Departure) (err error) {
	for range Tries {
		var seen cluster.Snapshot
		if seen, err = client.SnapshotOf(ctx, d.Who); err != nil {
			return err
		}
		if err := d.stands(seen); err != nil {
			return err
		}
		_, err = client.Leave(ctx, cluster.LeaveRequest{Seen: seen, Epoch: d.Grant.Epoch, LeaseID: d.Grant.LeaseID,
			Left: cluster.Left{At: time.Now(), Epoch: d.Grant.Epoch, Instance: d.Instance, Data: string(d.Data), Revision: seen.Revision, Stop: d.Stop, Crash: d.Crash}})
		if !errors.Is(err, cluster.ErrChanged) {
			return err
		}
	}
	return err
}

// stands says what keeps the broker from leaving, of what is in etcd; nil: nothing.
func (d Departure) stands(seen cluster.Snapshot) error {
	why := ""
	switch reg, state, m := seen.Registration, seen.State, seen.Member; {
	case reg == nil || reg.CreateRevision != d.Grant.Epoch || reg.LeaseID != d.Grant.LeaseID:
		why = "the registration is not the one that this sidecar holds"
	case state == nil:
		why = "its mode cannot be read"
	case state.Mode != cluster.ModeActive:
		why = fmt.Sprintf("it is %s (%s) by now", state.Mode, state.Reason)
	case seen.MemberMalformed != "":
		why = "its member record cannot be read: " + seen.MemberMalformed
	case m == nil || m.Incarnation != d.Incarnation:
		why = "its member record is not ours"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", recovery.ErrNothingToLeave, why)
}
