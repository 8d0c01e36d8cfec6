package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// unquiescable is a NATS configuration whose clients may do everything but change a
// stream: topics can be loaded, and not quiesced.
const unquiescable = `
accounts { A { jetstream: enabled, users: [ { user: a, password: a,
  permissions: { publish: { deny: ["$JS.API.STREAM.UPDATE.>"] } } } ] } }
no_auth_user: a`

// stoppable is a node whose sidecar may stop the broker.
func (s *stage) stoppable(id, conf string, flags ...string) *node {
	s.t.Helper()
	n := s.prepare(id, nodeOptions{Cuttable: true, Flags: flags, Conf: conf})
	n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
	n.start()
	n.awaitReady()
	return n
}

// ended is a channel that receives when the broker's process ended.
func (n *node) ended() <-chan time.Time {
	at := make(chan time.Time, 1)
	exited := n.nats.Exited()
	go func() { <-exited; at <- time.Now() }()
	return at
}

// endsBeforeItsKey checks that the broker's process ended before etcd deleted its
// registration, as the ladder promises: a third of the margin before the deadline.
func (n *node) endsBeforeItsKey(ended <-chan time.Time, revision int64) {
	n.t.Helper()
	gone := n.awaitExpiry(revision)
	select {
	case at := <-ended:
		inOrder(n.t, "the broker ended", at, "its key was gone", gone.At)
		n.t.Logf("ended %v before the key was gone", gone.At.Sub(at).Round(time.Millisecond))
	default:
		n.t.Error(harness.Violation + "the broker runs, and its key is gone")
	}
}

// stoppedOrGone is how the journal tells the end of a broker that is stopped: on a busy machine
// it may take a process longer to exit than the step waits for it.
var stoppedOrGone = []string{"stopped", "gone"}

func TestAFrozenBrokerIsKilledBeforeItsKeyIsGone(t *testing.T) {
	t.Parallel()
	t.Run("frozen when the cut begins", func(t *testing.T) {
		t.Parallel()
		n := newStage(t).stoppable("n1", "")
		ended, revision, since := n.ended(), n.revision(), time.Now()
		n.must(n.link.Cut())
		n.must(n.nats.Freeze())
		n.endsBeforeItsKey(ended, revision)
		n.awaitEvent(since, "fence", stoppedOrGone...)
	})
}

// A restart grace is for a broker that has ended. One that hangs may serve again. Beside one
// that is well it is stopped.
func TestABrokerThatHangsKeepsItsKeyBeyondTheRestartGraceUntilItIsStopped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.peer("n2")
	n := s.stoppable("n1", "", "--restart-grace", "200ms")
	ended, revision, since := n.ended(), n.revision(), time.Now()
	n.must(n.nats.Freeze())
	gone := n.awaitExpiry(revision)
	n.awaitEvent(since, "fence", stoppedOrGone...)
	// The lease is revoked as soon as the sidecar has the proof of the end, of which this
	// process hears later.
	within(t, "heard to have ended, after its key was gone,", gone.At, (<-ended).Sub(gone.At), 500*time.Millisecond)
}

func TestABrokerThatCannotBeQuiescedIsStoppedBeforeItsKeyIsGone(t *testing.T) {
	t.Parallel()
	n := newStage(t).stoppable("n1", unquiescable)
	ended, revision, since := n.ended(), n.revision(), time.Now()
	n.must(n.link.Cut())
	n.endsBeforeItsKey(ended, revision)
	n.awaitEvent(since, "fence", stoppedOrGone...)
	if e := n.awaitEvent(since, "fence", "failed"); e.Reason != "quiesce" {
		t.Errorf("%+v", e)
	}

	// A supervisor starts it again, and it is fenced again, etcd being away.
	again := time.Now()
	n.must(n.nats.Launch())
	stopped := n.ended()
	n.awaitEvent(again, "fence", stoppedOrGone...)
	select {
	case <-stopped:
	case <-time.After(bound):
		t.Error(harness.Violation + "the broker that was started again runs unregistered")
	}
}

// An outage of etcd must not cost a restart.
func TestABrokerThatCanBeQuiescedIsNotStopped(t *testing.T) {
	t.Parallel()
	n := newStage(t).stoppable("n1", "", "--lease-ttl", "9s")
	revision, since, pid := n.revision(), time.Now(), n.nats.PID()
	n.must(n.link.Cut())
	n.awaitExpiry(revision)
	n.awaitEvent(since, "fence", "quiesced")
	n.must(n.link.Heal())
	n.awaitReady()
	if !n.nats.Running() || n.nats.PID() != pid {
		t.Error("the broker was stopped")
	}
	n.publishes()
}

func TestBrokerLiveFailsWhereOnlyARestartHelps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	n := s.prepare("n1", nodeOptions{Cuttable: true, Conf: unquiescable})
	n.start()
	n.awaitReady()
	brokerLive := func(want int) {
		t.Helper()
		n.must(harness.Await(n.ctx, n.ttl+bound, "/broker/live", func(ctx context.Context) (bool, string) {
			code, body, err := n.sidecar.Probe(ctx, "/broker/live")
			if err != nil {
				return false, err.Error()
			}
			return code == want, body
		}))
	}
	brokerLive(http.StatusOK)
	n.must(n.link.Cut())
	brokerLive(http.StatusServiceUnavailable)
	n.must(n.nats.Kill()) // as a kubelet would
	brokerLive(http.StatusOK)
}
