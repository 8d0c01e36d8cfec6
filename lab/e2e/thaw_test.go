package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// A broker that was frozen past its fence point could not be quiesced then. It must
// be as soon as it runs again, although etcd is still away.
func TestABrokerThatThawsBehindItsFencePointIsFencedWithoutEtcd(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const topic = "/default/orders"
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topic))
	c := s.couple("n1")
	s.ok(s.etcd.Freeze())
	t.Cleanup(func() { _ = s.etcd.Thaw() })
	s.ok(c.nats.Freeze())
	_, err := c.Await(s.ctx, standTTL+bound, "the detachment", func(st harness.Status) bool { return st.Attachment == "detached" })
	s.ok(err)
	s.ok(c.nats.Thaw())
	conn, err := c.nats.Connect()
	s.ok(err)
	defer conn.Close()
	s.ok(harness.Await(s.ctx, bound, "publishers to be refused", func(ctx context.Context) (bool, string) {
		_, err := harness.Publish(ctx, conn, topic, []byte("late"))
		return errors.Is(err, nats.ErrNoResponders), "served"
	}))
	c.stayedLive()
}
