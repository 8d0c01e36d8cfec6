package pulsar

import (
	"context"
	"fmt"
)

// registrations is where brokers register in their metadata store, each under the lease of its
// session. Its locks of bundles are under the same lease.
const registrations = "/loadbalance/brokers/"

// Store is Holdfast's etcd. Where it is the brokers' metadata store, too, their keys are there.
type Store interface {
	// LeaseOf is the lease that a key is under; 0: the key is not there, or under none.
	LeaseOf(ctx context.Context, key string) (int64, error)
	// Revoke ends a lease. One that is gone has ended.
	Revoke(ctx context.Context, lease int64) error
}

// session is that of one process of the broker.
type session struct {
	instance string
	lease    int64
}

// noteSession remembers the session of the process that answers, if the same one answered before
// the look and after it: else it is seen at the next one. False: it is worth another look.
func (b *Broker) noteSession(ctx context.Context) (seen bool) {
	if b.cfg.Store == nil {
		return true
	}
	if b.ready(ctx) != nil { // over a connection of before the look
		return false
	}
	doubt := b.doubts.Load()
	started, err := b.start(ctx)
	if err != nil || started.IsZero() {
		return false
	}
	lease, err := b.cfg.Store.LeaseOf(ctx, registrations+b.self)
	if err != nil || b.ready(ctx) != nil || b.doubts.Load() != doubt {
		return false
	}
	b.session.Store(&session{instance(started), lease})
	return true
}

// Release implements brokerapi.Releaser: it ends the session of that process, whose bundles
// others take then. A session that was not seen while the process lived runs out by itself.
func (b *Broker) Release(ctx context.Context, instance string) error {
	s := b.session.Load()
	if s == nil || s.lease == 0 || s.instance != instance {
		return nil
	}
	if err := b.cfg.Store.Revoke(ctx, s.lease); err != nil {
		return fmt.Errorf("end the session of %s: %w: it needs the rights of readwrite on %s and /namespace/", b.self, err, registrations)
	}
	b.cfg.Logger.Info("the session of the broker's process that has ended is ended", "lease", fmt.Sprintf("%x", s.lease), "instance", instance)
	b.session.CompareAndSwap(s, nil)
	return nil
}
