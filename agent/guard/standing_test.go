package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/agent/lease"
)

func TestAnOperatorSeesWhatAGuardIsAboutToDo(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	guard := s.guard()
	seen := func() Standing {
		t.Helper()
		left, ok := StandingOf(s.dir)
		if !ok || left.Pid != guard {
			t.Fatalf("the guard is process %d, seen is %+v, %t", guard, left, ok)
		}
		return left
	}
	says := func(left Standing, what string) {
		t.Helper()
		want := fmt.Sprintf("the guard of %s, process %d, %s; only if no sidecar is to run here again: kill -KILL %d", s.dir, guard, what, guard)
		if left.Held != 0 {
			want += fmt.Sprintf(" && kill -CONT %d", left.Held)
		}
		want += " ends the guard, and nobody guards what the broker then serves"
		if got := left.String() + "; " + left.Hint(); got != want {
			t.Errorf("said\n%s\nwant\n%s", got, want)
		}
	}
	says(seen(), "stands by")

	c.Arm(validFor(time.Hour))
	left := seen()
	if until := time.Until(left.At) - time.Hour; left.Over || until > 0 || until < -bound {
		t.Errorf("it acts %v from now: %+v", time.Until(left.At), left)
	}
	says(left, "stops the broker at "+left.At.UTC().Format("15:04:05Z")+" unless a sidecar renews the lease before")

	freeze()
	c.Arm(validFor(600 * time.Millisecond))
	s.awaitEnd()
	says(seen(), "keeps the broker down until a sidecar runs again")
	time.Sleep(2 * time.Second / ticksPerSecond) // what starts now is younger than the moment
	again := s.restarted()
	s.await("the broker to be held", again.frozen)
	if left = seen(); left.Held != again.broker.Process.Pid {
		t.Errorf("it holds process %d, not %d", left.Held, again.broker.Process.Pid)
	}
	says(left, "keeps the broker down until a sidecar runs again")

	c.Beat(lease.BootClock().Add(time.Hour))
	s.await("the broker to go on", func() bool { return !again.frozen() })
	if left = seen(); left.Held != 0 {
		t.Errorf("it still holds process %d", left.Held)
	}
}

func TestAPidThatAGuardLeftBehindIsNoGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if left, ok := StandingOf(dir); ok {
		t.Errorf("without a lock: %+v", left)
	}
	for name, content := range map[string]string{
		"of a process that is none": fmt.Sprintf("%-10d\n", os.Getpid()),
		"emptied by a clean end":    "",
		"of nobody":                 fmt.Sprintf("%-10d\n", 1<<22+1),
	} {
		if err := os.WriteFile(filepath.Join(dir, lockFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if left, ok := StandingOf(dir); ok {
			t.Errorf("%s: %+v", name, left)
		}
	}
}
