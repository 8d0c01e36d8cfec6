package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// While the broker is down the server beside it is the only one with its name. It is not taken for the
// broker, nor stopped, by the sidecar or its guard, and the broker that is back is guarded.
func TestOfSeveralServersTheOneAtTheAdminPortIsTheBroker(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	bin, err := harness.Build(harness.NATSServer)
	s.ok(err)
	mine := filepath.Join(t.TempDir(), "nats-of-two") // as no other test's are called
	s.ok(os.Symlink(bin, mine))
	start := func(id string) *harness.NATS {
		n, err := s.lab.StartNATS(s.ctx, harness.NATSOptions{Name: id, Binary: mine})
		s.ok(err)
		return n
	}
	beside, n := start("beside"), start("n1")
	c := s.beside(n, "--broker-process", "nats-of-two")
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	guarded := func() {
		t.Helper()
		c.await("the guard of the broker", func(st harness.Status) bool {
			return st.Guard.State == "stands_by" && st.Guard.Pid == n.PID() && st.Ready.OK
		})
	}
	guarded()
	s.ok(n.Kill())
	c.await("the broker's end", func(st harness.Status) bool { return st.Broker.Up == "down" })
	s.ok(n.Start(s.ctx))
	guarded()
	for _, to := range []string{"foreign", "absent"} {
		if told := slices.Concat(c.events("process", to), c.events("guard", to)); len(told) > 0 {
			t.Errorf("told: %v", told)
		}
	}
	// Nobody tells the guard any more.
	s.ok(n.Kill())
	s.ok(c.Kill())
	waitOut(t, s.etcd, standTTL)
	s.ok(n.Launch())
	s.ok(harness.Await(s.ctx, bound, "what the guard does to the broker that is started again", func(context.Context) (bool, string) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
		return err != nil || strings.Contains(string(raw), ") T ") || strings.Contains(string(raw), ") Z "), string(raw)
	}))
	s.ok(beside.AwaitUp(s.ctx))
	if !runs(beside.PID()) {
		t.Error("the server beside it was stopped")
	}
	if n.Running() { // held by SIGSTOP
		s.ok(n.Kill())
	}
	c.run()
	s.ok(n.Start(s.ctx))
	guarded()
	s.ok(n.Kill())
	c.await("the broker's end, again", func(st harness.Status) bool { return st.Broker.Up == "down" })
	s.ok(beside.AwaitUp(s.ctx))
	if exit := c.terminate(); exit != 0 {
		t.Errorf("exit code %d", exit)
	}
}
