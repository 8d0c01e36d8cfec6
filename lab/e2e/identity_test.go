package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

func TestTwoSidecarsWithOneBrokerIDDoNotFight(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	first := s.couple("n1")
	reg := first.registration()
	from := s.caughtUp()

	// The same name on another server, as after a copied configuration.
	n, err := s.lab.NewNATS(harness.NATSOptions{Name: "n1-twin", Extra: `server_name: "n1"`})
	s.ok(err)
	s.ok(n.Start(s.ctx))
	twin := s.beside(n)
	twin.id = "n1"
	twin.run()

	st := twin.await("the conflict", func(st harness.Status) bool {
		return strings.Contains(strings.Join(st.Ready.Causes, " "), "identity conflict")
	})
	if st.Attachment != "detached" || st.Registration.CreateRevision != 0 {
		t.Errorf("the twin is %s with registration %+v, want detached without one", st.Attachment, st.Registration)
	}
	if said := strings.Join(st.Ready.Causes, " ") + st.Lease.LastError; !strings.Contains(said, "stop one of the two, or give this one another broker than --broker-admin nats://") {
		t.Errorf("said %q, want the remedy", said)
	}
	// Not for a moment only: for longer than the lease lasts.
	first.renewsOn()
	res, err := twin.Verb(s.ctx, "activate", "--reason", "test")
	s.ok(err)
	if res.Exit != 3 || !strings.Contains(res.Stderr, "identity conflict") {
		t.Errorf("activate: exit code %d, said %q; want 3 and the conflict", res.Exit, res.Stderr)
	}
	if err := twin.probes.NeverReady(time.Time{}, time.Now()); err != nil {
		t.Error(err)
	}
	if after := first.registration(); after != reg {
		t.Errorf("the registration changed from %+v to %+v", reg, after)
	}
	mark := s.caughtUp()
	for _, ch := range s.history.Changes() {
		if ch.Revision > from && ch.Revision < mark {
			t.Errorf("etcd was changed: %v", ch)
		}
	}
	s.notServed(twin, "/default/a")
	if err := first.probes.AlwaysReady(first.awaitReadySince(), time.Now()); err != nil {
		t.Error(err)
	}
	first.stayedLive()

	t.Run("when the first is gone for good the second decides by the startup table", func(t *testing.T) {
		if code := first.terminate(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		back := s.awaitChange("the second's registration", mark, harness.PutKey(s.keys.Registration("n1")))
		st := twin.await("a startup decision", func(st harness.Status) bool { return st.Mode != "" && st.Epoch == back.Revision })
		// etcd knows the id, and that its data was on another disk.
		if st.Boot.Kind != "restart" || st.Mode != "drained" || st.Reason != "data_missing" {
			t.Errorf("boot %s, %s (%s); want restart, drained, data_missing", st.Boot.Kind, st.Mode, st.Reason)
		}
		twin.activate()
	})
	twin.stayedLive()
}

// A volume was cloned: another sidecar and another server have the state of the first.
func TestACopyOfAStateDirectoryServesNothing(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	first := s.couple("n1")
	first.serves("/default/a")
	reg := first.registration()
	from := s.caughtUp()

	n, err := s.lab.NewNATS(harness.NATSOptions{Name: "n1-copy", Extra: `server_name: "n1"`})
	s.ok(err)
	s.ok(os.CopyFS(filepath.Join(n.StoreDir, "jetstream"), os.DirFS(filepath.Join(first.nats.StoreDir, "jetstream"))))
	s.ok(n.Start(s.ctx))
	c := s.beside(n)
	c.id = "n1"
	s.ok(os.CopyFS(c.StateDir, os.DirFS(first.StateDir)))
	c.run()
	st := c.await("the conflict", func(st harness.Status) bool {
		return strings.Contains(strings.Join(st.Ready.Causes, " "), "one is a copy of the other")
	})
	if st.Attachment != "detached" || st.Registration.CreateRevision != 0 {
		t.Errorf("the copy is %s with registration %+v, want detached without one", st.Attachment, st.Registration)
	}
	first.renewsOn()
	s.notServed(c, "/default/a")
	if err := c.probes.NeverReady(time.Time{}, time.Now()); err != nil {
		t.Error(err)
	}
	if after := first.registration(); after != reg {
		t.Errorf("the registration changed from %+v to %+v", reg, after)
	}
	mark := s.caughtUp()
	for _, ch := range s.history.Changes() {
		if ch.Revision > from && ch.Revision < mark {
			t.Errorf("etcd was changed: %v", ch)
		}
	}
	first.serves("/default/a")
	if err := first.probes.AlwaysReady(first.awaitReadySince(), time.Now()); err != nil {
		t.Error(err)
	}
	first.stayedLive()
	c.stayedLive()
}

// awaitReadySince is when the recorder first heard that it is ready.
func (c *couple) awaitReadySince() time.Time {
	c.s.Helper()
	c.awaitRecorded(time.Now())
	at, ok := c.probes.FirstReady(c.since)
	if !ok {
		c.s.Fatal("never ready")
	}
	return at
}
