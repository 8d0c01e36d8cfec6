package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

// machineID is where the host says which machine it is.
const machineID = "/etc/machine-id"

// place tells where the directory is from where a copy of it is. Empty: not known.
func (d *stateDir) place() string {
	var st unix.Stat_t
	if unix.Stat(d.path, &st) != nil {
		return ""
	}
	machine, _ := os.ReadFile(machineID) // in a container there may be none
	return fmt.Sprintf("%s/%x/%d", strings.TrimSpace(string(machine)), st.Dev, st.Ino)
}

// movedTo reports whether the directory was elsewhere. A file of a version that did not note
// where is taken for one that was not.
func (m memory) movedTo(place string) bool { return m.Place != "" && place != "" && m.Place != place }

// sighting is what was seen of a registration's lease.
type sighting struct {
	lease int64 // 0: nothing
	look  recovery.LeaseLook
	alive bool // it was renewed before that look
}

// copied returns nil when nobody keeps the registration alive that another process of our
// incarnation wrote, lease.ErrConflict when somebody does, and lease.ErrDeferred until that is
// known.
func (r *registrar) copied(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, m memory) error {
	if !r.moved || r.stood {
		return nil
	}
	doubtful := !r.adopting() && seen.Registration != nil && seen.Registration.LeaseID != 0
	if doubtful {
		v, err := seen.Registration.Parse()
		doubtful = err == nil && v.Incarnation == m.Incarnation && v.Run != r.run
	}
	var err error
	if doubtful && seen.Registration.LeaseID != r.idle {
		err = r.lookTwice(ctx, client, *seen.Registration)
	}
	if r.rival != nil {
		r.rival(err != nil)
	}
	return err
}

func (r *registrar) lookTwice(ctx context.Context, client *cluster.Client, reg cluster.Registration) error {
	before := r.sighted
	now := time.Duration(r.clock())
	apart := recovery.LooksApart(r.cfg.RenewInterval)
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
	if left.Left+time.Second < r.cfg.LeaseDetachMargin {
		return r.unlessDeposed(ctx, client, reg, left.Term, before)
	}
	next := sighting{lease: reg.LeaseID,
		look: recovery.LeaseLook{Sent: now, Answered: time.Duration(r.clock()), Left: left.Left, Term: left.Term}}
	known := false
	if before.lease == reg.LeaseID {
		next.alive, known = recovery.Renewed(before.look, next.look, r.cfg.RenewInterval)
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
func (r *registrar) unlessDeposed(ctx context.Context, client *cluster.Client, reg cluster.Registration, said uint64, seen sighting) error {
	_, term, err := client.Registered(ctx, reg.BrokerID)
	if err != nil {
		return err
	}
	if term != said {
		return r.rivalry(seen, reg)
	}
	r.idle = reg.LeaseID
	r.log.Info("state directory was moved, and nobody renews the registration: going on with it", "lease", fmt.Sprintf("%x", reg.LeaseID))
	return nil
}

// rivalry is what is said while the registration is not taken up.
func (r *registrar) rivalry(s sighting, reg cluster.Registration) error {
	if !s.alive {
		return fmt.Errorf("%w: the state directory is not where it was, and broker id %q is registered with it: whether that is a sidecar that lives is seen by its lease within %s",
			lease.ErrDeferred, reg.BrokerID, config.FormatDuration(recovery.LooksApart(r.cfg.RenewInterval)))
	}
	where := ""
	if v, err := reg.Parse(); err == nil && v.AdminAddr != "" {
		where = " (broker at " + v.AdminAddr + ")"
	}
	return fmt.Errorf("%w: broker id %q is registered by a living sidecar of the same incarnation%s, and the state directory is not where it was: "+
		"one is a copy of the other. Stop one of the two; another broker than --broker-admin %s needs another --broker-id and an empty --state-dir",
		lease.ErrConflict, reg.BrokerID, where, r.cfg.BrokerAdmin)
}

// suspected reports whether that is not known yet: nobody is stopped on a suspicion.
func (a *agent) suspected() bool { return a.conflict == "" && a.isRival() }

// isRival reports whether the process that answers is that of a copy, or may be: it may serve
// what the registered one serves. One that was registered itself has only us twice.
func (a *agent) isRival() bool {
	if a.everAttached || !a.rival.Load() {
		return false
	}
	who, _ := a.identity.get()
	return who.Instance != "" && who.Instance != a.memory.Instance
}
