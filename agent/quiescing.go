package agent

import (
	"context"
	"errors"
	"fmt"

	"holdfast/brokerapi"
	"holdfast/recovery"
)

// quiescing is a broker as the reconciler sees it: each has a Quiesce.
type quiescing struct{ brokerapi.Broker }

func (q quiescing) Topics(ctx context.Context) (recovery.Held, error) {
	held, err := q.Broker.Topics(ctx)
	return recovery.Held(held), err
}

func (q quiescing) Quiesce(ctx context.Context, topic string) error {
	can := q.Capabilities()
	if b, ok := q.Broker.(brokerapi.Quiescer); ok && (can.Quiesce || !can.Unload) {
		return b.Quiesce(ctx, topic)
	}
	if b, ok := q.Broker.(brokerapi.Unloader); ok {
		return b.Unload(ctx, topic)
	}
	return fmt.Errorf("this broker gives no topic up while it runs (%w): stop its process to have it served elsewhere", errors.ErrUnsupported)
}
