package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/cluster"
)

// This file is the registrar's leases: asked for, kept for the next try, and given back.

// revokeTimeout bounds the revocation of a lease that nothing depends on any more.
const revokeTimeout = time.Second

// grant asks for a lease. Its life counts from before the request was sent. It needs no
// proof of its own: it is a write, and the put under it that follows is refused when the
// lease is not there. A spare one that is young is as good: when a whole cluster starts at
// once, etcd refuses the first write of all but one.
func (r *Registrar) grant(ctx context.Context, client *cluster.Client) (lease.Grant, error) {
	sent := r.Clock()
	if g := r.spare; g.LeaseID != 0 && sent < g.SentAt.Add(g.TTL/2) {
		r.spare = lease.Grant{}
		return g, nil
	}
	id, granted, err := client.Grant(ctx, r.Config.LeaseTTL)
	if err != nil {
		return lease.Grant{}, err
	}
	r.granted = granted
	return lease.Grant{LeaseID: id, SentAt: sent, TTL: granted}, nil
}

// leave gives back the lease that the registration was under. Ownership locks may still be
// under it while we serve their topics: they are bound to the new one key by key, without
// a moment in which another may take them, and what is left runs out with the lease.
func (r *Registrar) leave(ctx context.Context, client *cluster.Client, held int64) {
	if r.Config.OwnershipLocks != "on" {
		r.revoke(ctx, client, held)
	}
}

// giveBack gives a lease back that no try has used.
func (r *Registrar) giveBack(ctx context.Context, client *cluster.Client) {
	if r.spare.LeaseID != 0 {
		r.revoke(ctx, client, r.spare.LeaseID)
		r.spare = lease.Grant{}
	}
}

// unwritten are the classes of answers that prove that etcd wrote nothing.
var unwritten = []cluster.Class{cluster.ClassNoSpace, cluster.ClassAuth, cluster.ClassLeaseNotFound}

// discard gives a new lease back if the write that was to use it is proven not to have
// happened. Where only its answer was lost the registration may stand under that lease:
// revoking it would end what nobody else has ended, and the next look finds it.
func (r *Registrar) discard(ctx context.Context, client *cluster.Client, id int64, err error) (nothing bool) {
	nothing = errors.Is(err, cluster.ErrChanged) || slices.Contains(unwritten, cluster.Classify(err))
	if nothing {
		r.revoke(ctx, client, id)
	}
	return nothing
}

// revoke frees a lease that no key of ours needs. If it fails the lease runs out.
func (r *Registrar) revoke(ctx context.Context, client *cluster.Client, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if err := client.Revoke(ctx, id); err != nil {
		r.Log.Debug("unused lease not revoked: it runs out by itself", "lease", fmt.Sprintf("%x", id), "err", err)
	}
}

// What follows is the proof half of the registrar: a keep-alive's answer counts only when a
// read that was sent after it shows that the registration stands (DESIGN, safety rule 11).

// Prove implements lease.Registrar. It goes over the renewals' line, and whichever endpoint
// of it answers will do: the raft term tells whether that is the leader who renewed.
func (r *Registrar) Prove(ctx context.Context, g lease.Grant) (term uint64, err error) {
	reg, term, err := r.Line.Client().Registered(ctx, g.ID)
	if err != nil {
		return 0, err
	}
	return term, r.ours(g, reg)
}

// ours says in what a registration is not the one that was granted.
func (r *Registrar) ours(g lease.Grant, reg *cluster.Registration) error {
	switch {
	case reg == nil:
		return fmt.Errorf("%w: there is no registration of %s", lease.ErrLost, g.ID)
	case reg.LeaseID != g.LeaseID:
		return fmt.Errorf("%w: it is under lease %x, not %x", lease.ErrForeign, reg.LeaseID, g.LeaseID)
	case reg.CreateRevision != g.Epoch:
		return fmt.Errorf("%w: it was created at revision %d, not %d", lease.ErrForeign, reg.CreateRevision, g.Epoch)
	case r.adopting(): // the bytes are the broker's
		return nil
	}
	if v, err := reg.Parse(); err != nil || v.Run != r.Run {
		return fmt.Errorf("%w: another process wrote it", lease.ErrForeign)
	}
	return nil
}

// proven proves a grant that rests on a renewal. again says that the answer is not what the
// grant rests on, which is to be decided anew.
func (r *Registrar) proven(ctx context.Context, g lease.Grant) (again bool, err error) {
	if g.Term == 0 {
		return false, nil // of a new lease: the registration was put under it
	}
	term, err := r.Prove(ctx, g)
	if err == nil {
		err = lease.SameTerm(g.Term, term)
	}
	return errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrForeign) || errors.Is(err, lease.ErrUnproven), err
}

// Value is what this sidecar registers of its broker.
func Value(c config.Config, incarnation, run, version string) ([]byte, error) {
	about, err := json.Marshal(map[string]string{"version": version, "driver": c.Driver})
	if err != nil {
		return nil, fmt.Errorf("encode registration: %w", err)
	}
	v, err := json.Marshal(cluster.RegistrationValue{
		BrokerURL: c.BrokerURL, ConnectURL: c.ConnectURL, AdminAddr: c.BrokerAdmin,
		Incarnation: incarnation, Run: run, Holdfast: about,
	})
	if err != nil {
		return nil, fmt.Errorf("encode registration: %w", err)
	}
	return v, nil
}

// fromBefore reports whether a registration is what the sidecar before this one wrote: only
// its process and its version are others.
func fromBefore(old, now []byte) bool {
	var a, b cluster.RegistrationValue
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(now, &b) != nil {
		return false
	}
	a.Run, a.Holdfast = b.Run, b.Holdfast
	return reflect.DeepEqual(a, b)
}

// LeaseError translates the cluster's word for a lost lease.
func LeaseError(err error) error {
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", lease.ErrLost, err)
	}
	return err
}
