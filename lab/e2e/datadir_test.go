package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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

func TestDataDirectoryThatIsMissingMeansFirstBoot(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.late("n1", filepath.Join(t.TempDir(), "not", "there"))
	s.ok(c.nats.Start(s.ctx))
	st := c.awaitBooted()
	if st.Boot.Kind != "first_boot" || st.Mode != "active" || st.Reason != "boot" {
		t.Errorf("boot %s (%s), %s (%s); want first_boot, active, boot", st.Boot.Kind, evidence(st), st.Mode, st.Reason)
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	if c.metric(`holdfast_datadir_watch_mode{mode="events"}`) != 1 {
		t.Error("the missing directory is not watched by events")
	}
	c.stayedLive()
}

func TestDataDirectoryThatAppearsLateCounts(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.couple("n2") // a living cluster
	dir := filepath.Join(t.TempDir(), "mnt", "data")
	c := s.late("n1", dir)
	aside := filepath.Join(t.TempDir(), "data")
	volume(t, aside) // it appears whole, as a volume that is mounted does
	s.ok(os.MkdirAll(filepath.Dir(dir), 0o755))
	s.ok(os.Rename(aside, dir))
	s.ok(c.nats.Start(s.ctx))
	st := c.awaitBooted()
	if st.Boot.Kind != "restart" || st.Mode != "active" || st.Reason != "first_registration" {
		t.Errorf("boot %s, %s (%s); want restart, active, first_registration", st.Boot.Kind, st.Mode, st.Reason)
	}
	if !strings.Contains(evidence(st), "meta.inf is 1h0m") {
		t.Errorf("evidence is %q, want the marker of an hour ago", evidence(st))
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	c.stayedLive()
}

func TestDataDirectorySwappedBySymlinkCounts(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.couple("n2")
	base := t.TempDir()
	empty, old, link := filepath.Join(base, "empty"), filepath.Join(base, "old"), filepath.Join(base, "data")
	volume(t, old)
	s.ok(errors.Join(os.Mkdir(empty, 0o755), os.Symlink(empty, link)))
	c := s.late("n1", link)
	swap := func(target string) {
		t.Helper()
		next := filepath.Join(base, "next")
		s.ok(errors.Join(os.Symlink(target, next), os.Rename(next, link)))
	}
	swap(old)
	s.ok(c.nats.Start(s.ctx))
	if st := c.awaitBooted(); st.Boot.Kind != "restart" || st.Reason != "first_registration" {
		t.Errorf("boot %s (%s), reason %s; want restart, first_registration: the directory behind the link is old", st.Boot.Kind, evidence(st), st.Reason)
	}
	// Swapped to an empty one while the broker runs: seen, and no reason to act.
	s.ok(c.AwaitReady(s.ctx, bound))
	reg := c.registration()
	swap(empty)
	c.renewsOn()
	if after := c.registration(); after != reg || !c.Ready(s.ctx) {
		t.Errorf("registration %+v, want %+v, and ready", after, reg)
	}
	c.stayedLive()
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

func TestStreamsOfARealServerProveARestart(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	peer := s.couple("n2")
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1")
	if st := c.awaitBooted(); st.Boot.Kind != "first_boot" {
		t.Fatalf("boot %s (%s), want first_boot", st.Boot.Kind, evidence(st))
	}
	if code := c.terminate(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	s.ok(c.nats.Kill())
	// Nothing but the data is left of it: neither state directory nor keys.
	s.ok(os.RemoveAll(c.StateDir))
	for _, key := range []string{s.keys.State("n1"), s.keys.Member("n1")} {
		_, err := s.etcd.Client().Delete(s.ctx, key, clientv3.WithPrevKV())
		s.ok(err)
	}
	s.ok(c.nats.Start(s.ctx))
	c.run()
	st := c.awaitBooted()
	if st.Boot.Kind != "restart" || st.Mode != "active" || st.Reason != "first_registration" {
		t.Errorf("boot %s (%s), %s (%s); want restart, active, first_registration: it serves what is assigned to it", st.Boot.Kind, evidence(st), st.Mode, st.Reason)
	}
	if !strings.Contains(evidence(st), "meta.inf is ") {
		t.Errorf("evidence %q, want the stream's own record", evidence(st))
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	c.stayedLive()
	peer.stayedLive()
}
