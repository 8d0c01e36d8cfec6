package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// lastReady asks /ready again and again until it answers 503, and returns how long after
// start it was last asked and answered 200. What the lab takes to ask is not the sidecar's.
func (s *stand) lastReady(c *harness.Sidecar, start time.Time) (last time.Duration) {
	s.Helper()
	s.ok(harness.Await(s.ctx, bound, "/ready to answer 503", func(ctx context.Context) (bool, string) {
		asked := time.Since(start)
		code, _, err := c.Probe(ctx, "/ready")
		if err == nil && code == http.StatusOK {
			last = asked
		}
		return err == nil && code == http.StatusServiceUnavailable, fmt.Sprint(code, err)
	}))
	return last
}

func TestKilledBrokerIsNotReadyWithin200ms(t *testing.T) {
	t.Run("by the held connection", func(t *testing.T) {
		s := newStand(t)
		n := s.broker("n1")
		// The periodic check must not be what sees it.
		c := s.beside(n, "--lease-ttl", "16s", "--health-interval", "5s")
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		reg := c.registration()
		var took []time.Duration
		for range 3 {
			s.ok(n.Kill()) // its connections are open until it is gone
			killed := time.Now()
			took = append(took, s.lastReady(c.Sidecar, killed))
			within(t, "ready no more", killed, took[len(took)-1], 200*time.Millisecond)
			s.ok(n.Start(s.ctx))
			s.ok(c.AwaitReady(s.ctx, bound))
		}
		t.Logf("ready for %v", took)
		if after := c.registration(); after.CreateRevision != reg.CreateRevision {
			t.Errorf("registered anew at %d, want the registration of %d kept: each broker was back within the TTL", after.CreateRevision, reg.CreateRevision)
		}
		if st := c.state(); st.Mode != "active" {
			t.Errorf("mode %s (%s), want active", st.Mode, st.Reason)
		}
		c.stayedLive()
	})
}
