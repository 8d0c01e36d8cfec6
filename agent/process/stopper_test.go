package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/standstill"
)

func stopper(t *testing.T, s Settings) *Stopper {
	t.Helper()
	x, err := NewStopper(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// stop stops within the bound and returns how long it took. SIGKILL comes at half of it, so
// a machine that stood still for the other half proves nothing.
func stop(t *testing.T, s *Stopper, bound time.Duration) (string, time.Duration, error) {
	t.Helper()
	begun := standstill.Begin(t) // first: SIGKILL comes at half of the time
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	how, err := s.Stop(ctx)
	ended := time.Now()
	if stood := standstill.Added(begun, ended); errors.Is(err, context.DeadlineExceeded) && stood >= bound/2 {
		standstill.Check(t, fmt.Errorf("%w: a stop within %v: stood still for %v", standstill.ErrUnjudged, bound, stood))
	}
	return how, ended.Sub(begun), err
}

// within checks that a stop that has just ended took so long at most.
func within(t *testing.T, took, most time.Duration) {
	t.Helper()
	standstill.Within(t, "stopped", time.Now().Add(-took), took, most)
}

func TestAStopWhoseTimeIsOverBeforeItsFirstSignalKillsAndOneThatIsCanceledDoesNot(t *testing.T) {
	for name, over := range map[string]func() (context.Context, context.CancelFunc){
		"over": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 50*time.Millisecond)
		},
		"canceled": func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := broker(t, "polite")
			held := target(t, b.Process.Pid)
			ctx, cancel := over()
			defer cancel()
			s := stopper(t, Settings{Seen: held})
			s.procs = func(pid int) (*os.Process, error) {
				if name == "canceled" {
					cancel()
				}
				<-ctx.Done()
				return os.FindProcess(pid)
			}
			how, err := s.Stop(ctx)
			if name == "canceled" {
				if err == nil || held.Gone() {
					t.Errorf("%s, %v; gone: %t", how, err, held.Gone())
				}
				return
			}
			eventually(t, "its end", held.Gone)
		})
	}
}

func childOf(t Target) func() (Target, bool) { return func() (Target, bool) { return t, true } }

// withoutPidfds is what os.FindProcess returns where there are none.
func withoutPidfds(pid int) (*os.Process, error) { return &os.Process{Pid: pid}, nil }

func TestStopsAProcessAndProvesIt(t *testing.T) {
	for _, tt := range []struct {
		name, role string
		procs      finder
		frozen     bool
		want       string
	}{
		{"that ends on SIGTERM", "polite", os.FindProcess, false, HowTerm},
		{"that ignores SIGTERM", "stubborn", os.FindProcess, false, HowKill},
		{"that is stopped", "polite", os.FindProcess, true, HowKill},
		{"where the kernel has no pidfds", "polite", withoutPidfds, false, HowTerm},
		{"where the kernel has no pidfds and SIGTERM is ignored", "stubborn", withoutPidfds, false, HowKill},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, _ := broker(t, tt.role)
			if tt.frozen {
				if err := b.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			s := stopper(t, Settings{PIDFile: pidFile(t, b.Process.Pid)})
			s.procs = tt.procs
			hit, ok := s.Target()
			if !ok || hit.Pid != b.Process.Pid {
				t.Fatalf("would hit %v, %t", hit, ok)
			}
			const bound = 2 * time.Second
			how, took, err := stop(t, s, bound)
			if err != nil || how != tt.want {
				t.Errorf("%s, %v, want %s", how, err, tt.want)
			}
			if !hit.Gone() {
				t.Error("it lives")
			}
			if tt.want == HowKill && took < bound/2 {
				t.Errorf("killed after %v, want half of %v", took, bound)
			}
			if _, ok := s.Target(); ok {
				t.Error("it would be hit again")
			}
			if how, _, err := stop(t, s, bound); err != nil || how != HowGone {
				t.Errorf("a second time: %s, %v", how, err)
			}
			within(t, took, bound)
		})
	}
}

func TestAStopWithoutTimeKillsAtOnce(t *testing.T) {
	b, _ := broker(t, "stubborn")
	how, took, err := stop(t, stopper(t, Settings{PIDFile: pidFile(t, b.Process.Pid)}), 0)
	if err != nil || how != HowKill {
		t.Errorf("%s after %v, %v", how, took, err)
	}
	within(t, took, lateBound+100*time.Millisecond)
}

func TestAChildIsStoppedWithItsGroup(t *testing.T) {
	for name, procs := range map[string]finder{
		"in one step": os.FindProcess,
		"on a kernel that cannot signal a group by pidfd": withoutPidfds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, member := broker(t, "parent") // ends on SIGTERM; its own child does not
			child := target(t, member)
			s := stopper(t, Settings{Child: childOf(target(t, b.Process.Pid))})
			s.procs = procs
			done := make(chan struct{})
			go func() { defer close(done); _, _ = b.Process.Wait() }() // reaped: only the member holds the group's number
			how, _, err := stop(t, s, 2*time.Second)
			<-done
			if err != nil || how != HowKill {
				t.Errorf("%s, %v", how, err)
			}
			if !child.Gone() {
				t.Error("a member of the group lives")
			}
		})
	}
}

func TestARecycledPidIsNotHit(t *testing.T) {
	b, _ := broker(t, "polite")
	other := target(t, b.Process.Pid)
	other.StartTicks-- // the broker had this pid before
	for name, s := range map[string]Settings{
		"child": {Child: childOf(other)},
		"seen":  {PIDFile: filepath.Join(t.TempDir(), "gone.pid"), Seen: other},
	} {
		t.Run(name, func(t *testing.T) {
			for _, procs := range []finder{os.FindProcess, withoutPidfds} {
				x := stopper(t, s)
				x.procs = procs
				if hit, ok := x.Target(); ok {
					t.Errorf("would hit %v", hit)
				}
				if how, _, err := stop(t, x, time.Second); err != nil || how != HowGone {
					t.Errorf("%s, %v", how, err)
				}
			}
			if target(t, b.Process.Pid).Gone() {
				t.Error("the stranger was hit")
			}
		})
	}
}

func TestWhatWasSeenOnceIsStoppedWithoutItsPidFile(t *testing.T) {
	b, _ := broker(t, "polite")
	path := pidFile(t, b.Process.Pid)
	s := stopper(t, Settings{PIDFile: path})
	hit, _ := s.Target()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if again, ok := s.Target(); !ok || again != hit {
		t.Errorf("without the file: %v, %t", again, ok)
	}
	if how, _, err := stop(t, s, 2*time.Second); err != nil || how != HowTerm || !hit.Gone() {
		t.Errorf("%s, %v, gone %t", how, err, hit.Gone())
	}
}

func TestNothingFoundIsNoProof(t *testing.T) {
	for name, s := range map[string]Settings{
		"no pid file":      {PIDFile: filepath.Join(t.TempDir(), "none.pid")},
		"a pid of nobody":  {PIDFile: pidFile(t, 1<<22)},
		"nobody's name":    {Name: "hf-nobody-" + strconv.Itoa(os.Getpid())},
		"our own pid":      {PIDFile: pidFile(t, os.Getpid())},
		"an unlikely file": {PIDFile: t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			x := stopper(t, s)
			how, took, err := stop(t, x, 2*time.Second)
			if err == nil || how != "" {
				t.Errorf("%q after %v, %v", how, took, err)
			}
			known := name != "our own pid" && name != "an unlikely file"
			if errors.Is(err, ErrNotFound) != known {
				t.Errorf("ErrNotFound %t: %v", !known, err)
			}
			within(t, took, time.Second)
		})
	}
}

func TestTheDaemonOfADoubleForkIsStoppedByItsPidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.pid")
	broker(t, "daemonize", "HF_TEST_PIDFILE="+path)
	s := stopper(t, Settings{PIDFile: path})
	hit, ok := s.Target()
	if !ok {
		t.Fatal("the daemon was not found")
	}
	if how, _, err := stop(t, s, time.Second); err != nil || how != HowKill || !hit.Gone() {
		t.Errorf("%s, %v, gone %t", how, err, hit.Gone())
	}
}

func TestTheStopCommand(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	missing := filepath.Join(t.TempDir(), "none")
	const bound = 2 * time.Second
	for _, tt := range []struct {
		name, command string // PID is the broker's
		process       bool
		want, says    string
		within        time.Duration
	}{
		{"alone, ends well", sh + ` -c 'exit 0'`, false, HowCommand, "", bound},
		{"alone, fails", sh + ` -c 'echo no such unit; exit 5'`, false, "", "exit status 5: no such unit", bound},
		{"alone, hangs", sh + ` -c 'sleep 100'`, false, "", "has not ended in time", bound + time.Second},
		{"alone, is not there", missing, false, "", "no such file", bound},
		{"leaves something in the background", sh + ` -c 'sleep 3 & exit 0'`, false, HowCommand, "", bound},
		{"stops the process", sh + ` -c 'kill -TERM PID'`, true, HowCommand, "", bound / 4},
		{"does nothing", sh + ` -c 'exit 0'`, true, HowTerm, "", bound / 2},
		{"fails, so the signal comes at once", sh + ` -c 'exit 5'`, true, HowTerm, "", bound / 5},
		{"hangs", sh + ` -c 'sleep 100'`, true, HowTerm, "", bound/2 + 200*time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s Settings
			if tt.process {
				b, _ := broker(t, "polite")
				s.PIDFile = pidFile(t, b.Process.Pid)
				tt.command = strings.ReplaceAll(tt.command, "PID", strconv.Itoa(b.Process.Pid))
			}
			s.Command = tt.command
			x := stopper(t, s)
			hit, _ := x.Target()
			how, took, err := stop(t, x, bound)
			if how != tt.want {
				t.Errorf("%s after %v, want %s: %v", how, took, tt.want, err)
			}
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
			if tt.process && !hit.Gone() {
				t.Error("it lives")
			}
			within(t, took, tt.within)
		})
	}
}

func TestSplitsCommandsWithoutAShell(t *testing.T) {
	for line, words := range map[string][]string{
		"systemctl stop nats":                {"systemctl", "stop", "nats"},
		` /x/y  'a b' "c \"d\" $e" f\ g '' `: {"/x/y", "a b", `c "d" $e`, "f g", ""},
		`a "b\n"`:                            {"a", `b\n`},
		`a;b|c`:                              {"a;b|c"},
	} {
		s, err := NewStopper(Settings{Command: line})
		if err != nil || !slices.Equal(s.argv, words) {
			t.Errorf("%q: %q, %v", line, s.argv, err)
		}
	}
	for line, says := range map[string]string{
		"  ":   "no way to stop the broker",
		`a 'b`: "Unterminated single-quoted string",
		`a \`:  "Unterminated backslash-escape",
		`"" a`: "the name of the program is empty",
	} {
		if _, err := NewStopper(Settings{Command: line}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestSettingsThatCannotStopAreRefused(t *testing.T) {
	if _, err := NewStopper(Settings{}); err == nil || !strings.Contains(err.Error(), "--stop-command") {
		t.Error(err)
	}
	if _, err := NewStopper(Settings{Command: "'"}); err == nil || !strings.HasPrefix(err.Error(), "--stop-command") {
		t.Error(err)
	}
	if err := stopper(t, Settings{Command: "/no/such"}).Check(); err == nil || !strings.HasPrefix(err.Error(), "--stop-command: /no/such: ") {
		t.Error(err)
	}
	x := stopper(t, Settings{Command: "true x", PIDFile: "/run/b.pid", Name: "b", Child: childOf(Target{})})
	if got := x.Describe(); got != `stop command true, then SIGTERM and SIGKILL to the child process group and process "b" in pid file /run/b.pid` {
		t.Error(got)
	}
}

func TestAProcessThatIsRefusedIsNeverSignaled(t *testing.T) {
	for _, tt := range []struct {
		name string
		seen bool // taken for the broker before it was refused
		why  error
		want error // nil: any but ErrNotFound
	}{
		{"it is not the broker", false, ErrNotFound, ErrNotFound},
		{"it is not the broker, and was taken for it", true, ErrNotFound, ErrNotFound},
		{"it is not judged yet", false, errors.New("not yet"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := exec.Command("sleep", "300")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
			file := filepath.Join(t.TempDir(), "broker.pid")
			if err := os.WriteFile(file, fmt.Append(nil, c.Process.Pid), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := NewStopper(Settings{PIDFile: file})
			if err != nil {
				t.Fatal(err)
			}
			if tt.seen {
				if _, ok := s.Target(); !ok {
					t.Fatal("not found")
				}
			}
			s.Refuse(func(Target) error { return tt.why })
			if got, ok := s.Target(); ok {
				t.Errorf("the target is %s", got)
			}
			how, err := s.Stop(t.Context())
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || tt.want == nil && errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", how, err)
			}
			if was, err := TargetOf(c.Process.Pid); err != nil || was.Gone() {
				t.Errorf("it was hit: %v", err)
			}
		})
	}
}
