package e2e

import (
	"context"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// occupy takes all three connections of a server, when those of before are gone.
func occupy(ctx context.Context, n *harness.NATS) (full []*nats.Conn, err error) {
	err = harness.Await(ctx, bound, "no room", func(context.Context) (bool, string) {
		nc, err := n.Connect(nats.NoReconnect(), nats.RetryOnFailedConnect(false))
		if err != nil {
			return len(full) >= 3, err.Error()
		}
		full = append(full, nc)
		return false, "taken in"
	})
	return full, err
}
