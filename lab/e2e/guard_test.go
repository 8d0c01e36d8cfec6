package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// guarded is a node whose broker a guard watches, ready and with traffic.
func (s *stage) guarded(flags ...string) (n *node, guard int, tr *traffic) {
	s.t.Helper()
	n = s.prepare("n1", nodeOptions{Flags: flags})
	n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
	n.start()
	n.awaitReady()
	return n, n.awaitGuard(0), n.publishAlways()
}

// awaitGuard waits for a guard that stands by and is another than that.
func (n *node) awaitGuard(other int) (guard int) {
	n.t.Helper()
	n.await("a guard", func(st harness.Status) bool {
		guard = n.sidecar.Guard()
		return st.Guard.State == "stands_by" && guard != 0 && guard != other
	})
	return guard
}

func (n *node) awaitNoGuard() {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, "the end of the guard of "+n.id, func(context.Context) (bool, string) {
		g := n.sidecar.Guard()
		return g == 0, fmt.Sprintf("guard %d", g)
	}))
}

// stoppedInTime waits until the broker ended and the key is gone, in this order.
func (n *node) stoppedInTime(tr *traffic, after int64) {
	n.t.Helper()
	select {
	case <-n.nats.Exited():
	case <-time.After(n.ttl + bound):
		n.t.Fatal("the broker was not stopped")
	}
	stopped := time.Now()
	gone := n.awaitExpiry(after)
	n.t.Logf("the key was gone %v after the broker ended", gone.At.Sub(stopped))
	inOrder(n.t, "the broker ended", stopped, "its key was gone", gone.At)
	tr.only(away, stopped.Add(time.Second), time.Now())
}

func TestTheBrokerOfAFrozenSidecarIsStoppedBeforeItsKeyIsGone(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	n, _, tr := s.guarded()
	from, since := s.revision(), time.Now()
	s.must(n.sidecar.Freeze())
	n.stoppedInTime(tr, from)
	s.must(n.sidecar.Thaw())
	t.Log(n.awaitEvent(since, "fence", "guard_fired").Detail)
}

func TestTheBrokerOfAKilledSidecarIsStoppedBeforeItsKeyIsGoneAndStartsAgain(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	n, _, tr := s.guarded()
	from, since := s.revision(), time.Now()
	s.must(n.sidecar.Kill())
	n.endSays("stops the broker at ", "The sidecar that ran here ended without a stop: it was killed, it failed, or its host did. Its last events:\n")
	n.stoppedInTime(tr, from)
	n.endSays("keeps the broker down until a sidecar runs again", fmt.Sprintf(": process %d of the broker was stopped by ", n.nats.PID()))
	n.start()
	n.awaitReady()
	t.Log(n.awaitEvent(since, "fence", "guard_fired").Detail)
	broker := n.nats.PID()
	n.awaitGuard(0)
	s.waitOut(n.ttl) // the old word must not hit the new process
	if !n.nats.Running() || n.nats.PID() != broker {
		t.Error("the new broker was stopped")
	}
	n.publishes()
}

// endSays waits until status of a sidecar that is gone says this of its guard and that of its end.
func (n *node) endSays(ofGuard, ofEnd string) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, "the word of a sidecar that is gone", func(ctx context.Context) (bool, string) {
		res, err := n.sidecar.Verb(ctx, "status", "--state-dir", n.sidecar.StateDir)
		return err == nil && res.Exit == 1 && strings.Contains(res.Stderr, ofGuard) && strings.Contains(res.Stdout, ofEnd), fmt.Sprint(res, err)
	}))
}

func TestASidecarThatComesBackWithinTheTTLTakesTheGuardAndTheLeaseUpAgain(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	n, guard, tr := s.guarded()
	tr.await(served, time.Now())
	before, since := n.registration(), time.Now()
	s.must(n.sidecar.Kill())
	s.must(n.sidecar.Start())
	n.awaitEvent(since, "guard", "taken_over")
	n.awaitReady()
	s.waitOut(n.ttl + n.ttl/2)
	if after := n.registration(); after.OfAnyRun() != before.OfAnyRun() {
		t.Errorf("registration %+v, want the same as before, but for the run: %+v", after, before)
	}
	if now := n.awaitGuard(0); now != guard {
		t.Errorf("guard %d, want the same as before, %d", now, guard)
	}
	tr.only(served, since, time.Now())
}

func TestTheGuardEndsAtACleanStopAndLeavesTheBrokerAlone(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	n, _, _ := s.guarded()
	s.must(n.sidecar.Stop(s.ctx))
	n.awaitNoGuard()
	s.waitOut(n.ttl)
	if !n.nats.Running() {
		t.Error("the broker was stopped")
	}
}
