package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/recovery"
)

// The whole cluster is stopped and comes back, and so is a broker that had stopped before: that one is
// taken for one of the fleet, however long before it stopped.
func TestNobodyIsDrainedAfterARestartOfAll(t *testing.T) {
	const ttl = 8 * time.Second
	for _, c := range []struct {
		name   string
		before time.Duration // the others
		ahead  time.Duration // clock of n1
	}{
		{"long before the others", 5 * ttl, 0},
		{"a little before the others", ttl, 0},
		{"with the others, one of whose clocks is five minutes ahead", 0, 5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(schedule{Settings: settings{Nodes: 3, Topics: 3, TTL: ttl, Policy: "drain", Latency: time.Millisecond}})
				end := f.build(dir)
				stop := func(n *node) {
					n.broker.kill()
					n.crashSidecar(0)
				}
				start := func(n *node) {
					n.broker.start()
					n.startSidecar()
				}
				f.nodes[1].host.stepped = c.ahead
				for i, n := range f.nodes {
					key := f.keys.Assignment(n.id, f.topic(i))
					f.txn(key, false, put(key))
					start(n)
				}
				time.Sleep(15 * time.Second)
				late := f.nodes[0]
				stop(late)
				time.Sleep(c.before)
				stop(f.nodes[1])
				stop(f.nodes[2])
				time.Sleep(10 * time.Minute)
				start(f.nodes[1])
				start(f.nodes[2])
				time.Sleep(15 * time.Second)
				start(late)
				time.Sleep(15 * time.Second)
				for _, n := range f.nodes {
					mode, reason := recovery.Active, recovery.ReasonFullClusterRestart
					if s, ok := n.status(); !ok || s.Mode != string(mode) || s.Reason != string(reason) {
						t.Errorf("%s is %s (%s), want %s (%s)", n.id, s.Mode, s.Reason, mode, reason)
					}
				}
				for _, n := range f.nodes {
					n.stopSidecar()
				}
				f.close(end)
				for _, v := range f.checks.found() {
					t.Error(v)
				}
			})
		})
	}
}
