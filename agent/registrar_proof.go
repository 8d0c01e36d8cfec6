package agent

import (
	"context"
	"errors"
	"fmt"

	"holdfast/agent/lease"
	"holdfast/cluster"
)

// This file is the proof half of the registrar: a keep-alive's answer counts only when a
// read that was sent after it shows that the registration stands (DESIGN, safety rule 11).

// Prove implements lease.Registrar. It goes over the renewals' line, and whichever endpoint
// of it answers will do: the raft term tells whether that is the leader who renewed.
func (r *registrar) Prove(ctx context.Context, g lease.Grant) (term uint64, err error) {
	client, err := r.line.Client(ctx)
	if err != nil {
		return 0, err
	}
	reg, term, err := client.Registered(ctx, g.ID)
	if err != nil {
		return 0, err
	}
	return term, r.ours(g, reg)
}

// ours says in what a registration is not the one that was granted.
func (r *registrar) ours(g lease.Grant, reg *cluster.Registration) error {
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
	if v, err := reg.Parse(); err != nil || v.Run != r.run {
		return fmt.Errorf("%w: another process wrote it", lease.ErrForeign)
	}
	return nil
}

// proven proves a grant that rests on a renewal. again says that the answer is not what the
// grant rests on, which is to be decided anew.
func (r *registrar) proven(ctx context.Context, g lease.Grant) (again bool, err error) {
	if g.Term == 0 {
		return false, nil // of a new lease: the registration was put under it
	}
	term, err := r.Prove(ctx, g)
	if err == nil {
		err = lease.SameTerm(g.Term, term)
	}
	return errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrForeign) || errors.Is(err, lease.ErrUnproven), err
}
