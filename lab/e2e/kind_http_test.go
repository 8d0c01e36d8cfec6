package e2e

import (
	"context"
	"errors"
	"fmt"

	"holdfast/lab/harness"
)

// httpKind is the reference broker of the HTTP contract, whose registration is the
// sidecar's.
var httpKind = kind{
	name: "http",
	prepare: func(s *stage, o brokerOptions) (broker, error) {
		r, err := s.NewReference(harness.ReferenceOptions{Name: o.ID, Place: o.Place})
		return httpBroker{r}, err
	},
}

type httpBroker struct{ *harness.Reference }

func (b httpBroker) Driver() []string {
	return []string{"--driver", "http", "--broker-admin", b.URL(), "--data-marker", "topics/*"}
}

func (b httpBroker) Connect() (client, error) { return httpClient(b), nil }

func (b httpBroker) Litter(ctx context.Context) error { return b.MakeForeign(ctx, "old") }

// Disasters: it refuses what it should not do.
func (b httpBroker) Disasters() ([]string, error) { return nil, nil }

type httpClient struct{ *harness.Reference }

func (c httpClient) Publish(ctx context.Context, topic string) error {
	err := c.Reference.Publish(ctx, topic, "e2e")
	if errors.Is(err, harness.ErrNotServed) {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	return err
}

func (c httpClient) Close() {}
