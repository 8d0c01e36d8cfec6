package e2e

import (
	"context"
	"errors"
	"testing"

	"holdfast/lab/harness"
)

// kind is one kind of broker and of the way to stand beside it. The scenarios are the
// same for all kinds. What one shows in another way is a field here, with the reason.
type kind struct {
	name string
	// prepare makes a broker that does not run yet.
	prepare func(s *stage, o brokerOptions) (broker, error)
}

// brokerOptions are what a broker is prepared with.
type brokerOptions struct {
	ID    string
	Place harness.Place
	Conf  string // added to its configuration, for kinds that have one
}

// kinds are all that the scenarios are played with.
var kinds = []kind{natsKind, httpKind}

// eachKind plays a scenario with every kind of broker.
func eachKind(t *testing.T, play func(t *testing.T, k kind)) {
	t.Helper()
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			play(t, k)
		})
	}
}

// broker is the process beside a sidecar. Its ports and data survive its lives.
type broker interface {
	Launch() error                   // does not wait
	Start(ctx context.Context) error // waits until it can be used
	Kill() error                     // SIGKILL, and waits for the end
	// Driver is the sidecar's flags for this broker.
	Driver() []string
	// Connect makes a client, which reconnects by itself.
	Connect() (client, error)
	// Litter gives it data of an earlier life, of which no sidecar knows. It runs.
	Litter(ctx context.Context) error
	// Disasters is what the broker says that must never happen to one.
	Disasters() ([]string, error)
}

// client is an ordinary client of a broker, that knows nothing of Holdfast. It is not
// safe for concurrent use.
type client interface {
	// Publish returns nil when the message is stored, and an error that wraps
	// errNotServed when the broker answers that it does not serve the topic.
	Publish(ctx context.Context, topic string) error
	Close()
}

// errNotServed is a broker's refusal, which clients take for "ask again, or elsewhere".
var errNotServed = errors.New("not served")
