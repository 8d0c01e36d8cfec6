package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// openFiles is how many files and connections the sidecar has.
func openFiles(sc *harness.Sidecar) int {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", sc.PID()))
	return len(all)
}

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
		{"the broker is not ready", "not-ready", "on", "off"},
		{"every answer is too late", "slow", "1s", "0s"},
		{"no answer comes", "slow", "1h", "0s"},
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

// Its bookies do not answer: nothing that it writes is ever stored. That is not its fault.
func TestAPulsarBrokerThatCannotDoItsWorkIsNotReadyAndNothingElse(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	s.ok(p.Fault(s.ctx, "hang-health", "on"))
	c := s.nextToPulsar(p, s.etcd.Endpoint(), "--fence", "ready,quiesce,stop", "--broker-pid-file", s.pidOf(p))
	s.ok(c.Start())
	fails := func(st harness.Status) bool {
		return st.Attachment == "attached" && st.Mode == "active" && len(st.Ready.Causes) == 1 && strings.HasPrefix(st.Ready.Causes[0], "work: ")
	}
	st, err := c.Await(s.ctx, bound, "attached, and not ready because of its work alone", fails)
	s.ok(err)
	probes := s.lab.Record(c.Sidecar)
	since := time.Now()
	s.ok(harness.Await(s.ctx, bound, "more than its TTL", func(context.Context) (bool, string) {
		return time.Since(since) > 2*standTTL, ""
	}))
	if now, err := c.Status(s.ctx); err != nil || !fails(now) || now.Epoch != st.Epoch || now.Lease.ID != st.Lease.ID {
		t.Errorf("it was %s\nand became %s, %v", st, now, err)
	}
	if err := probes.NeverReady(since, time.Now()); err != nil {
		t.Error(err)
	}
	if !p.Running() || c.owns() != 1 {
		t.Errorf("running: %v, and it owns %d bundles, want 1", p.Running(), c.owns())
	}
	s.ok(p.Fault(s.ctx, "hang-health", "off"))
	s.ok(c.AwaitReady(s.ctx, 2*bound)) // the try that hangs has 10 s, and so has the pause after it
}

func TestAPulsarBrokerThatIsKilledIsNotReadyAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.besidePulsar(s.pulsar("p1"), "--lease-ttl", "30s", "--health-interval", "1s")
	killed := time.Now()
	s.ok(c.broker.Kill())
	within(t, "ready no more", killed, s.lastReady(c.Sidecar, killed), 200*time.Millisecond)
}
