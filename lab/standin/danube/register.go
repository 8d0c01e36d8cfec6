package danube

import (
	"context"
	"time"
)

func (b *Broker) registration() []byte {
	client := b.cfg.Advertise
	if client == "" {
		client = b.client.addr
	}
	return encode(registration{
		BrokerURL: b.url(client), ConnectURL: b.url(client),
		AdminAddr: b.url(b.admin.addr), PromExporter: b.metrics.addr,
	})
}

// registerWithEtcd registers and keeps the lease alive until the first time that etcd
// cannot be reached, which ends it for good. A lease that has gone is not noticed.
func (b *Broker) registerWithEtcd(ctx context.Context) error {
	lease, err := b.store.putTTL(ctx, registerKey(b.id), b.registration(), b.cfg.Times.TTL)
	if err != nil {
		return err
	}
	b.log.Info("registered", "lease", lease)
	b.all.Go(func() {
		if b.renewForever(ctx, "registration", lease, b.cfg.Times.Renew); ctx.Err() == nil {
			b.deadRenewal.Store(true)
		}
	})
	return nil
}

// renewForever keeps a lease alive, which an error ends unless the broker was mended.
func (b *Broker) renewForever(ctx context.Context, of string, lease int64, every time.Duration) {
	for {
		if err := b.store.keepAlive(ctx, lease); err != nil && ctx.Err() == nil {
			b.log.Error("lease not renewed", "of", of, "err", err)
			if !b.cfg.Resumes && !b.raft {
				return
			}
		}
		if !pause(ctx, every) {
			return
		}
	}
}
