package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
)

// A page at night must mean something. The rules are twenty times as fast, so these are
// ten minutes of a fleet that is well, and ten of a person's work on one of its brokers.
func TestNoAlertFiresInAHealthyFleetNorByAPlannedDrain(t *testing.T) {
	takesLong(t)
	t.Parallel()
	const calm = 10 * time.Minute / 20
	w := newStage(t).watched(20, time.Second)
	var nodes []*node
	for _, id := range []string{"n1", "n2", "n3"} {
		n := w.add(id, nodeOptions{TTL: 32 * time.Second})
		w.scrape("calm", n)
		nodes = append(nodes, n)
	}
	w.must(w.prom.AwaitScrape(w.ctx))
	w.is(prom.Inactive, "HoldfastAbsent") // so much it says until it has seen something
	since := time.Now()
	w.lasts(calm)

	t.Log("a person drains n3 and stops it for a while")
	n := nodes[2]
	n.drains()
	n.await("the end of the drain", func(st harness.Status) bool { return st.Mode == "drained" && st.Topics.Served == 0 })
	w.lasts(calm / 4)
	w.must(n.sidecar.Stop(w.ctx))
	w.must(n.nats.Kill())
	w.lasts(calm / 2)
	n.start()
	n.await("drained, as it was", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	n.activate()
	w.must(w.prom.AwaitScrape(w.ctx))
	w.lasts(calm / 4)

	changes, _ := w.prom.Changes()
	for _, c := range changes {
		// Of a machine that starves etcd these two would be true, and it is not the claim here.
		if c.Alert.Name == "HoldfastRenewalsSlow" || c.Alert.Name == "HoldfastRenewalsFailing" {
			continue
		}
		if c.At.After(since) && c.Alert.State == prom.Firing {
			t.Errorf("%v: %s", c, c.Alert.Annotations["description"])
		}
	}
}

// lasts lets time pass in which nothing is to happen.
func (w *watched) lasts(d time.Duration) {
	w.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
		w.t.Fatal("ended early")
	}
}
