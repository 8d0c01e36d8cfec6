package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// as is the command that starts this binary in a role.
func as(role string, env ...string) []string {
	return append(append([]string{"/usr/bin/env", roleVar + "=" + role, "GORACE=atexit_sleep_ms=0"}, env...), os.Args[0])
}

// life is a child under a policy, with what was told of it.
type life struct {
	*Child
	t      *testing.T
	cancel context.CancelFunc
	done   chan error

	mu    sync.Mutex
	told  []Change
	waits []time.Duration
}

func (l *life) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var words []string
	for _, c := range l.told {
		words = append(words, strings.TrimSuffix(c.To+":"+c.Reason, ":"))
	}
	return strings.Join(words, " ")
}

func live(t *testing.T, s ChildSettings) *life {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &life{t: t, cancel: cancel, done: make(chan error, 1)}
	if s.Record == "" {
		s.Record = filepath.Join(t.TempDir(), "child.json")
	}
	if s.Policy == "" {
		s.Policy = Always
	}
	s.Log = slog.New(slog.DiscardHandler)
	s.Tell = func(c Change) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told = append(l.told, c)
	}
	if s.MayStart == nil {
		s.MayStart = always
	}
	if s.Fenced == nil {
		s.Fenced = never
	}
	l.Child = NewChild(s)
	l.rest = func(ctx context.Context, d time.Duration) {
		l.mu.Lock()
		l.waits = append(l.waits, d)
		enough := len(l.waits) >= 3
		l.mu.Unlock()
		if enough {
			<-ctx.Done()
		}
	}
	go func() { l.done <- l.Run(ctx) }()
	t.Cleanup(func() {
		if target, ok := l.Target(); ok {
			_ = syscall.Kill(-target.Pid, syscall.SIGKILL)
		}
		cancel()
	})
	return l
}

func always() (ok bool, word, detail string) { return true, "", "" }
func never(Target) bool                      { return false }

// ended waits for the end of Run.
func (l *life) ended() error {
	l.t.Helper()
	select {
	case err := <-l.done:
		return err
	case <-time.After(patience):
		l.t.Fatalf("Run did not end; told: %s", l.all())
		return nil
	}
}

func (l *life) runs(path string) Target {
	l.t.Helper()
	var target Target
	eventually(l.t, "the child is ready", func() bool {
		raw, err := os.ReadFile(path)
		now, ok := l.Target()
		target = now
		return err == nil && ok && string(raw) == strconv.Itoa(now.Pid)
	})
	return target
}

func TestRestartsByPolicy(t *testing.T) {
	for _, tt := range []struct {
		role   string
		policy Policy
		again  bool
		reason string
	}{
		{"fails", Always, true, "failed"},
		{"ends", Always, true, "ended"},
		{"fails", OnFailure, true, "failed"},
		{"ends", OnFailure, false, "ended"},
		{"fails", Never, false, "failed"},
		{"ends", Never, false, "ended"},
	} {
		t.Run(tt.role+" "+string(tt.policy), func(t *testing.T) {
			t.Parallel()
			l := live(t, ChildSettings{Command: as(tt.role), Policy: tt.policy})
			if tt.again {
				eventually(t, "three ends", func() bool { return strings.Count(l.all(), "ended:"+tt.reason) == 3 })
				l.cancel()
				if err := l.ended(); err != nil {
					t.Error(err)
				}
				if got := l.Snapshot().Starts; got != 3 {
					t.Errorf("%d starts", got)
				}
				return
			}
			err := l.ended()
			var end *EndError
			if !errors.As(err, &end) || !errors.Is(err, ErrEnded) || end.Ending.Reason() != tt.reason || end.Ending.Code != map[string]int{"fails": 3}[tt.role] {
				t.Errorf("%v", err)
			}
			if _, ok := l.Target(); ok {
				t.Error("still a target")
			}
		})
	}
}

func TestBackoffGrowsToThirtySecondsAndStartsAnewAfterAGoodRun(t *testing.T) {
	var b backoff
	var got []string
	for _, ran := range []time.Duration{0, 0, 0, 0, 0, 0, 59 * time.Second, 60 * time.Second, 0} {
		got = append(got, b.after(ran, 1).String())
	}
	if want := "1s 2s 4s 8s 16s 30s 30s 1s 2s"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if d := new(backoff).after(0, 0); d != 500*time.Millisecond {
		t.Errorf("at least %v", d)
	}
}

func TestWhatCannotBeStartedIsASetting(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	noFormat := filepath.Join(t.TempDir(), "noformat")
	if err := os.WriteFile(noFormat, []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, program, says string }{
		{"no such file", "/no/such/broker", "start the broker /no/such/broker: no such file or directory: give the path of an executable file after --"},
		{"not in the path", "hf-no-such-broker", "start the broker hf-no-such-broker: executable file not found in $PATH: install it, or give its path after --"},
		{"not executable", plain, "permission denied: give the path"},
		{"a directory", t.TempDir(), "give the path"},
		{"not a program", noFormat, "exec format error: give the path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := live(t, ChildSettings{Command: []string{tt.program}})
			err := l.ended()
			var start *StartError
			if !errors.As(err, &start) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.program) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAFencedChildIsStartedAgainOnlyWhenItMay(t *testing.T) {
	for _, policy := range []Policy{Always, OnFailure} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			var away atomic.Bool
			ready := filepath.Join(t.TempDir(), "ready")
			l := live(t, ChildSettings{Command: as("polite", "HF_TEST_READY="+ready), Policy: policy,
				Fenced: func(Target) bool { return away.Load() }, MayStart: func() (bool, string, string) { return !away.Load(), "fenced", "etcd is away" }})
			first := l.runs(ready)
			away.Store(true)
			if how, _, err := stop(t, stopper(t, Settings{Child: l.Target}), 5*time.Second); err != nil {
				t.Fatal(how, err)
			}
			eventually(t, "it is held", func() bool { return strings.HasSuffix(l.all(), "ended:fenced held:fenced") })
			if again, ok := l.Target(); ok {
				t.Fatalf("%v runs", again)
			}
			away.Store(false)
			if second := l.runs(ready); second == first {
				t.Error("the same process")
			}
		})
	}
}

func TestTheEndOfRunLeavesTheChildAndStopEndsItsGroup(t *testing.T) {
	dir := t.TempDir()
	ready, member := filepath.Join(dir, "ready"), filepath.Join(dir, "member")
	l := live(t, ChildSettings{Command: as("parent", "HF_TEST_READY="+ready, "HF_TEST_MEMBER="+member)})
	child := l.runs(ready)
	raw, err := os.ReadFile(member)
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(string(raw))
	grandchild := target(t, pid)
	l.cancel()
	if err := l.ended(); err != nil {
		t.Error(err)
	}
	if child.Gone() {
		t.Fatal("it went with Run")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if how, err := l.Stop(ctx); err != nil || how != HowKill {
		t.Errorf("%s, %v", how, err)
	}
	if !child.Gone() || !grandchild.Gone() {
		t.Errorf("gone: child %t, its child %t", child.Gone(), grandchild.Gone())
	}
	if _, ok := l.Target(); ok {
		t.Error("still a target")
	}
}

func TestStopBesideRunStartsNothingAgain(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	l := live(t, ChildSettings{Command: as("polite", "HF_TEST_READY="+ready)})
	child := l.runs(ready)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := l.Stop(ctx); err != nil || !child.Gone() {
		t.Fatal(err)
	}
	l.cancel()
	if err := l.ended(); err != nil {
		t.Error(err)
	}
	if got := l.all(); strings.Count(got, "started") != 1 {
		t.Error(got)
	}
}

func TestWhatAChildLeavesInItsGroupIsStoppedBeforeTheNextStart(t *testing.T) {
	member := filepath.Join(t.TempDir(), "member")
	l := live(t, ChildSettings{Command: as("leaves", "HF_TEST_MEMBER="+member), Policy: Never})
	eventually(t, "somebody is left", func() bool { _, err := os.Stat(member); return err == nil })
	raw, _ := os.ReadFile(member)
	pid, _ := strconv.Atoi(string(raw))
	left := target(t, pid)
	if err := l.ended(); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
	if !left.Gone() {
		t.Error("it lives")
	}
}

func signals() {
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGTERM)
	ready()
	for s := range c {
		say(os.Getenv("HF_TEST_SAID"), s.String())
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	dir := t.TempDir()
	ready, said := filepath.Join(dir, "ready"), filepath.Join(dir, "said")
	l := live(t, ChildSettings{Command: as("signals", "HF_TEST_READY="+ready, "HF_TEST_SAID="+said)})
	l.runs(ready)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	kept := make(chan os.Signal, 8) // they must not end the test before Forward takes them
	signal.Notify(kept, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(kept)
	go func() { done <- l.Forward(ctx) }()
	defer func() { cancel(); <-done }()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1} {
		eventually(t, sig.String(), func() bool {
			_ = syscall.Kill(os.Getpid(), sig)
			raw, _ := os.ReadFile(said)
			return string(raw) == sig.String()
		})
	}
}

func environ() {
	deathSignal, err := unix.PrctlRetInt(unix.PR_GET_PDEATHSIG, 0, 0, 0, 0)
	say(os.Getenv("HF_TEST_SAID"), fmt.Sprintf("group %t\ndeath signal %d %v\n%s", syscall.Getpgrp() == os.Getpid(), deathSignal, err, strings.Join(os.Environ(), "\n")))
	time.Sleep(time.Hour) // without C, to wait for nothing at all is a deadlock
}

func TestAChildHasItsOwnGroupNoDeathSignalAndNothingOfSystemds(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
	t.Setenv("WATCHDOG_USEC", "1000000")
	t.Setenv("WATCHDOG_PID", "1")
	t.Setenv("HF_TEST_KEPT", "yes")
	said := filepath.Join(t.TempDir(), "said")
	live(t, ChildSettings{Command: as("environ", "HF_TEST_SAID="+said)})
	eventually(t, "it said", func() bool { _, err := os.Stat(said); return err == nil })
	raw, _ := os.ReadFile(said)
	got := string(raw)
	if !strings.HasPrefix(got, "group true\ndeath signal 0 ") || !strings.Contains(got, "\nHF_TEST_KEPT=yes") ||
		strings.Contains(got, "NOTIFY_SOCKET") || strings.Contains(got, "WATCHDOG") {
		t.Error(got)
	}
}

// sidecar starts a child and stays.
func sidecar() {
	c := NewChild(ChildSettings{Command: as("polite", "HF_TEST_READY="+os.Getenv("HF_TEST_CHILD")), Policy: Always,
		MayStart: always, Fenced: never, Tell: func(Change) {}, Record: os.Getenv("HF_TEST_RECORD"), Log: slog.New(slog.DiscardHandler)})
	go ready()
	fmt.Println(c.Run(context.Background()))
}

func TestAKilledSidecarsChildIsAdoptedAndNotStartedTwice(t *testing.T) {
	for _, tt := range []struct{ name, record string }{
		{"with its record", ""},
		{"killed between the start and the record", "mark only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, ready := filepath.Join(dir, "child.json"), filepath.Join(dir, "ready")
			before, _ := broker(t, "sidecar", "HF_TEST_RECORD="+path, "HF_TEST_CHILD="+ready)
			eventually(t, "the child is ready", func() bool { _, err := os.Stat(ready); return err == nil })
			raw, _ := os.ReadFile(ready)
			pid, _ := strconv.Atoi(string(raw))
			child := target(t, pid)
			t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) })
			_ = before.Process.Kill()
			_, _ = before.Process.Wait()

			if found, runs, err := FindChild(path); err != nil || !runs || found != child {
				t.Fatalf("%v, %t, %v", found, runs, err)
			}
			if tt.record != "" {
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				cut := strings.Replace(string(raw), fmt.Sprintf(`"pid":%d`, pid), `"pid":0`, 1)
				if err := os.WriteFile(path, []byte(cut), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l := live(t, ChildSettings{Command: as("polite", "HF_TEST_READY="+ready), Record: path})
			eventually(t, "adopted", func() bool { return l.all() == "adopted" })
			if now, _ := l.Target(); now != child || l.Snapshot().Starts != 0 || time.Since(l.StartedAt()) > time.Minute {
				t.Errorf("%+v", l.Snapshot())
			}
			// Its end is noticed, and the next one is ours.
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a new one", func() bool { return l.all() == "adopted ended:status_unknown started" })
			if now := l.runs(ready); now == child || l.Snapshot().Starts == 0 {
				t.Errorf("%+v", l.Snapshot())
			}
		})
	}
}

func TestARecordOfAnotherBootOrOfAnEndedChildIsNotFollowed(t *testing.T) {
	b, _ := broker(t, "polite")
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	here := target(t, b.Process.Pid)
	for name, r := range map[string]record{
		"another boot":  {BootID: "x", Target: here},
		"a later start": {BootID: boot, Target: Target{Pid: here.Pid, StartTicks: here.StartTicks - 1}},
		"nobody's mark": {BootID: boot, Mark: newMark()},
	} {
		path := filepath.Join(t.TempDir(), "child.json")
		if err := r.save(path); err != nil {
			t.Fatal(err)
		}
		if found, runs, err := FindChild(path); runs || err != nil {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	path := filepath.Join(t.TempDir(), "child.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := FindChild(path); err == nil {
		t.Error("a torn record was believed")
	}
}

// reaper starts orphans and waits for others with os/exec, and says what came of it.
func reaper() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ReapOrphans(ctx) }()
	wrong := 0
	for i := range 40 {
		// The shell leaves an orphan that ends at once, and ends with a status of its own.
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("(sleep 0.0%d &) ; exit %d", i%10, i%5))
		if err := cmd.Start(); err != nil {
			wrong++
			continue
		}
		own.Store(cmd.Process.Pid, nil)
		if i%8 == 0 {
			time.Sleep(20 * time.Millisecond) // a zombie for a while
		}
		if _ = cmd.Wait(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != i%5 {
			wrong++
		}
		own.Delete(cmd.Process.Pid)
	}
	other := exec.Command("/bin/sh", "-c", "exit 7") // not known to the package
	if err := other.Start(); err != nil {
		wrong++
	}
	for end := time.Now().Add(orphanAge / 2); time.Now().Before(end) && len(orphans()) == 0; {
		time.Sleep(time.Millisecond)
	}
	if _ = other.Wait(); other.ProcessState == nil || other.ProcessState.ExitCode() != 7 {
		wrong++
	}
	end := time.Now().Add(patience)
	for anyChild() && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("wrong", wrong, "left", anyChild())
	cancel()
	fmt.Println(<-done)
}

// anyChild is true while there is one, ended or not.
func anyChild() bool {
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) != unix.ECHILD
}

func TestOrphansAreReapedAndNobodysStatusIsTaken(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=reaper")
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "wrong 0 left false\n<nil>" {
		t.Errorf("%v, %s", err, got)
	}
}
