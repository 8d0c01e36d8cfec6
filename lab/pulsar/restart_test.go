//go:build pulsar

package pulsar

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// restarts are how a broker comes to an end, by turns of two, and the reason that its sidecar
// gives when it is back.
var restarts = []struct {
	name   string
	end    func(ctx context.Context, c *couple) error
	reason string
}{
	{"SIGTERM, as in a rolling restart", func(ctx context.Context, c *couple) error { return c.broker.Stop(ctx) }, "fast_restart"},
	{"SIGTERM to it and its sidecar at once, as in a pod", func(ctx context.Context, c *couple) error {
		c.SetFlags("--restart-grace", "0s") // from here on
		stopped := make(chan error, 1)
		go func() { stopped <- c.Stop(ctx) }()
		return errors.Join(c.broker.Stop(ctx), <-stopped, c.Start())
	}, "planned_restart"},
	{"kill -9", func(_ context.Context, c *couple) error { return c.broker.Kill() }, "fast_restart"},
	{"kill -9, and its registration is not given up", func(_ context.Context, c *couple) error { return c.broker.Kill() }, "fast_restart"},
}

func TestARestartedRealBrokerIsActiveAndNotStale(t *testing.T) {
	a, all := couples(t, 2)
	for i, row := range restarts {
		c, peer := all[i%2], all[1-i%2]
		topics := Topics(harness.PulsarBundles)
		f := startTraffic(t, topics, []*couple{c, peer})
		for _, topic := range topics { // it has something to give up
			leadBundle(t, c.broker, topic)
		}
		before := c.active()
		h, err := c.lab.Watch(t.Context(), a.Etcd, "/")
		ok(t, err)
		ok(t, row.end(soon(t), c))
		ok(t, c.broker.Start(t.Context()))
		st, err := c.Await(t.Context(), bootBound, "the next process", func(st harness.Status) bool {
			return st.Epoch > before.Epoch && st.Attachment == "attached" && st.Ready.OK
		})
		h.Stop()
		if err != nil || st.Mode != "active" || st.Reason != row.reason {
			t.Errorf("%s: it came back as %s, %v; want active (%s)", row.name, st, err, row.reason)
			for _, change := range h.Changes() {
				if strings.HasPrefix(change.Key, "/loadbalance/brokers/") || strings.HasPrefix(change.Key, "/cluster/") {
					t.Logf("%.400s", change)
				}
			}
		}
		f.flowing(t)
		f.stop(t, time.Minute) // the gap is another test's
	}
}
