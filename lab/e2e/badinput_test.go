package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// command runs the binary to its end, which must come within bound.
func (s *stand) command(args ...string) harness.Result {
	s.Helper()
	bin, err := harness.Build(harness.Holdfast)
	s.ok(err)
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	res, err := harness.RunHoldfast(ctx, bin, args...)
	s.ok(err)
	return res
}

// settings are those of a sidecar that would work, with a new state directory;
// what follows wins.
func (s *stand) settings(n *harness.NATS, more ...string) []string {
	return append([]string{
		"--driver", "nats", "--broker-admin", n.URL(), "--nats-monitor", n.MonitorURL(),
		"--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", filepath.Join(s.TempDir(), "state"),
		"--probe-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0", "--log-level", "error",
	}, more...)
}

// nothingWritten checks that etcd has had no other change than the lab's own.
func (s *stand) nothingWritten() {
	s.Helper()
	s.caughtUp()
	for _, ch := range s.history.Changes() {
		if !strings.HasPrefix(ch.Key, "/lab/") {
			s.Errorf("written to etcd: %v", ch)
		}
	}
}

func TestUnreachableEtcdFailsACheckAndIsWaitedForByRun(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := s.broker("n1")
	s.ok(s.etcd.Kill())
	res := s.command(append([]string{"check"}, s.settings(n)...)...)
	want := fmt.Sprintf("holdfast: --etcd-endpoints %q: etcd is out of reach: dial tcp %s: connect: connection refused: is it running there, and is the way open?\n",
		s.etcd.Endpoint(), strings.TrimPrefix(s.etcd.Endpoint(), "http://"))
	if res.Exit != 1 || res.Stderr != want {
		t.Errorf("check: exit code %d, said\n%swant 1 and\n%s", res.Exit, res.Stderr, want)
	}

	c := s.beside(n)
	c.run()
	c.awaitMetric(`holdfast_lease_keepalive_failures_total{class="unreachable"}`, 1, bound)
	if st := c.await("waiting", func(st harness.Status) bool { return st.Broker.Up == "up" }); st.Mode != "" || st.Boot.Kind != "unknown" || st.Ready.OK {
		t.Errorf("mode %q, boot %q, ready %v without etcd; nothing may be guessed", st.Mode, st.Boot.Kind, st.Ready.OK)
	}
	s.ok(s.etcd.Start(s.ctx))
	s.ok(c.AwaitReady(s.ctx, bound))
	c.stayedLive()
}

func TestAStateDirectoryOfAnotherSidecarIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c, other := s.couple("n1"), s.broker("n2")
	reg, from := c.registration(), s.caughtUp()
	run := func(n *harness.NATS, dir string) harness.Result {
		return s.command(append([]string{"run"}, s.settings(n, "--state-dir", dir)...)...)
	}
	want := fmt.Sprintf("holdfast: --state-dir %s: another holdfast uses it (pid %d): give each sidecar a directory of its own\n", c.StateDir, c.PID())
	if res := run(other, c.StateDir); res.Exit != 2 || res.Stderr != want {
		t.Errorf("exit code %d, said\n%swant 2 and\n%s", res.Exit, res.Stderr, want)
	}
	c.stayedLive()
	s.ok(c.Kill())
	want = fmt.Sprintf("holdfast: --state-dir %s: it belongs to broker \"n1\", and the broker at %s is \"n2\" (not the expected broker): give each broker a state directory of its own, or point --broker-admin at the right one\n", c.StateDir, other.URL())
	if res := run(other, c.StateDir); res.Exit != 2 || res.Stderr != want {
		t.Errorf("exit code %d, said\n%swant 2 and\n%s", res.Exit, res.Stderr, want)
	}
	mark := s.caughtUp()
	for _, ch := range s.history.Changes() {
		if ch.Revision > from && ch.Revision < mark {
			t.Errorf("written to etcd: %v", ch)
		}
	}
	// And it took nothing from the one whose directory it is.
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	if after := c.registration(); after.OfAnyRun() != reg.OfAnyRun() {
		t.Errorf("registration %+v, want %+v", after, reg)
	}
}
