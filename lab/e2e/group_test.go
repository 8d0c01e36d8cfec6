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
func TestTheGuardStopsAGroupWhoseLeaderHasEnded(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the sidecar freezes", "while it is frozen"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			c := s.supervisedAs("n1", func(server, conf string) []string {
				return []string{"/bin/sh", "-c", `"$0" -c "$1" & wait`, server, conf}
			})
			c.run()
			s.ok(c.AwaitReady(s.ctx, bound))
			raw, err := os.ReadFile(c.nats.PIDFile)
			s.ok(err)
			server, err := strconv.Atoi(strings.TrimSpace(string(raw)))
			s.ok(err)
			t.Cleanup(func() { _ = syscall.Kill(server, syscall.SIGKILL) })
			armed := func() {
				s.ok(harness.Await(s.ctx, bound, "an armed guard", func(context.Context) (bool, string) {
					g, ok := c.Guard()
					return ok && g.Armed, fmt.Sprintf("%+v", g)
				}))
			}
			end := func() {
				leader := c.child()
				s.ok(syscall.Kill(leader, syscall.SIGKILL))
				s.ok(harness.Await(s.ctx, bound, "the leader to end", func(context.Context) (bool, string) {
					return !runs(leader), "it runs"
				}))
				if !runs(server) {
					t.Fatal("the broker ended with the leader of its group")
				}
			}
			armed()
			if when == "before the sidecar freezes" {
				end()
				s.ok(c.AwaitReady(s.ctx, bound))
				armed()
				s.ok(c.Freeze())
			} else {
				s.ok(c.Freeze())
				end()
			}
			t.Cleanup(func() { _ = c.Thaw() })
			s.awaitChange("the expiry", 0, harness.DeletedKey(s.keys.Registration("n1")))
			if runs(server) {
				t.Error(harness.Violation + "the broker runs, and its key is gone")
			}
		})
	}
}
