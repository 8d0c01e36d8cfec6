package cluster

import (
	"context"
	"fmt"
)

// Registrations lists the registrations of all brokers, ordered by id. Its cost grows
// with the number of brokers: it is for who does not know which one is theirs.
func (c *Client) Registrations(ctx context.Context) ([]Registration, error) {
	var all []Registration
	_, err := c.scan(ctx, Target{Key: c.keys.Registrations(), Prefix: true}, 0, func(kv KV) {
		if id, ok := c.keys.ParseRegistration(kv.Key); ok {
			all = append(all, registrationOf(id, kv.raw()))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read registrations: %w", err)
	}
	return all, nil
}
