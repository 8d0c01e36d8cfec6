package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

func TestABrokerThatIsRestartedUnderAFrozenSidecarIsStoppedAgainUntilItThaws(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStage(t)
	n, _, tr := s.guarded()
	from, since := s.revision(), time.Now()
	s.KeepRunning(n.nats, 0)
	s.must(n.sidecar.Freeze())
	gone := n.awaitExpiry(from)
	s.waitOut(2 * n.ttl)
	tr.unserved(gone.At, time.Now())
	s.must(n.sidecar.Thaw())
	t.Log(n.awaitEvent(since, "fence", "guard_fired").Detail)
	n.await("attachment", func(st harness.Status) bool { return st.Attachment == "attached" && st.Broker.Up == "up" })
	pid := n.nats.PID()
	s.waitOut(n.ttl)
	if !n.nats.Running() || n.nats.PID() != pid {
		t.Error("the broker of a sidecar that runs was stopped")
	}
	n.activate()
	n.publishes()
}

// A guard is no reason not to come back.
func TestABrokerThatEndsBesideAHealthySidecarMayAlwaysBeRestarted(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStage(t)
	n, _, _ := s.guarded()
	s.KeepRunning(n.nats, 100*time.Millisecond)
	since := time.Now()
	for range 3 {
		pid := n.nats.PID()
		s.must(n.nats.Kill())
		n.await("the next process", func(st harness.Status) bool { return n.nats.PID() != pid && st.Broker.Up == "up" })
	}
	n.awaitReady()
	pid := n.nats.PID()
	n.awaitGuard(0)
	s.waitOut(2 * n.ttl)
	if !n.nats.Running() || n.nats.PID() != pid {
		t.Error("the broker was stopped")
	}
	n.publishes()
	n.neverDetached(since)
}
