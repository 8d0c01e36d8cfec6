package registration

import (
	"context"
	"errors"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// Foretell is what would be decided now, and whether etcd would let it be written. It writes nothing,
// and looks a second time at the lease of a registration that may be a copy's. Each look has a bound.
func (r *Registrar) Foretell(ctx context.Context, client *cluster.Client, bound time.Duration) (Outcome, error) {
	for looked := false; ; looked = true {
		bounded, cancel := context.WithTimeout(ctx, bound)
		seen, _, out, err := r.consider(bounded, client, nil)
		cancel()
		if looked || !errors.Is(err, lease.ErrDeferred) || r.sighted.lease == 0 {
			if err == nil {
				err = client.MayRegister(ctx, seen)
			}
			return out, err
		}
		probes.Sleep(ctx, recovery.LooksApart(r.Config.RenewInterval)+time.Millisecond)
	}
}
