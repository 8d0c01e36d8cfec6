package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// kind is one kind of broker and of the way to stand beside it. The scenarios are the
// same for all kinds. What one shows in another way is a field here, with the reason.
type kind struct {
	name string
	// prepare makes a broker that does not run yet.
	prepare func(s *stage, o brokerOptions) (broker, error)

	// stops says why the fence ends the broker's process. Then it is for its supervisor
	// to start it again, and it comes back as after any restart.
	stops string
	// renames says why the registration of the next process is another one.
	renames string
	// uncounted says why a full restart is not counted as a new era. It is seen all the
	// same.
	uncounted string
	// boots says why the next process may serve for a moment before its sidecar can keep
	// it from that, which is never ready to say so.
	boots string
	// moves says why what a broker lost does not come back to it: the broker's own
	// cluster has given it to others.
	moves string
	// keeps says why a drained broker keeps the topics that it has, or was given before its mode
	// was known: clients stay away by its readiness alone.
	keeps string
}

// brokerOptions are what a broker is prepared with.
type brokerOptions struct {
	ID    string
	Place harness.Place
	Etcd  string        // URL, as seen from there
	TTL   time.Duration // of the sidecar's lease
	Conf  string        // added to its configuration, for kinds that have one
}

// kinds are all that the scenarios are played with: one that its sidecar registers, and one that
// registers itself and must be stopped at its deadline. What other brokers do is shown by their drivers'
// conformance suites, and what is decided of them by the table and the simulation.
var kinds = []kind{natsKind, danubeKind}

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

// assigner is a broker whose topics can only be assigned in the way of its own cluster,
// and after it was registered.
type assigner interface {
	// Assign has the broker of that name serve the topics.
	Assign(ctx context.Context, name string, topics ...string) error
}

// numbered is a broker that registers itself, under a number that is another at each
// start. Its sidecar takes the registration over; the node's id is the sidecar's alone.
type numbered interface {
	// Wears is what the registrations of all its processes have in common.
	Wears() string
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
