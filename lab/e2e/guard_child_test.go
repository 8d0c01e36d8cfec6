package e2e

import (
	"context"
	"syscall"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// A broker that the sidecar started survives it, so only the guard keeps it from
// serving past the deadline.
func TestTheBrokerThatADeadSidecarStartedIsStoppedBeforeItsKeyIsGone(t *testing.T) {
	for name, harm := range map[string]func(*couple) error{
		"frozen": func(c *couple) error { return c.Freeze() },
		"killed": func(c *couple) error { return c.Kill() },
		"killed with its group": func(c *couple) error {
			defer func() { <-c.Exited() }()
			return syscall.Kill(-c.PID(), syscall.SIGKILL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			c := s.supervised("n1")
			c.run()
			s.ok(c.AwaitReady(s.ctx, bound))
			broker := c.awaitBroker(0)
			s.ok(c.AwaitGuarded(s.ctx, bound))
			s.ok(harm(c))
			s.ok(harness.Await(s.ctx, standTTL+bound, "the broker to end", func(context.Context) (bool, string) {
				return !runs(broker), "it runs"
			}))
			stopped := time.Now()
			gone, err := s.history.Await(s.ctx, standTTL+bound, "the expiry", 0, harness.DeletedKey(s.keys.Registration("n1")))
			s.ok(err)
			t.Logf("the key was gone %v after the broker ended", gone.At.Sub(stopped))
			inOrder(t, "the broker ended", stopped, "its key was gone", gone.At)
			if c.Guard() == 0 {
				t.Error("whoever starts the broker again undoes it: the guard has ended")
			}
		})
	}
}
