package e2e

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// The scenarios of SCENARIOS, "From the etcd document".

func TestSIGTERMEndsCleanly(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1")
	reg, pid := c.registration(), c.PID()
	c.stayedLive()
	if code := c.terminate(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if left := c.registration(); left.CreateRevision != 0 {
		t.Errorf("the registration is still there: %+v", left)
	}
	if ttl := s.ttlOf(reg.Lease); ttl > 0 {
		t.Errorf("the lease is still there, for %d s", ttl)
	}
	for _, a := range [][2]string{
		{"unix", c.ControlSocket},
		{"tcp", strings.TrimPrefix(c.ProbeURL(), "http://")},
		{"tcp", strings.TrimPrefix(c.WebURL(), "http://")},
	} {
		if conn, err := net.Dial(a[0], a[1]); err == nil {
			conn.Close()
			t.Errorf("somebody still listens on %s", a[1])
		}
	}
	if err := syscall.Kill(-pid, 0); err != syscall.ESRCH {
		t.Errorf("processes of the sidecar's group are left: %v", err)
	}
	if st := c.state(); st.Mode != "active" {
		t.Errorf("mode is %s (%s), want active: ending changes no mode", st.Mode, st.Reason)
	}
	// Nothing may be served without a registration.
	s.caughtUp()
	deleted, ok := s.history.Find(reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
	if !ok {
		t.Fatal("the history has no deletion of the registration")
	}
	nc, err := c.nats.Connect()
	s.ok(err)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
	defer cancel()
	if _, err := harness.Publish(ctx, nc, "/default/a", []byte("x")); err == nil {
		t.Errorf("the broker still takes messages after the registration was given up (%v)", deleted)
	}
}

func TestCloseWaitsForARenewalInFlightAndRevokes(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.couple("n1")
	reg := c.registration()
	s.ok(s.etcd.Freeze())
	c.await("a renewal without an answer", func(st harness.Status) bool { return st.Lease.FailureStreak > 0 })
	s.ok(c.Signal(syscall.SIGTERM))
	// The probes are closed when the parts have ended; what is left is to revoke.
	s.ok(harness.Await(s.ctx, bound, "the probes to close", func(ctx context.Context) (bool, string) {
		_, _, err := c.Probe(ctx, "/live")
		return err != nil, "they answer"
	}))
	if !c.Running() {
		t.Fatal("the sidecar ended although etcd has not heard that the lease is to be revoked")
	}
	s.ok(s.etcd.Thaw())
	select {
	case <-c.Exited():
	case <-time.After(bound):
		t.Fatal("the sidecar does not end")
	}
	if code, err := c.ExitCode(); code != 0 || err != nil {
		t.Errorf("exit code %d, %v; want 0", code, err)
	}
	if ttl := s.ttlOf(reg.Lease); ttl > 0 {
		t.Errorf("the lease is still there, for %d s", ttl)
	}
	s.awaitChange("the deletion", reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
	s.caughtUp()
	for _, ch := range s.changesOf(s.keys.Registration("n1"), reg.ModRevision) {
		if !ch.Deleted {
			t.Errorf("written again while ending: %v", ch)
		}
	}
}

func TestLeaveRegisteredHandsTheLeaseToTheNextSidecar(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1", "--leave-registered")
	nc, err := c.nats.Connect()
	s.ok(err)
	defer nc.Close()
	before := c.registration()
	c.stayedLive()
	if code := c.terminate(); code != 0 {
		t.Fatalf("exit code %d, want 0", code)
	}
	if left := c.registration(); left != before {
		t.Errorf("after the end the registration is %+v, want %+v", left, before)
	}
	if _, err := harness.Publish(s.ctx, nc, "/default/a", []byte("x")); err != nil {
		t.Errorf("the broker must go on while its registration lasts: %v", err)
	}
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
	c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+8, bound)
	if after := c.registration(); after.OfAnyRun() != before.OfAnyRun() {
		t.Errorf("the next sidecar has %+v, want the same registration under the same lease: %+v", after, before)
	}
	if st := c.state(); st.Mode != "active" {
		t.Errorf("mode %s (%s), want active", st.Mode, st.Reason)
	}
	c.stayedLive()
}
