package e2e

import (
	"fmt"
	"testing"

	"holdfast/lab/harness"
)

// Planned restarts: who leaves on purpose comes back active, without a person, and nothing
// lifts an operator's drain.

// ways are how a broker and its sidecar are restarted on purpose.
var ways = map[string]func(c *couple){
	"the sidecar is stopped, then the broker": func(c *couple) {
		if code := c.terminate(); code != 0 {
			c.s.Fatalf("exit code %d, want 0", code)
		}
		c.s.ok(c.nats.Stop(c.s.ctx))
		c.s.ok(c.nats.Start(c.s.ctx))
		c.run()
	},
	"leave, then the broker alone": func(c *couple) {
		c.says("leave")
		if reg := c.registration(); reg.CreateRevision != 0 {
			c.s.Errorf("it has left, and its registration is %+v", reg)
		}
		c.s.ok(c.nats.Stop(c.s.ctx))
		c.s.ok(c.nats.Start(c.s.ctx))
	},
	"leave, then the sidecar, then the broker": func(c *couple) {
		c.says("leave")
		if code := c.terminate(); code != 0 {
			c.s.Fatalf("exit code %d, want 0", code)
		}
		c.run()
		c.await("the process that left", func(st harness.Status) bool { return st.Broker.Up == "up" })
		if reg := c.registration(); reg.CreateRevision != 0 {
			c.s.Errorf("it has left, and its registration is %+v", reg)
		}
		c.s.ok(c.nats.Stop(c.s.ctx))
		c.s.ok(c.nats.Start(c.s.ctx))
	},
}

// says runs a verb that must succeed.
func (c *couple) says(verb string, args ...string) {
	c.s.Helper()
	res, err := c.Verb(c.s.ctx, verb, args...)
	c.s.ok(err)
	if res.Exit != 0 {
		c.s.Fatalf("%s %v: exit code %d: %s", verb, args, res.Exit, res.Stderr)
	}
}

func TestARollingRestartNeedsNobody(t *testing.T) {
	t.Parallel()
	for name, restart := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSharedStand(t)
			var fleet []*couple
			for i := range 3 {
				id := fmt.Sprintf("n%d", i+1)
				s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), id, "/default/"+id))
				fleet = append(fleet, s.couple(id))
				fleet[i].serves("/default/" + id)
			}
			for _, c := range fleet {
				epoch := c.registration().CreateRevision
				restart(c)
				st := c.await("the next registration", func(st harness.Status) bool { return st.Registration.CreateRevision > epoch && st.Ready.OK })
				if st.Mode != "active" || st.Reason != "planned_restart" || st.Boot.Kind != "restart" {
					t.Errorf("%s: boot %s, %s (%s); want restart, active, planned_restart", c.id, st.Boot.Kind, st.Mode, st.Reason)
				}
				c.serves("/default/" + c.id)
			}
			for _, c := range fleet {
				if st := c.state(); st.Mode != "active" {
					t.Errorf("%s ends %+v", c.id, st)
				}
				c.stayedLive()
			}
		})
	}
}

func TestWhoCrashesAfterAnEarlierPlannedStopIsNotExcusedByIt(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	peer, c := s.couple("n2"), s.couple("n1")
	c.terminate()
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	from := s.caughtUp()
	s.ok(c.killBoth())
	gone := s.awaitChange("the end of the registration", from, harness.DeletedKey(s.keys.Registration(c.id)))
	s.ok(c.startBoth())
	c.backDrained(gone.Revision, "stale_restart")
	peer.stayedLive()
}
