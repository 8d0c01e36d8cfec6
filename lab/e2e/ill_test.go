package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

const togetherTTL = 16 * time.Second

// held waits until the sidecar says that its broker is held for that reason.
func (n *node) held(why string) {
	n.t.Helper()
	n.await("held: "+why, func(st harness.Status) bool {
		return st.Broker.Held == why && st.Attachment == "attached" && !st.Ready.OK
	})
}

// What befalls all brokers is nobody's fault: nothing is stopped, and no registration ends.
func TestBrokersThatHangTogetherKeepTheirRegistrationsAndAreStoppedByNobody(t *testing.T) {
	long(t)
	for name, want := range map[string]string{"three": "all_ill", "one alone": "alone"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			ids := []string{"n1", "n2", "n3"}
			if want == "alone" {
				ids = ids[:1]
			}
			var nodes []*node
			for _, id := range ids {
				// With a TTL so that all have noticed, and said so, before the first must decide.
				nodes = append(nodes, s.stoppable(id, "", "--lease-ttl", togetherTTL.String()))
			}
			before, pids := map[string]harness.RegistrationKey{}, map[string]int{}
			for _, n := range nodes {
				before[n.id], pids[n.id] = n.registration(), n.nats.PID()
			}
			since := time.Now()
			for _, n := range nodes {
				s.must(n.nats.Freeze())
			}
			for _, n := range nodes {
				n.held(want)
			}
			s.waitOut(2 * togetherTTL)
			for _, n := range nodes {
				n.held(want)
				contains(t, n.verb("status"), "nothing is stopped")
				text, err := n.sidecar.Metrics(s.ctx)
				s.must(err)
				if v, ok := seriesValue(text, "holdfast_ill_together"); !ok || v != 1 {
					t.Errorf("%s: holdfast_ill_together is %v, %v", n.id, v, ok)
				}
			}
			for _, n := range nodes {
				s.must(n.nats.Thaw())
			}
			for _, n := range nodes {
				n.awaitReady()
				if now := n.registration(); now != before[n.id] || n.nats.PID() != pids[n.id] {
					t.Errorf("%s: registration %+v, was %+v; process %d, was %d", n.id, now, before[n.id], n.nats.PID(), pids[n.id])
				}
				events, err := n.sidecar.Events(s.ctx)
				s.must(err)
				for _, e := range events {
					if e.At.After(since) && (e.Kind == "fence" || e.To == "guard_fired" || e.To == "detached") {
						t.Errorf("%s: %+v", n.id, e)
					}
				}
			}
		})
	}
}
