package registration

import (
	"context"
	"fmt"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file keeps a sidecar with a copy of a state directory, as of a cloned volume, from
// taking up the registration of the one that it was copied from. A directory that is not where
// it was may be such a copy, or may have been moved: the lease of the registration tells. It
// does not tell a copy from an original that is cut off from etcd at the same time; nor is a
// copy suspected that is a block by block clone on a clone of the machine. The newer one has
// the registration then, and the older one fences when its next renewal is proven.

// sighting is what was seen of a registration's lease.
type sighting struct {
	lease int64 // 0: nothing
	look  recovery.LeaseLook
	alive bool // it was renewed before that look
}

// copied returns nil when nobody keeps the registration alive that another process of our
// incarnation wrote, lease.ErrConflict when somebody does, and lease.ErrDeferred until that is
// known.
func (r *Registrar) copied(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, m Past) error {
	if !r.Moved || r.stood {
		return nil
	}
	doubtful := !r.adopting() && seen.Registration != nil && seen.Registration.LeaseID != 0
	if doubtful {
		v, err := seen.Registration.Parse()
		doubtful = err == nil && v.Incarnation == m.Incarnation && v.Run != r.Run
	}
	var err error
	if doubtful && seen.Registration.LeaseID != r.idle {
		err = r.lookTwice(ctx, client, *seen.Registration)
	}
	r.Rival.Store(err != nil)
	return err
}

func (r *Registrar) lookTwice(ctx context.Context, client *cluster.Client, reg cluster.Registration) error {
	before := r.sighted
	now := time.Duration(r.Clock())
	apart := recovery.LooksApart(r.Config.RenewInterval)
	if before.lease == reg.LeaseID && now-before.look.Answered < apart {
		return r.rivalry(before, reg)
	}
	left, err := client.LeaseLeft(ctx, reg.LeaseID)
	if err != nil {
		return err
	}
	if !left.Found {
		r.sighted = sighting{}
		return nil
	}
	if left.Unknown {
		return r.rivalry(before, reg)
	}
	// It would end before the second look. Who kept it has passed the fence point by now.
	if left.Left+time.Second < r.Config.LeaseDetachMargin {
		return r.unlessDeposed(ctx, client, reg, left.Term, before)
	}
	next := sighting{lease: reg.LeaseID,
		look: recovery.LeaseLook{Sent: now, Answered: time.Duration(r.Clock()), Left: left.Left, Term: left.Term}}
	known := false
	if before.lease == reg.LeaseID {
		next.alive, known = recovery.Renewed(before.look, next.look, r.Config.RenewInterval)
		next.alive = next.alive || before.alive && !known // another leader: this look tells nothing
	}
	r.sighted = next
	if !known || next.alive {
		return r.rivalry(next, reg)
	}
	return r.unlessDeposed(ctx, client, reg, left.Term, next)
}

// unlessDeposed clears the lease, if what was said of it was said by the leader. One who was
// deposed renews nothing, and counts on: it answers no read.
func (r *Registrar) unlessDeposed(ctx context.Context, client *cluster.Client, reg cluster.Registration, said uint64, seen sighting) error {
	_, term, err := client.Registered(ctx, reg.BrokerID)
	if err != nil {
		return err
	}
	if term != said {
		return r.rivalry(seen, reg)
	}
	r.idle = reg.LeaseID
	r.Log.Info("state directory was moved, and nobody renews the registration: going on with it", "lease", fmt.Sprintf("%x", reg.LeaseID))
	return nil
}

// rivalry is what is said while the registration is not taken up.
func (r *Registrar) rivalry(s sighting, reg cluster.Registration) error {
	if !s.alive {
		return fmt.Errorf("%w: the state directory is not where it was, and broker id %q is registered with it: "+
			"whether that is a sidecar that lives is seen by its lease within %s",
			lease.ErrDeferred, reg.BrokerID, config.FormatDuration(recovery.LooksApart(r.Config.RenewInterval)))
	}
	where := ""
	if v, err := reg.Parse(); err == nil && v.AdminAddr != "" {
		where = " (broker at " + v.AdminAddr + ")"
	}
	return fmt.Errorf("%w: broker id %q is registered by a living sidecar of the same incarnation%s, and the state directory is not where it was: "+
		"one is a copy of the other. Stop one of the two; another broker than --broker-admin %s needs another --broker-id and an empty --state-dir",
		lease.ErrConflict, reg.BrokerID, where, r.Config.BrokerAdmin)
}
