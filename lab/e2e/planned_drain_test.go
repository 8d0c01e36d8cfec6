package e2e

import (
	"sync"
	"testing"

	"holdfast/lab/harness"
)

// A drain comes between the stop and the return, at each moment that there is one. It stays,
// over one more restart, until somebody activates.
func TestADrainDuringAPlannedRestartStays(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		restart func(c *couple, drain func())
	}{
		{"while it leaves", func(c *couple, drain func()) {
			var both sync.WaitGroup
			both.Go(func() { _, _ = c.Verb(c.s.ctx, "leave") }) // which of the two comes first is open
			both.Go(drain)
			both.Wait()
			c.s.ok(c.nats.Stop(c.s.ctx))
			c.s.ok(c.nats.Start(c.s.ctx))
		}},
		{"once it has left", func(c *couple, drain func()) {
			c.says("leave")
			drain()
			c.s.ok(c.nats.Stop(c.s.ctx))
			c.s.ok(c.nats.Start(c.s.ctx))
		}},
		{"while its process is away", func(c *couple, drain func()) {
			c.says("leave")
			c.s.ok(c.nats.Stop(c.s.ctx))
			drain()
			c.s.ok(c.nats.Start(c.s.ctx))
		}},
		{"while its process starts", func(c *couple, drain func()) {
			c.says("leave")
			c.s.ok(c.nats.Stop(c.s.ctx))
			c.s.ok(c.nats.Launch())
			drain()
		}},
		{"as soon as it is back", func(c *couple, drain func()) {
			epoch := c.registration().CreateRevision
			c.says("leave")
			c.s.ok(c.nats.Stop(c.s.ctx))
			c.s.ok(c.nats.Start(c.s.ctx))
			c.await("the next registration", func(st harness.Status) bool { return st.Registration.CreateRevision > epoch })
			drain()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newSharedStand(t)
			s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
			peers := []*couple{s.couple("n2"), s.couple("n3")}
			c := s.couple("n1")
			c.serves("/default/a")
			row.restart(c, func() {
				if res, err := c.Verb(s.ctx, "drain", "--reason", "new disks"); err != nil || res.Exit != 0 {
					t.Errorf("drain: %v, exit code %d: %s", err, res.Exit, res.Stderr)
				}
			})
			stays := func() {
				t.Helper()
				st := c.await("registered, and drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
				if st.Reason != "new disks" || st.Ready.OK {
					t.Errorf("%s (%s), ready %t; want drained (new disks)", st.Mode, st.Reason, st.Ready.OK)
				}
				if got := c.state(); got.Mode != "drained" || got.Reason != "new disks" || got.By != "operator" {
					t.Errorf("state in etcd %+v, want the operator's drain", got)
				}
				s.notServed(c, "/default/a")
			}
			stays()
			c.terminate()
			s.ok(c.nats.Stop(s.ctx))
			s.ok(c.nats.Start(s.ctx))
			c.run()
			stays()
			c.activate()
			c.serves("/default/a")
			for _, p := range peers {
				p.neverDetached()
			}
		})
	}
}
