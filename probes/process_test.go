package probes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/standstill"
)

const patience = time.Minute

// until waits for a change after which ok holds, within the bound.
func until(t *testing.T, changes <-chan struct{}, what string, ok func() bool) {
	t.Helper()
	untilWithin(t, patience, changes, what, ok)
}

func untilWithin(t *testing.T, patience time.Duration, changes <-chan struct{}, what string, ok func() bool) {
	t.Helper()
	bound := time.After(patience)
	for !ok() {
		select {
		case <-changes:
		case <-bound:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// runIt runs a component until the end of the test, or until stop is called.
func runIt(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not end with its context")
		}
	}
	t.Cleanup(stop)
	return stop
}

// sleeper starts a real process called name; it is killed and reaped at the end.
func sleeper(t *testing.T, name string, with ...*os.File) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no sleep command here")
	}
	c := exec.Command(path, "300")
	c.Args[0], c.ExtraFiles = name, with
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func pidFile(t *testing.T, pid int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broker.pid")
	writePid(t, path, pid)
	return path
}

// writePid replaces the file in one step, as a careful server does.
func writePid(t *testing.T, path string, pid int) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// uniqueName is a process name that no other process on the host has.
func uniqueName(t *testing.T) string {
	return fmt.Sprintf("hf-%d-%s", os.Getpid(), strings.ToLower(t.Name()))
}

func TestKilledProcessIsNoticedWithin200ms(t *testing.T) {
	refuse := func(errno error) func(int, int) (int, error) {
		return func(int, int) (int, error) { return -1, errno }
	}
	for name, openPidfd := range map[string]func(int, int) (int, error){
		"by pidfd":                   unix.PidfdOpen,
		"kernel without pidfds":      refuse(unix.ENOSYS),
		"pidfds forbidden":           refuse(unix.EPERM),
		"no file descriptors left":   refuse(unix.EMFILE),
		"by pidfd, found by name":    nil,
		"by polling, found by name ": refuse(unix.ENOSYS),
	} {
		t.Run(name, func(t *testing.T) {
			c := sleeper(t, "sleep")
			p := NewProcess(&Finder{PIDFile: pidFile(t, c.Process.Pid)}, quiet())
			if strings.Contains(name, "by name") {
				unique := fmt.Sprintf("hf-killed-%d", os.Getpid())
				c = sleeper(t, unique)
				p = NewProcess(&Finder{Name: unique}, quiet())
			}
			if openPidfd != nil {
				pidfdOpen = openPidfd
				t.Cleanup(func() { pidfdOpen = unix.PidfdOpen }) // after Run
			}
			runIt(t, p.Run)
			until(t, p.Changes(), "the process is found", func() bool { return p.Snapshot().Pid == c.Process.Pid })
			if age := time.Since(p.Snapshot().StartedAt); age < -time.Second || age > patience {
				t.Errorf("started %v ago", age)
			}
			select {
			case <-p.Lost():
				t.Fatal("lost while it lives")
			default:
			}
			at := standstill.Begin(t)
			if err := c.Process.Kill(); err != nil { // SIGKILL
				t.Fatal(err)
			}
			var took time.Duration
			select {
			case <-p.Lost():
				took = time.Since(at)
			case <-time.After(patience):
				t.Fatal("not noticed")
			}
			until(t, p.Changes(), "no pid is shown", func() bool { return p.Snapshot().Pid == 0 && p.Snapshot().StartedAt.IsZero() })
			standstill.Within(t, "noticed", at, took, 200*time.Millisecond)
		})
	}
}

func TestRestartedProcessIsFoundByItsNewPidFile(t *testing.T) {
	first := sleeper(t, "sleep")
	path := pidFile(t, first.Process.Pid)
	p := NewProcess(&Finder{PIDFile: path}, quiet())
	runIt(t, p.Run)
	until(t, p.Changes(), "the first is found", func() bool { return p.Snapshot().Pid == first.Process.Pid })
	_ = first.Process.Kill()
	await(t, p.Lost(), "the end of the first")

	second := sleeper(t, "sleep")
	writePid(t, path, second.Process.Pid)
	until(t, p.Changes(), "the second is found", func() bool { return p.Snapshot().Pid == second.Process.Pid })

	// The file changes hands while the process that was named lives on.
	third := sleeper(t, "sleep")
	writePid(t, path, third.Process.Pid)
	await(t, p.Lost(), "the change to the third")
	until(t, p.Changes(), "the third is found", func() bool { return p.Snapshot().Pid == third.Process.Pid })
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
}

func TestPidFileMayAppearLate(t *testing.T) {
	c := sleeper(t, "sleep")
	path := filepath.Join(t.TempDir(), "broker.pid")
	p := NewProcess(&Finder{PIDFile: path}, quiet())
	runIt(t, p.Run)
	until(t, p.Changes(), "the missing file is reported", func() bool {
		return strings.Contains(p.Snapshot().LastError, "no such file")
	})
	writePid(t, path, c.Process.Pid)
	until(t, p.Changes(), "the process is found", func() bool { return p.Snapshot().Pid == c.Process.Pid })
	select {
	case <-p.Lost():
		t.Error("lost before it was there")
	default:
	}
}

func TestRecycledPidIsNotMistaken(t *testing.T) {
	t.Run("the file is older than the process", func(t *testing.T) {
		c := sleeper(t, "sleep")
		path := pidFile(t, c.Process.Pid)
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		_, err := (&Finder{PIDFile: path}).Find()
		if err == nil || !strings.Contains(err.Error(), "older than process "+strconv.Itoa(c.Process.Pid)) {
			t.Errorf("error %v", err)
		}
		if v, err := (&Finder{PIDFile: path, Name: "sleep"}).Find(); err != nil || v.Pid != c.Process.Pid {
			t.Errorf("with the name, which proves it: %+v %v", v, err)
		}
		if _, err := (&Finder{PIDFile: path, Name: "nats-server"}).Find(); err == nil || !strings.Contains(err.Error(), `which is "sleep" and not "nats-server"`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the wall clock was set since, and the process is known", func(t *testing.T) {
		c := sleeper(t, "sleep")
		path := pidFile(t, c.Process.Pid)
		known, err := (&Finder{PIDFile: path}).Find()
		if err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		p := NewProcess(&Finder{PIDFile: path}, quiet())
		p.Finder.Expect(known.Target, Clues{})
		if v, err := p.find(ProcessView{}); err != nil || v.Target != known.Target {
			t.Errorf("%+v %v", v, err)
		}
		p.Finder.Expect(Target{known.Pid, known.StartTicks - 1}, Clues{})
		if _, err := p.find(ProcessView{}); err == nil {
			t.Error("another process with its pid is believed")
		}
	})
	t.Run("the same file names it after the first one ended", func(t *testing.T) {
		c := sleeper(t, "sleep")
		path := pidFile(t, c.Process.Pid)
		p := NewProcess(&Finder{PIDFile: path}, quiet())
		before, err := p.find(ProcessView{})
		if err != nil {
			t.Fatal(err)
		}
		before.StartTicks -= 10
		if !before.Gone() {
			t.Error("a process with another start is taken for alive")
		}
		if _, err := p.find(before); err == nil || !strings.Contains(err.Error(), "another process by now") {
			t.Errorf("error %v", err)
		}
	})
}

func TestZombieIsNotAlive(t *testing.T) {
	c := sleeper(t, "sleep")
	v, err := ReadProcess(c.Process.Pid)
	if err != nil || v.Gone() {
		t.Fatal(v, err)
	}
	over := make(chan bool, 1)
	go func() { over <- v.AwaitEnd(t.Context()) }()
	kept := func() bool { _, ok := awaited.Load(v.Target); return ok }
	for began := time.Now(); !kept(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("its pidfd is not kept within %v", patience)
		}
	}
	if v.Gone() || !(Target{v.Pid, v.StartTicks + 1}).Gone() {
		t.Error("by its pidfd it is taken for gone, or for another process")
	}
	_ = c.Process.Kill() // and not reaped
	if !<-over || !v.Gone() || kept() {
		t.Error("a zombie is taken for alive")
	}
	if _, err := ReadProcess(c.Process.Pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("error %v", err)
	}
}

func TestWhoWaitsForAProcessThatLivesIsLetGoByItsContext(t *testing.T) {
	c := sleeper(t, "sleep")
	v, err := ReadProcess(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { pidfdOpen = unix.PidfdOpen }()
	for _, open := range []func(int, int) (int, error){unix.PidfdOpen, func(int, int) (int, error) { return -1, unix.EPERM }} {
		pidfdOpen = open
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if v.AwaitEnd(ctx) {
			t.Error("it has ended")
		}
		cancel()
		if later := (Target{v.Pid, v.StartTicks + 1}); !later.AwaitEnd(t.Context()) {
			t.Error("another process with its pid is taken for it")
		}
	}
}

func TestPidFilesThatNameNoProcess(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, path, want string }{
		{"missing", filepath.Join(dir, "none"), "no such file or directory"},
		{"empty", file("empty", ""), `"" is not a process id`},
		{"words", file("words", "not a pid\n"), `"not a pid" is not a process id`},
		{"negative", file("negative", "-1"), `"-1" is not a process id`},
		{"zero", file("zero", "0"), `"0" is not a process id`},
		{"huge", file("huge", strings.Repeat("9", 1<<16)), "is not a process id"},
		{"nobody has it", file("gone", strconv.Itoa(1<<22)), "no such process"},
		{"a fifo nobody writes", fifo, "not a regular file"},
		{"a directory", dir, "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := (&Finder{PIDFile: tt.path}).Find()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestProcessThatIsNotFoundIsLoggedOnce(t *testing.T) {
	var log logText
	p := NewProcess(&Finder{PIDFile: filepath.Join(t.TempDir(), "none")}, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithTimeout(t.Context(), 3*lookupFile)
	defer cancel()
	if err := p.Run(ctx); err != nil { // three looks and more
		t.Error(err)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}

func TestProcessWatchLeavesNothingBehind(t *testing.T) {
	c := sleeper(t, "sleep")
	path := pidFile(t, c.Process.Pid)
	descriptors := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	began := standstill.Begin(t)
	before, goroutines := descriptors(), runtime.NumGoroutine()
	var longest time.Duration
	for range 20 {
		p := NewProcess(&Finder{PIDFile: path}, quiet())
		stop := runIt(t, p.Run)
		until(t, p.Changes(), "found", func() bool { return p.Snapshot().Pid != 0 })
		at := time.Now()
		stop()
		longest = max(longest, time.Since(at))
	}
	if after := descriptors(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	noMoreGoroutinesThan(t, goroutines)
	standstill.Check(t, standstill.Judge("stopped", began, time.Now(), longest, 200*time.Millisecond))
}

// noMoreGoroutinesThan gives those that have done their work the moment that they
// need to vanish.
func noMoreGoroutinesThan(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}
