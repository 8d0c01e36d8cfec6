package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// volume makes a directory such as nats-server leaves behind: one stream, written
// an hour ago.
func volume(t *testing.T, dir string) {
	t.Helper()
	marker := filepath.Join(dir, "jetstream", "$G", "streams", "old", "meta.inf")
	ago := time.Now().Add(-time.Hour)
	err := errors.Join(os.MkdirAll(filepath.Dir(marker), 0o755), os.WriteFile(marker, []byte("{}"), 0o644), os.Chtimes(marker, ago, ago))
	if err != nil {
		t.Fatal(err)
	}
}

// awaitBooted waits for the startup decision.
func (c *couple) awaitBooted() harness.Status {
	c.s.Helper()
	return c.await("a boot kind", func(st harness.Status) bool { return st.Boot.Kind != "unknown" && st.Mode != "" })
}

func evidence(st harness.Status) string { return strings.Join(st.Boot.Evidence, "; ") }

// late prepares a sidecar whose broker is started later, and with a data directory
// that the test controls.
func (s *stand) late(id, dir string) *couple {
	s.Helper()
	n, err := s.lab.NewNATS(harness.NATSOptions{Name: id})
	s.ok(err)
	c := s.beside(n, "--data-dir", dir)
	c.run()
	return c
}

func TestWipedDataDirectoryIsNoFirstBoot(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.couple("n2")
	dir := filepath.Join(t.TempDir(), "data")
	volume(t, dir)
	c := s.late("n1", dir)
	s.ok(c.nats.Start(s.ctx))
	c.awaitBooted()
	s.ok(c.AwaitReady(s.ctx, bound))

	t.Run("wiped while the broker runs", func(t *testing.T) {
		s.ok(os.RemoveAll(filepath.Join(dir, "jetstream")))
		c.renewsOn()
	})
	t.Run("removed", func(t *testing.T) {
		s.ok(os.RemoveAll(dir))
		c.renewsOn()
	})
	t.Run("and then the broker restarts", func(t *testing.T) {
		s.ok(c.nats.Kill())
		s.ok(c.AwaitNotReady(s.ctx, bound))
		s.ok(c.nats.Start(s.ctx))
		boot := c.told(2, "boot", "restart")[1]
		st := c.await("the mode", func(st harness.Status) bool { return st.Mode == "drained" && st.Reason == "data_missing" })
		if st.Boot.Kind != "restart" || !strings.Contains(evidence(st), "state file records a completed first boot") || !strings.Contains(evidence(st), "etcd knows this broker") {
			t.Errorf("boot %s (%s), want restart by state file and etcd", st.Boot.Kind, evidence(st))
		}
		if want := "the broker had data, and the data directory " + dir + " is not there"; boot.Reason != "data_missing" || !strings.Contains(boot.Detail, want) {
			t.Errorf("%+v, want %q", boot, want)
		}
	})
	if n := c.metric(`holdfast_broker_boots_total{kind="first_boot",reason="boot"}`); n != 0 {
		t.Errorf("%v first boots were counted, want none", n)
	}
	c.stayedLive()
}

// The server's disk is exchanged while it is down, for less than the TTL.
func TestAServerThatComesBackOnAnotherDiskIsDrained(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1")
	c.serves("/default/a")
	held := filepath.Join(c.nats.StoreDir, "jetstream")
	restart := func(meanwhile func() error) harness.Status {
		t.Helper()
		s.ok(c.nats.Kill())
		s.ok(c.AwaitNotReady(s.ctx, bound))
		boots := len(c.events("boot", "restart"))
		s.ok(meanwhile())
		s.ok(c.nats.Start(s.ctx))
		c.told(boots+1, "boot", "restart")
		return c.awaitBooted()
	}
	st := restart(func() error { return errors.Join(os.Rename(held, held+".broken"), os.Mkdir(held, 0o755)) })
	if st.Mode != "drained" || st.Reason != "data_missing" {
		t.Fatalf("%s (%s), want drained, data_missing", st.Mode, st.Reason)
	}
	c.renewsOn()
	if c.Ready(s.ctx) {
		t.Error("ready without its data")
	}
	if got := c.state(); got.Reason != "data_missing" {
		t.Errorf("state in etcd %+v", got)
	}
	// Its data is brought to yet another disk, and an operator has looked.
	c.activate()
	if st := restart(func() error {
		return errors.Join(os.RemoveAll(held), os.CopyFS(held, os.DirFS(held+".broken")))
	}); st.Mode != "active" || st.Reason != "fast_restart" {
		t.Errorf("%s (%s), want active, fast_restart: its data is older than the process", st.Mode, st.Reason)
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	c.stayedLive()
}
