package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// A server that has no room for one more client serves those that it has.
func TestASidecarThatIsRestartedBesideAFullServerTakesItUpAgain(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	n, err := s.lab.StartNATS(s.ctx, harness.NATSOptions{Name: "n1", Extra: "max_connections: 3"})
	s.ok(err)
	c := s.beside(n, "--broker-pid-file", n.PIDFile)
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	reg, pid := c.registration(), n.PID()
	s.ok(c.AwaitGuarded(s.ctx, bound))
	c.renewsOn() // by now the registration and the process are noted
	s.ok(c.Kill())
	full, err := occupy(s.ctx, n)
	s.ok(err)
	c.run()
	st := c.await("the broker that was registered", func(st harness.Status) bool {
		return st.Attachment == "attached" && strings.Contains(st.Broker.LastError, "maximum connections exceeded")
	})
	if st.Broker.Up != "up" {
		t.Errorf("the broker is %s", st.Broker.Up)
	}
	c.awaitMetric(`holdfast_broker_zombie{kind="unseen"}`, 1, bound)
	from := time.Now()
	s.ok(harness.Await(s.ctx, standTTL+bound, "more than the lease lasts", func(context.Context) (bool, string) {
		return time.Since(from) > standTTL+time.Second || !n.Running(), "not yet"
	}))
	if !n.Running() || n.PID() != pid {
		t.Error("the broker was stopped")
	}
	if after := c.registration(); after.CreateRevision != reg.CreateRevision {
		t.Errorf("registered anew: %+v, was %+v", after, reg)
	}
	for _, nc := range full {
		if !nc.IsConnected() {
			t.Error("a client was cut off")
		}
	}
	full[0].Close()
	s.ok(c.AwaitReady(s.ctx, bound))
	for _, nc := range full[1:] {
		nc.Close()
	}
}

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
