package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
)

// renewalLine is the cluster's renewal connection as the lease wants it.
type renewalLine struct{ *cluster.Line }

func (l renewalLine) KeepAlive(ctx context.Context, id int64, fresh bool) (time.Duration, int64, error) {
	granted, revision, err := l.Line.KeepAlive(ctx, id, fresh)
	return granted, revision, leaseError(err)
}

func (l renewalLine) Revoke(ctx context.Context, id int64) error {
	c, err := l.Client(ctx)
	if err != nil {
		return err
	}
	return c.Revoke(ctx, id)
}

// leaseError translates the cluster's word for a lost lease.
func leaseError(err error) error {
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", lease.ErrLost, err)
	}
	return err
}

func classify(err error) string { return string(cluster.Classify(err)) }

func failureClasses() []string {
	var names []string
	for _, c := range cluster.Classes() {
		names = append(names, string(c))
	}
	return names
}
