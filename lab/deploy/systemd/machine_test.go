package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/lab/harness"
)

// stageVariable makes this test binary the first process of a machine's namespaces; it
// prepares the root directory and becomes systemd. Its value is the machine's directory.
const stageVariable = "HOLDFAST_LAB_SYSTEMD_STAGE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(stageVariable); dir != "" {
		fmt.Fprintln(os.Stderr, becomeSystemd(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// machine is a systemd with the units of deploy/systemd installed.
type machine struct {
	t    *testing.T
	dir  string
	pid  int
	done chan struct{} // closed when systemd has ended
}

// boot starts systemd with the unit wanted. files are put below its root directory.
func boot(t *testing.T, want string, files map[string]string) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces with a systemd of their own need root")
	}
	for _, program := range []string{"/lib/systemd/systemd", "/bin/systemctl", "/bin/systemd-sysusers", "/bin/systemd-tmpfiles"} {
		if _, err := os.Stat(program); err != nil {
			t.Skipf("no %s: Debian has it in systemd", program)
		}
	}
	m := &machine{t: t, dir: t.TempDir(), done: make(chan struct{})}
	for name, text := range files {
		mode := os.FileMode(0o644)
		if strings.Contains(name, "bin/") {
			mode = 0o755
		}
		write(t, filepath.Join(m.dir, "files", name), text, mode)
	}
	write(t, filepath.Join(m.dir, "files/etc/systemd/system/lab.target"),
		"[Unit]\nDefaultDependencies=no\nWants="+want+"\n", 0o644)
	// There is no journal.
	write(t, filepath.Join(m.dir, "files/etc/systemd/system/service.d/log.conf"),
		"[Service]\nStandardOutput=append:/run/lab.log\nStandardError=append:/run/lab.log\n", 0o644)
	for _, name := range []string{"sysinit.target", "basic.target", "shutdown.target", "network.target", "network-online.target"} {
		write(t, filepath.Join(m.dir, "files/etc/systemd/system", name), "[Unit]\nDefaultDependencies=no\n", 0o644)
	}
	log, err := os.Create(filepath.Join(m.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	group, err := newGroup()
	if err != nil {
		t.Skipf("no control group of its own for systemd: %v", err)
	}
	defer group.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), stageVariable+"="+m.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UseCgroupFD: true, CgroupFD: int(group.Fd()), Setsid: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespaces for a systemd: %v", err)
	}
	m.pid = cmd.Process.Pid
	go func() { _ = cmd.Wait(); close(m.done) }()
	t.Cleanup(func() {
		if t.Failed() {
			raw, _ := os.ReadFile(log.Name())
			t.Logf("systemd says:\n%s", raw[max(0, len(raw)-6000):])
			said, _ := m.inside(context.WithoutCancel(t.Context()), "sh", "-c", "systemctl --no-pager status '*.service'; tail -n 60 /run/lab.log")
			t.Logf("%s", said)
		}
		_ = cmd.Process.Kill() // and with it everything in its namespace
		<-m.done
		removeGroup(group.Name())
	})
	err = harness.Await(t.Context(), time.Minute, "systemd", func(ctx context.Context) (bool, string) {
		out, err := m.systemctl(ctx, "is-system-running")
		return m.ended() || strings.HasPrefix(out, "running") || strings.HasPrefix(out, "degraded") || strings.HasPrefix(out, "starting"), fmt.Sprint(out, err)
	})
	if m.ended() {
		raw, _ := os.ReadFile(log.Name())
		t.Skipf("systemd cannot run here: %s", raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// newGroup makes a control group (version 2) for a machine.
func newGroup() (*os.File, error) {
	var err error
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err = unix.Statfs(top, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			err = errors.Join(err, errors.New("no control groups of version 2"))
			continue
		}
		var dir string
		if dir, err = os.MkdirTemp(top, "holdfast-lab-"); err == nil {
			return os.Open(dir)
		}
	}
	return nil, err
}

// removeGroup removes a control group and those below it, once their processes are gone.
func removeGroup(dir string) {
	below, _ := os.ReadDir(dir)
	for _, e := range below {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	for range 100 {
		if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// becomeSystemd puts an overlay of the host's root directory under this process, with
// the machine's files in it and none of the host's units, and becomes systemd.
func becomeSystemd(dir string) error {
	layers, root := filepath.Join(dir, "layers"), filepath.Join(dir, "root")
	type step struct {
		what string
		do   func() error
	}
	mount := func(what, from, at, kind string, flags uintptr, data string) step {
		return step{"mount " + what, func() error {
			if err := os.MkdirAll(at, 0o755); err != nil {
				return err
			}
			return unix.Mount(from, at, kind, flags, data)
		}}
	}
	run := func(name string, args ...string) step {
		return step{name, func() error {
			out, err := exec.Command(name, args...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}}
	}
	at := func(path string) string { return filepath.Join(root, path) }
	for _, s := range []step{
		mount("privately", "", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount("layers", "tmpfs", layers, "tmpfs", 0, ""),
		{"make layers", func() error {
			return errors.Join(os.Mkdir(layers+"/upper", 0o755), os.Mkdir(layers+"/work", 0o755))
		}},
		mount("root", "overlay", root, "overlay", 0, "lowerdir=/,upperdir="+layers+"/upper,workdir="+layers+"/work"),
		{"leave out the host's units", func() error { return os.RemoveAll(at("etc/systemd/system")) }},
		run("cp", "-a", filepath.Join(dir, "files")+"/.", root),
		mount("proc", "proc", at("proc"), "proc", 0, ""),
		mount("sys", "sysfs", at("sys"), "sysfs", unix.MS_RDONLY, ""),
		mount("control groups", "cgroup2", at("sys/fs/cgroup"), "cgroup2", 0, ""),
		mount("run", "tmpfs", at("run"), "tmpfs", 0, "mode=755"),
		mount("dev", "/dev", at("dev"), "", unix.MS_BIND|unix.MS_REC, ""),
		{"change root", func() error {
			return errors.Join(unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
		}},
		// Credentials are mounted by helpers of systemd, from where they must come to it.
		mount("shared", "", "/", "", unix.MS_REC|unix.MS_SHARED, ""),
		mount("tmp", "tmpfs", "/tmp", "tmpfs", 0, "mode=1777"),
		run("/bin/systemd-sysusers", "holdfast.conf"),
		run("/bin/systemd-tmpfiles", "--create", "holdfast.conf"),
	} {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	err := unix.Exec("/lib/systemd/systemd", []string{"systemd", "--system", "--unit=lab.target", "--log-target=console", "--show-status=no"},
		[]string{"container=holdfast-lab", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			// Not the host's: some of those would set up the kernel, which is the host's.
			"SYSTEMD_UNIT_PATH=/etc/systemd/system"})
	return fmt.Errorf("start systemd: %w", err)
}

// inside runs a program of the machine in it, as root.
func (m *machine) inside(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(m.pid), "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (m *machine) systemctl(ctx context.Context, args ...string) (string, error) {
	return m.inside(ctx, append([]string{"systemctl", "--no-pager"}, args...)...)
}

// must is inside where a failure ends the test.
func (m *machine) must(args ...string) string {
	m.t.Helper()
	out, err := m.inside(m.t.Context(), args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// show is one property of a unit.
func (m *machine) show(unit, property string) string {
	m.t.Helper()
	return m.must("systemctl", "show", "--value", "--property="+property, unit)
}

// await waits for a property of a unit to have a value.
func (m *machine) await(unit, property string, ok func(string) bool) string {
	m.t.Helper()
	var last string
	err := harness.Await(m.t.Context(), time.Minute, property+" of "+unit, func(ctx context.Context) (bool, string) {
		out, err := m.systemctl(ctx, "show", "--value", "--property="+property, unit)
		if err != nil {
			return false, err.Error()
		}
		last = out
		return ok(out), out
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return last
}
