package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// A pid file that names a stranger had the stranger killed, and the broker called fenced.
func TestTheProcessOfAWrongPidFileIsLeftAloneAndSaidSo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	stranger := exec.Command("sleep", "600")
	s.must(stranger.Start())
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	time.Sleep(time.Second) // else its start fits what the broker says of its own as well as the broker's
	file := filepath.Join(t.TempDir(), "wrong.pid")
	s.must(os.WriteFile(file, fmt.Append(nil, stranger.Process.Pid), 0o600))

	n := s.prepare("n1", nodeOptions{})
	n.sidecar.SetFlags("--broker-pid-file", file)
	since := time.Now()
	n.start()
	n.awaitReady() // it serves, without a guard
	said := n.awaitEvent(since, "process", "foreign").Detail
	if want := fmt.Sprintf("--broker-pid-file %s: process %d (sleep) is not the broker that answers at ", file, stranger.Process.Pid); !strings.HasPrefix(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
	s.must(harness.Await(s.ctx, bound, "the status to say so", func(ctx context.Context) (bool, string) {
		st, err := n.sidecar.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(st.Summary, "nothing can stop it in time: --broker-pid-file "+file), st.Summary
	}))
	s.must(n.sidecar.Freeze())
	n.awaitExpiry(s.revision())
	s.must(n.sidecar.Thaw())
	if !runs(stranger.Process.Pid) {
		t.Error("the stranger was killed")
	}
	if !n.nats.Running() {
		t.Error("the broker was stopped, by nobody who may")
	}
	s.waitOut(n.ttl / 2)
	if told := n.says("events"); strings.Contains(told, "stopped") || strings.Contains(told, "gone") {
		t.Errorf("it is told that something was stopped:\n%s", told)
	}
}

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

// The command would find its port taken again and again, and nothing could stop what serves.
func TestNoChildIsStartedBesideABrokerThatRuns(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.supervised("n1")
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	broker := c.awaitBroker(0)

	other := s.settings(c.nats, "--state-dir", t.TempDir())
	server, err := harness.Build(harness.NATSServer)
	s.ok(err)
	words := fmt.Sprintf("a broker that is not our child already answers at %s (process %d, nats-server): stop it, or leave out '-- CMD' and give --broker-pid-file", c.nats.URL(), broker)
	other = append(other, "--", server, "-c", filepath.Join(s.lab.Dir, "n1", "nats.conf"))
	if res := s.command(append([]string{"run"}, other...)...); res.Exit != 2 || res.Stderr != "holdfast: "+words+"\n" {
		t.Errorf("run: exit code %d, said\n%swant\n%s", res.Exit, res.Stderr, words)
	}
	if res := s.command(append([]string{"check"}, other...)...); res.Exit != 0 || !strings.Contains(res.Stdout, words) {
		t.Errorf("check: exit code %d, said\n%s%s", res.Exit, res.Stdout, res.Stderr)
	}
	// The sidecar of that child may be killed and come back.
	s.ok(c.Kill())
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	if again := c.child(); again != broker {
		t.Errorf("process %d after %d", again, broker)
	}
}
