package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// openFiles is how many files and connections the sidecar has.
func openFiles(sc *harness.Sidecar) int {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", sc.PID()))
	return len(all)
}

// Pulsar's health check has no deadline of its own.
func TestAPulsarBrokerThatIsNotWellIsNotReadyUntilItIs(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	const interval, timeout, fall = 200 * time.Millisecond, 300 * time.Millisecond, 3
	c := s.besidePulsar(s.pulsar("p1"), "--lease-ttl", "30s", "--health-interval", interval.String(),
		"--health-timeout", timeout.String(), "--health-fall", fmt.Sprint(fall))
	probes := s.lab.Record(c.Sidecar)
	before := openFiles(c.Sidecar)
	for _, tt := range []struct{ name, fault, on, off string }{
		{"the health check hangs", "hang-health", "on", "off"},
		{"the health check fails", "fail-health", "on", "off"},
		{"the broker is not ready", "not-ready", "on", "off"},
		{"every answer is too late", "slow", "1s", "0s"},
	} {
		since := time.Now()
		s.ok(c.broker.Fault(s.ctx, tt.fault, tt.on))
		// Half a second for a machine that has other things to do.
		const most = fall*(interval+timeout) + 500*time.Millisecond
		if err := c.AwaitNotReady(s.ctx, bound); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		down := time.Now()
		t.Logf("%s: not ready after %v", tt.name, down.Sub(since).Round(time.Millisecond))
		within(t, tt.name+": not ready", since, down.Sub(since), most)
		s.ok(harness.Await(s.ctx, bound, "some more health checks", func(context.Context) (bool, string) {
			return time.Since(down) > 10*interval, ""
		}))
		if err := probes.NeverReady(down.Add(100*time.Millisecond), time.Now()); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		s.ok(c.broker.Fault(s.ctx, tt.fault, tt.off))
		if err := c.AwaitReady(s.ctx, bound); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := probes.AlwaysLive(since, time.Now()); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	// Calls that were given up leave no connection behind.
	s.awaitThat("the connections to be closed", func() bool { return openFiles(c.Sidecar) <= before+4 })
	st, err := c.Status(s.ctx)
	s.ok(err)
	if st.Mode != "active" || st.Lease.FailureStreak != 0 {
		t.Errorf("after all is well again: %s", st)
	}
}

func TestAPulsarBrokerThatIsKilledIsNotReadyAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.besidePulsar(s.pulsar("p1"), "--lease-ttl", "30s", "--health-interval", "1s")
	killed := time.Now()
	s.ok(c.broker.Kill())
	s.ok(c.AwaitNotReady(s.ctx, bound))
	within(t, "not ready after kill -9", killed, time.Since(killed), 200*time.Millisecond)
}
