package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// supervised prepares a sidecar that starts its broker itself.
func (s *stand) supervised(id string, flags ...string) *couple {
	s.Helper()
	return s.supervisedAs(id, func(server, conf string) []string { return []string{server, "-c", conf} }, flags...)
}

func (s *stand) supervisedAs(id string, command func(server, conf string) []string, flags ...string) *couple {
	s.Helper()
	n, err := s.lab.NewNATS(harness.NATSOptions{Name: id})
	s.ok(err)
	server, err := harness.Build(harness.NATSServer)
	s.ok(err)
	c := s.beside(n, flags...)
	c.command = command(server, filepath.Join(s.lab.Dir, id, "nats.conf"))
	c.SetFlags(append([]string{"--"}, c.command...)...)
	s.Cleanup(func() { // it survives a killed sidecar
		if pid := c.child(); pid > 1 {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	return c
}

// child is the process that runs the sidecar's command, 0 if there is none.
func (c *couple) child() int { return runner(c.command) }

// runner is the first process that was started with such a command line, 0 if there is none.
func runner(command []string) int {
	for _, pid := range harness.PIDs(func(args []string) bool { return slices.Equal(args, command) }) {
		return pid
	}
	return 0
}

// awaitBroker waits for another broker process than before, by its own pid file.
func (c *couple) awaitBroker(before int) (pid int) {
	c.s.Helper()
	c.s.ok(harness.Await(c.s.ctx, bound, "the broker's process", func(context.Context) (bool, string) {
		raw, err := os.ReadFile(c.nats.PIDFile)
		if err != nil {
			return false, err.Error()
		}
		pid, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		return pid > 1 && pid != before && pid == c.child(), string(raw)
	}))
	return pid
}

// unregistered checks that the registration was given up.
func (s *stand) unregistered(id string) {
	s.Helper()
	got, err := s.etcd.Client().Get(s.ctx, s.keys.Registration(id))
	s.ok(err)
	if got.Count != 0 {
		s.Errorf("still registered: %s", got.Kvs[0].Value)
	}
}

func runs(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

// history is what the sidecar tells of the broker's process, with reasons, in order.
func (c *couple) history() string {
	c.s.Helper()
	var words []string
	for _, e := range c.events("process") {
		words = append(words, strings.TrimSuffix(e.To+":"+e.Reason, ":"))
	}
	return strings.Join(words, " ")
}

func TestASupervisedBrokerIsStartedAgainHearsSignalsAndIsStoppedFirst(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	c := s.supervised("n1")
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	first := c.awaitBroker(0)

	begun, err := c.nats.ConfigLoaded(s.ctx)
	s.ok(err)
	s.ok(c.Signal(syscall.SIGHUP)) // nats-server reloads
	s.ok(harness.Await(s.ctx, bound, "the broker to reload", func(ctx context.Context) (bool, string) {
		loaded, err := c.nats.ConfigLoaded(ctx)
		return loaded.After(begun), fmt.Sprint(loaded, err)
	}))

	s.ok(syscall.Kill(first, syscall.SIGKILL))
	second := c.awaitBroker(first)
	s.ok(c.AwaitReady(s.ctx, bound))

	if code := c.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if runs(second) {
		t.Error("the broker outlived a clean stop")
	}
	s.unregistered("n1")
	if got := c.history(); got != "started ended:signal started stopped:clean_stop" {
		t.Error(got)
	}
}

func TestTheGuardStopsTheChildOfAFrozenSidecarWhichStartsItAgain(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	c := s.supervised("n1")
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	pid := c.awaitBroker(0)
	c.awaitMetric("holdfast_guard_up", 1, bound)
	s.ok(c.Freeze())
	t.Cleanup(func() { _ = c.Thaw() })
	s.ok(harness.Await(s.ctx, standTTL, "the guard to stop the broker before the deadline", func(context.Context) (bool, string) {
		return !runs(pid), "it runs"
	}))
	got, err := s.etcd.Client().Get(s.ctx, s.keys.Registration("n1"))
	s.ok(err)
	if got.Count == 0 {
		t.Error("the registration was gone before the broker was known to be")
	}
	s.ok(c.Thaw())
	c.awaitBroker(pid)
	c.await("attachment", func(st harness.Status) bool { return st.Attachment == "attached" })
	if got := c.history(); got != "started ended:fenced started" && got != "started ended:fenced held:fenced started" {
		t.Error(got)
	}
}
