package e2e

import (
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// All hosts lose their power at once and come back one after the other. The key of the last
// one stands for longer than those of the others, and nobody is behind it.
func TestAPowerCutThatEndsForEachHostAtAnotherSecondDrainsNobody(t *testing.T) {
	for _, row := range []struct {
		name   string
		within bool // the first is back before its lease has ended
		first  string
	}{
		{"all after their TTL", false, "full_cluster_restart"},
		{"the first within its TTL", true, "fast_restart"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newSharedStand(t)
			topics := map[string]string{"n1": "/default/a", "n2": "/default/b", "n3": "/default/c"}
			for id, topic := range topics {
				s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), id, topic))
			}
			last := s.couple("n3", "--lease-ttl", (2 * standTTL).String())
			couples := []*couple{s.couple("n1"), s.couple("n2"), last}
			down := s.caughtUp()
			for _, c := range couples {
				s.ok(c.Kill())
				s.ok(c.nats.Kill())
			}
			back := func(c *couple) {
				s.ok(c.nats.Start(s.ctx))
				c.run()
			}
			if row.within {
				back(couples[0])
			}
			s.awaitChange("the expiry of n2", down, harness.DeletedKey(s.keys.Registration("n2")))
			if !row.within {
				s.awaitChange("the expiry of n1", down, harness.DeletedKey(s.keys.Registration("n1")))
				back(couples[0])
				couples[0].await("suspected, since the key of n3 stands", func(st harness.Status) bool {
					return st.Mode == "drained" && strings.Contains(st.Summary, "until it is known whether other brokers lived on")
				})
			}
			back(couples[1])
			s.awaitChange("the expiry of n3", down, harness.DeletedKey(s.keys.Registration("n3")))
			began := time.Now()
			back(couples[2])
			for i, c := range couples {
				want := "full_cluster_restart"
				if i == 0 {
					want = row.first
				}
				c.await("attached, and active by itself ("+want+")", func(st harness.Status) bool {
					return st.Attachment == "attached" && st.Mode == "active" && st.Reason == want
				})
				s.ok(c.AwaitReady(s.ctx, bound))
				c.serves(topics[c.id])
			}
			t.Logf("all serve %v after the last key had gone", time.Since(began).Round(time.Millisecond))
		})
	}
}
