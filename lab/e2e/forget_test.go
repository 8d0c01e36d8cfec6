package e2e

import (
	"strings"
	"testing"

	"holdfast/lab/harness"
)

func TestABrokerThatIsGoneForGoodIsForgottenAndOneThatIsRegisteredIsNot(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	bin, err := harness.Build(harness.Holdfast)
	s.ok(err)
	forget := func(exit int, more ...string) harness.Result {
		s.Helper()
		args := append([]string{"forget", "--driver", "nats", "--etcd-endpoints", s.etcd.Endpoint()}, append(more, "n2")...)
		res, err := harness.RunHoldfast(s.ctx, bin, args...)
		s.ok(err)
		if res.Exit != exit {
			s.Errorf("%v: exit code %d, want %d:\n%s%s", args, res.Exit, exit, res.Stdout, res.Stderr)
		}
		return res
	}
	known := func() int {
		s.Helper()
		found := 0
		for _, key := range []string{s.keys.Member("n2"), s.keys.State("n2"), s.keys.Assignment("n2", "/default/a")} {
			answer, err := s.etcd.Client().Get(s.ctx, key)
			s.ok(err)
			found += int(answer.Count)
		}
		return found
	}

	foretold := func(c *couple) string {
		s.Helper()
		res, err := harness.RunHoldfast(s.ctx, bin, append([]string{"check"}, c.Args()[1:]...)...)
		s.ok(err)
		for line := range strings.Lines(res.Stdout) {
			if strings.HasPrefix(line, "start ") {
				return line
			}
		}
		s.Fatalf("check says nothing of a start:\n%s%s", res.Stdout, res.Stderr)
		return ""
	}

	stays := s.couple("n1")
	c := s.couple("n2")
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n2", "/default/a"))
	c.await("its topic", func(st harness.Status) bool { return st.Topics.Served == 1 })
	if res := forget(3); !strings.Contains(res.Stderr, "it is registered by /cluster/register/n2, under lease") {
		t.Errorf("while it is registered: %s", res.Stderr)
	}
	if line := foretold(c); !strings.Contains(line, "a sidecar runs: n2 is active") {
		t.Errorf("while it runs, check says %s", line)
	}
	last := c.registration()
	s.ok(c.nats.Kill())
	s.ok(c.Kill())
	gone := s.awaitChange("the expiry", last.ModRevision, harness.DeletedKey(s.keys.Registration("n2")))
	if line := foretold(c); !strings.Contains(line, "drained (stale_restart), decided by stale_restart") {
		t.Errorf("of its start check says %s", line)
	}
	if res := forget(0, "--dry-run"); !strings.Contains(res.Stdout, "would be forgotten") || !strings.Contains(res.Stdout, "/default/a") {
		t.Errorf("it says %s", res.Stdout)
	}
	if known() != 3 {
		t.Error("--dry-run removed something")
	}
	forget(0)
	if n := known(); n > 0 {
		t.Errorf("%d of 3 keys are still there", n)
	}
	waits := s.awaitChange("the topic to wait", gone.Revision, harness.PutKey(s.keys.Prefix+"/cluster/unassigned/default/a"))
	if waits.Value != `{"reason":"forget","from_broker":"n2"}` {
		t.Errorf("the marker is %s", waits.Value)
	}
	if res := forget(1); !strings.Contains(res.Stderr, "knows no such broker") {
		t.Errorf("once more: %s", res.Stderr)
	}

	// It comes back all the same, with its state directory.
	s.ok(c.nats.Start(s.ctx))
	c.run()
	if st := c.awaitBooted(); st.Mode != "drained" || st.Reason != "stale_restart" || st.Topics.Assigned != 0 {
		t.Errorf("back: %s (%s), %d topics", st.Mode, st.Reason, st.Topics.Assigned)
	}
	stays.stayedLive()
	c.stayedLive()
}
