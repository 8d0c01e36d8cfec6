package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/lab/harness"
)

func TestAStateFileThatCannotBeUnderstoodDrains(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	for _, tt := range []struct{ name, content, says string }{
		{"garbage", "\x00\x01\x02 garbage", `is corrupt (invalid character '\x00' looking for beginning of value)`},
		{"empty", "", "is corrupt (unexpected end of JSON input)"},
		{"torn", `{"format":1,"broker_id":"n`, "is corrupt (unexpected end of JSON input)"},
		{"later-format", `{"format":99,"incarnation":"00112233445566778899aabbccddeeff"}`, "has format 99, this version knows 1"},
		{"no-incarnation", `{"format":1,"broker_id":"n"}`, "is corrupt (no incarnation)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := *s
			s.T = t
			c := s.beside(s.broker("n-" + tt.name))
			file := filepath.Join(c.StateDir, "state.json")
			s.ok(os.WriteFile(file, []byte(tt.content), 0o600))
			c.run()
			st := c.await("drained", func(st harness.Status) bool { return st.Mode == "drained" })
			if st.Reason != "corrupt_state" || st.Boot.Kind != "restart" {
				t.Errorf("reason %s, boot %s; want corrupt_state, restart", st.Reason, st.Boot.Kind)
			}
			if c.Ready(s.ctx) {
				t.Error("ready")
			}
			s.ok(c.Activate(s.ctx, "looked at it"))
			s.ok(c.AwaitReady(s.ctx, bound))
			c.stayedLive()
		})
	}
}

// fill writes a file until the file system is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, size := range []int{4096, 512, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("fill the disk: %w", err)
		}
	}
	return nil
}

// smallDisk mounts a file system of 64 kB there.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestAFullDiskIsSaidAndTheSidecarGoesOn(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	c := s.beside(s.broker("n1"))
	smallDisk(t, c.StateDir)
	t.Cleanup(func() {
		if c.Running() {
			c.Kill()
		}
	})
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	before := c.registration()
	ballast := filepath.Join(c.StateDir, "ballast")
	s.ok(fill(ballast))

	// What an operator says must hold although it cannot be noted here.
	c.says("drain", "--reason", "disk")
	if e := c.told(1, "agent", "state_unsaved")[0]; !strings.Contains(e.Detail, "no space left on device") {
		t.Errorf("said %+v, want the cause", e)
	}
	s.ok(c.Activate(s.ctx, "test"))
	s.ok(c.AwaitReady(s.ctx, bound))
	confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
	c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+9, bound)
	if reg := c.registration(); reg != before {
		t.Errorf("registration went from %+v to %+v", before, reg)
	}
	if n := len(c.events("agent", "state_unsaved")); n != 1 {
		t.Errorf("said %d times that the state is not saved, want once", n)
	}

	s.ok(os.Remove(ballast))
	c.told(1, "agent", "state_saved")
	c.stayedLive()
	if code := c.terminate(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A sidecar that is started again on a disk that takes nothing has all that it needs to read.
func TestARestartOnADiskThatTakesNothingGoesOnWithTheSameLease(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	const readOnly = unix.MS_REMOUNT | unix.MS_RDONLY
	for _, tt := range []struct {
		name         string
		flags        []string
		shut, reopen func(dir string) error
	}{
		{"full", []string{"--broker-pid-file"},
			func(dir string) error { return fill(filepath.Join(dir, "ballast")) },
			func(dir string) error { return os.Remove(filepath.Join(dir, "ballast")) }},
		{"read-only", nil, // a guard's lock would keep it writable
			func(dir string) error { return unix.Mount("", dir, "", readOnly, "") },
			func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := *s
			s.T = t
			c := s.beside(s.broker("n-" + strings.ReplaceAll(tt.name, " ", "-")))
			if len(tt.flags) > 0 {
				c.SetFlags(tt.flags[0], c.nats.PIDFile)
			}
			smallDisk(t, c.StateDir)
			t.Cleanup(func() {
				if c.Running() {
					c.Kill()
				}
			})
			c.run()
			s.ok(c.AwaitReady(s.ctx, bound))
			before, broker := c.registration(), c.nats.PID()
			s.ok(c.Kill())
			s.ok(tt.shut(c.StateDir))
			c.run()
			s.ok(c.AwaitReady(s.ctx, bound))
			c.awaitMetric("holdfast_state_unsaved", 1, bound)
			confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
			c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+9, bound)
			if after := c.registration(); after.OfAnyRun() != before.OfAnyRun() || c.nats.PID() != broker {
				t.Errorf("registration went from %+v to %+v, broker from %d to %d", before, after, broker, c.nats.PID())
			}
			res := s.command(append([]string{"check"}, c.Args()[1:]...)...)
			if !strings.Contains(res.Stderr, "--state-dir "+c.StateDir+": ") || res.Exit != 2 {
				t.Errorf("check: exit code %d: %s", res.Exit, res.Stderr)
			}

			s.ok(tt.reopen(c.StateDir))
			st := c.await("the state to be saved", func(st harness.Status) bool { return st.State.Saved })
			if st.Epoch != before.CreateRevision || st.Mode != "active" {
				t.Errorf("epoch %d, mode %s; want %d, active", st.Epoch, st.Mode, before.CreateRevision)
			}
			c.told(1, "agent", "state_unsaved")
			c.told(1, "agent", "state_saved")
			c.stayedLive()
		})
	}
}

// What a running sidecar has opened may be removed or replaced under it.
func TestWhatIsRemovedBesideASidecarComesBack(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	c := s.beside(s.broker("n1"))
	c.SetFlags("--broker-pid-file", c.nats.PIDFile)
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	c.await("a guard", func(st harness.Status) bool { return st.Guard.State == "stands_by" })
	before := c.registration()
	back := func(paths ...string) {
		t.Helper()
		s.ok(harness.Await(s.ctx, bound, "the files to be back", func(ctx context.Context) (bool, string) {
			for _, path := range paths {
				if _, err := os.Stat(path); err != nil {
					return false, err.Error()
				}
			}
			_, err := c.Status(ctx)
			return err == nil, fmt.Sprint(err)
		}))
	}
	all, err := filepath.Glob(filepath.Join(c.StateDir, "*"))
	s.ok(err)
	all = slices.DeleteFunc(all, func(path string) bool { return strings.HasSuffix(path, ".tmp") }) // is being written
	for _, path := range append(all, c.ControlSocket) {
		s.ok(os.Remove(path))
		res, err := c.Verb(s.ctx, "status", "--state-dir", c.StateDir)
		s.ok(err)
		if res.Exit != 0 && !strings.Contains(res.Stderr, fmt.Sprintf("process %d holds --state-dir %s", c.PID(), c.StateDir)) || strings.Contains(res.Stderr, "kill") {
			t.Errorf("without %s: status says %q", path, res.Stderr)
		}
		back(path)
	}
	s.ok(os.Rename(c.StateDir, c.StateDir+".aside"))
	back(all...)
	c.says("gate", "--wait", "10s")
	c.await("a guard", func(st harness.Status) bool { return st.Guard.State == "stands_by" })

	// The next sidecar finds all of it: the guard, the lease and who it is.
	broker := c.nats.PID()
	s.ok(c.Kill())
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	c.told(1, "guard", "taken_over")
	confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
	c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+12, bound) // longer than a TTL
	if after := c.registration(); after.OfAnyRun() != before.OfAnyRun() || c.nats.PID() != broker {
		t.Errorf("registration went from %+v to %+v, broker from %d to %d", before, after, broker, c.nats.PID())
	}
	c.stayedLive()
}
