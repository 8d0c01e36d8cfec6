package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// awaitUnready asks /ready every 5 ms until it answers 503, and returns how long
// after start the request that heard so was answered.
func (c *couple) awaitUnready(start time.Time) time.Duration {
	c.s.Helper()
	ctx, cancel := context.WithTimeout(c.s.ctx, bound)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		code, _, err := c.Probe(ctx, "/ready")
		if err == nil && code == http.StatusServiceUnavailable {
			return time.Since(start)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.s.Fatalf("/ready still answers %d, %v", code, err)
		}
	}
}

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
	for _, tt := range []struct {
		name  string
		flags func(*harness.NATS) []string
	}{
		{"by the held connection", func(*harness.NATS) []string { return nil }},
		{"by the process too", func(n *harness.NATS) []string { return []string{"--broker-pid-file", n.PIDFile} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStand(t)
			n := s.broker("n1")
			// The periodic check must not be what sees it.
			c := s.beside(n, append(tt.flags(n), "--lease-ttl", "16s", "--health-interval", "5s")...)
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
}

func TestFrozenBrokerIsNotReadyAfterFallTimesInterval(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const interval, timeout, fall = 200 * time.Millisecond, 300 * time.Millisecond, 3
	c := s.couple("n1", "--lease-ttl", "16s", "--health-interval", interval.String(),
		"--health-timeout", timeout.String(), "--health-fall", fmt.Sprint(fall))
	reg := c.registration()
	start := time.Now()
	s.ok(c.nats.Freeze())
	took := c.awaitUnready(start)
	// It counts from the last success, however long the checks since then hang. A
	// twentieth of the interval is the product's own tolerance; a tenth of a second is
	// for freezing, and for seeing it, on a busy machine.
	const longest = fall*interval + interval/20 + 100*time.Millisecond
	t.Logf("not ready after %v, at most %v", took.Round(time.Millisecond), longest)
	within(t, "not ready", start, took, longest)
	s.ok(c.nats.Thaw())
	s.ok(c.AwaitReady(s.ctx, bound))
	if after := c.registration(); after != reg {
		t.Errorf("registration %+v, want %+v", after, reg)
	}
	c.stayedLive()
}
