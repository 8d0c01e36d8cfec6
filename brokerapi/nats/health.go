package nats

import (
	"context"
	"fmt"
	"net/http"
)

// Health implements brokerapi.Broker. It costs one JetStream request and one
// GET /healthz; once for each server process it also compares the identities
// of the two ports with each other and with Config.BrokerID.
func (b *Broker) Health(ctx context.Context) error {
	nc, _, err := b.connected(ctx)
	if err != nil {
		return err
	}
	if err := b.api(ctx, "INFO", nil, nil); err != nil {
		return fmt.Errorf("ask JetStream for its state: %w", err)
	}
	a, err := b.get(ctx, "/healthz?js-enabled-only=true")
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("--nats-monitor %s: /healthz answered %d %s: %q: see nats-server's log", b.monitor, a.status, http.StatusText(a.status), excerpt(a.body))
	}
	b.mu.Lock()
	verified := b.verified
	b.mu.Unlock()
	if verified == nc.ConnectedServerId() {
		return nil
	}
	v, err := b.varz(ctx)
	if err != nil {
		return err
	}
	return b.sameServer(ctx, nc, v)
}
