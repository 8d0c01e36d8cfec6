package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/lab/harness"
)

func TestSidecarKilledAndBackWithinTheTTLGoesOnWithTheSameLease(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1")
	before, epoch := c.registration(), c.await("an epoch", func(st harness.Status) bool { return st.Epoch > 0 }).Epoch
	for range 2 {
		c.stayedLive()
		s.ok(c.Kill())
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		st := c.await("the lease", func(st harness.Status) bool { return st.Attachment == "attached" })
		if st.Epoch != epoch || st.Mode != "active" {
			t.Errorf("epoch %d, mode %s (%s); want epoch %d, active", st.Epoch, st.Mode, st.Reason, epoch)
		}
	}
	// The lease is really renewed: it lives on after a whole TTL of renewals.
	confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
	c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+9, bound)
	if after := c.registration(); after.OfAnyRun() != before.OfAnyRun() {
		t.Errorf("registration went from %+v to %+v", before, after)
	}
	s.caughtUp()
	if again := s.changesOf(s.keys.Registration("n1"), before.ModRevision); len(again) != 2 {
		t.Errorf("the key was touched, but for the run of each process: %v", again)
	}
	c.stayedLive()
}

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

// unprivileged runs the binary once as a user for whom modes of files count.
func unprivileged(t *testing.T, dir string, args ...string) harness.Result {
	t.Helper()
	bin, err := harness.Build(harness.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		res, err := harness.RunHoldfast(t.Context(), bin, args...)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	// The other user may not be able to reach the repository. Another process writes
	// the copy: a child that is started meanwhile would inherit a file of ours that is
	// open for writing, and then nobody may execute it.
	mine := filepath.Join(dir, "holdfast")
	if out, err := exec.CommandContext(t.Context(), "cp", bin, mine).CombinedOutput(); err != nil {
		t.Fatalf("copy the binary: %v: %s", err, out)
	}
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), mine, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return harness.Result{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}
}

// openDir is a directory that every user can reach.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf-open-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAStateDirectoryThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, tt := range []struct {
		name  string
		make  func(dir string) error
		path  string
		wants string // after the path
	}{
		{"read-only directory", func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "state"), 0o555)
		}, "state", "permission denied: make it writable for this user, or set --state-dir"},
		{"parent that is read-only", func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "parent"), 0o555)
		}, "parent/state", "permission denied: create it writable for this user, or set --state-dir"},
		{"directory of another user", func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "state"), 0o000)
		}, "state", "permission denied: make it writable for this user, or set --state-dir"},
		{"state file that cannot be read", func(dir string) error {
			state := filepath.Join(dir, "state")
			if err := errors.Join(os.Mkdir(state, 0o777), os.Chmod(state, 0o777)); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(state, "state.json"), []byte("{}"), 0o000)
		}, "state", "read state.json: permission denied: make it readable for this user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := openDir(t)
			if err := tt.make(dir); err != nil {
				t.Fatal(err)
			}
			state := filepath.Join(dir, tt.path)
			res := unprivileged(t, dir, "run", "--driver", "nats", "--etcd-endpoints", s.etcd.Endpoint(),
				"--state-dir", state, "--probe-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0")
			want := fmt.Sprintf("holdfast: --state-dir %s: %s\n", state, tt.wants)
			if res.Exit != 2 || res.Stderr != want {
				t.Errorf("exit code %d, said %q; want 2, %q", res.Exit, res.Stderr, want)
			}
		})
	}
	if s.caughtUp(); len(s.history.Changes()) > 1 {
		t.Errorf("something was written to etcd: %v", s.history.Changes())
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
	res, err := c.Verb(s.ctx, "drain", "--reason", "disk")
	s.ok(err)
	if res.Exit != 0 {
		t.Fatalf("drain on a full disk: exit code %d: %s", res.Exit, res.Stderr)
	}
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

func TestAFullDiskAtTheStartIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.beside(s.broker("n1"))
	smallDisk(t, c.StateDir)
	s.ok(os.WriteFile(filepath.Join(c.StateDir, "lock"), []byte("0\n"), 0o600))
	s.ok(fill(filepath.Join(c.StateDir, "ballast")))
	s.ok(c.Start())
	<-c.Exited()
	code, err := c.ExitCode()
	s.ok(err)
	said := c.LogTail(1)
	if !strings.HasPrefix(said, "holdfast: --state-dir "+c.StateDir+": ") || !strings.Contains(said, "no space left on device") || code != 2 {
		t.Errorf("exit code %d, said %q; want 2, and --state-dir with the cause", code, said)
	}
	if s.caughtUp(); len(s.history.Changes()) > 1 {
		t.Errorf("something was written to etcd: %v", s.history.Changes())
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
		{"no inodes", []string{"--broker-pid-file"},
			func(dir string) error {
				err := unix.Mount("", dir, "", unix.MS_REMOUNT, "nr_inodes=32")
				for i := 0; err == nil; i++ {
					err = os.WriteFile(filepath.Join(dir, fmt.Sprint("ballast-", i)), nil, 0o600)
				}
				if errors.Is(err, unix.ENOSPC) {
					err = nil
				}
				return err
			},
			func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "nr_inodes=64") }},
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
	res, err := c.Verb(s.ctx, "gate", "--wait", "10s")
	s.ok(err)
	if res.Exit != 0 {
		t.Errorf("gate: exit code %d: %s", res.Exit, res.Stderr)
	}
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
