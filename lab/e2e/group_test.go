package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// `run -- start.sh` without exec: the shell may end, and what it has started serves on.
func TestTheRestOfAGroupWhoseLeaderHasEndedIsStopped(t *testing.T) {
	t.Parallel()
	led := func(t *testing.T) (c *couple, server int, endLeader func()) {
		t.Parallel()
		s := newStand(t)
		c = s.supervisedAs("n1", func(server, conf string) []string {
			return []string{"/bin/sh", "-c", `"$0" -c "$1" & wait`, server, conf}
		})
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		raw, err := os.ReadFile(c.nats.PIDFile)
		s.ok(err)
		server, err = strconv.Atoi(strings.TrimSpace(string(raw)))
		s.ok(err)
		t.Cleanup(func() { _ = syscall.Kill(server, syscall.SIGKILL) })
		return c, server, func() {
			leader := c.child()
			s.ok(syscall.Kill(leader, syscall.SIGKILL))
			c.ends(leader)
		}
	}
	t.Run("by its sidecar", func(t *testing.T) {
		c, server, endLeader := led(t)
		before := c.child()
		endLeader()
		c.ends(server)
		c.s.ok(harness.Await(c.s.ctx, bound, "another broker", func(context.Context) (bool, string) {
			now := c.child()
			return now != 0 && now != before && runs(now), fmt.Sprint(now)
		}))
		c.s.ok(c.AwaitReady(c.s.ctx, bound))
	})
	t.Run("by the guard of a frozen one", func(t *testing.T) {
		c, server, endLeader := led(t)
		s := c.s
		s.ok(c.AwaitGuarded(s.ctx, bound))
		s.ok(c.Freeze())
		t.Cleanup(func() { _ = c.Thaw() })
		endLeader()
		if !runs(server) {
			t.Fatal("the broker ended with the leader of its group")
		}
		s.awaitChange("the expiry", 0, harness.DeletedKey(s.keys.Registration("n1")))
		if runs(server) {
			t.Error(harness.Violation + "the broker runs, and its key is gone")
		}
	})
}

// ends waits until the process has ended.
func (c *couple) ends(pid int) {
	c.s.Helper()
	c.s.ok(harness.Await(c.s.ctx, bound, fmt.Sprintf("process %d to end", pid), func(context.Context) (bool, string) {
		return !runs(pid), "it runs"
	}))
}
