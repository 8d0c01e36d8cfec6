package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// supervised is a stage whose broker is found by a pid file that names each next one.
func supervised(t *testing.T) (s *stage, c *Client, freeze func()) {
	t.Helper()
	s = newStage(t)
	s.names(s)
	b := s.by("")
	any, err := b.stopper(process.Target{})
	if err != nil {
		t.Fatal(err)
	}
	c, freeze = s.client(b, any.Target)
	s.await("a guard", func() bool { return c.Stands(s.target()) })
	return s, c, freeze
}

// names has the pid file name the broker of another stage.
func (s *stage) names(other *stage) {
	s.Helper()
	path := filepath.Join(s.dir, "pid")
	err := os.WriteFile(path+".tmp", fmt.Append(nil, other.broker.Process.Pid), 0o600)
	if err = errors.Join(err, os.Rename(path+".tmp", path)); err != nil {
		s.Fatal(err)
	}
}

// restarted is a broker that somebody starts again, in the same state directory.
func (s *stage) restarted() *stage {
	s.Helper()
	again := newStage(s.T)
	s.names(again)
	return again
}

// frozen says whether the broker exists and does not run.
func (s *stage) frozen() bool { return frozen(s.broker.Process.Pid) }

func frozen(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(raw), ") T ")
}

func (s *stage) frozenOrEnded() bool { return s.frozen() || s.ended() }

func (s *stage) endsWithin(d time.Duration) bool {
	select {
	case <-s.exited:
		return true
	case <-time.After(d):
		return false
	}
}

func TestABrokerThatIsStartedAgainBesideASilentSidecarIsHeldUntilTheLoopBeats(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	guard := s.guard()
	c.Arm(validFor(2 * time.Second))
	freeze()
	s.awaitEnd()
	time.Sleep(2 * time.Second / ticksPerSecond) // what starts now is younger than the moment
	var last *stage
	for range 3 {
		again := s.restarted()
		s.await("what is done to the next one", again.frozenOrEnded)
		if again.ended() {
			t.Fatal("ended beside a silent sidecar: whoever starts it would start another")
		}
		if last != nil && !last.endsWithin(5*time.Second) {
			t.Fatal("the one before is held for ever: no pid file names it")
		}
		last = again
	}
	if s.guard() != guard {
		t.Errorf("guard %d, before %d", s.guard(), guard)
	}
	var stops []Acted
	s.await("what it did", func() bool {
		more, err := takeUp(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, more...)
		return len(stops) == 4
	})
	if stops[0].How == howHeld || stops[3].How != howHeld || !strings.Contains(stops[3].String(), "which somebody started meanwhile, is held by SIGSTOP since ") {
		t.Errorf("%+v", stops)
	}

	next, _ := s.client(s.by(""), func() (process.Target, bool) { return process.Target{}, false })
	s.await("what was held to go on", func() bool { return !last.frozen() })
	time.Sleep(Silence) // this long nothing may happen
	if last.ended() || last.frozen() {
		t.Error(violation + "stopped beside a sidecar whose loop runs")
	}
	next.Goodbye()
	s.await("the end of the guard", func() bool { return s.guard() == 0 })
}

// It may serve, and its clients have to hear that it does not any more.
func TestABrokerThatWasStartedAgainBeforeTheMomentIsEnded(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	v := validFor(2 * time.Second)
	c.Arm(v)
	freeze()
	s.broker.Process.Kill() // a crash
	s.awaitEnd()
	next := s.restarted()
	if s.await("what is done to the next one", next.frozenOrEnded); !next.ended() {
		t.Error("it served, and is held: its clients wait for it")
	}
	if stopAt, _ := Points(v); lease.BootClock() < stopAt {
		t.Error(violation + "before the moment it only watches")
	}
}

func TestAStandingGuardHearsOfAPidFile(t *testing.T) {
	w, waits, _ := turning(t, post{Broker: Broker{PIDFile: filepath.Join(t.TempDir(), "pid")}})
	w.seeker = &stub{err: process.ErrNotFound}
	now := lease.BootClock()
	w.page.postpone(now, now)
	w.turn()
	fd := (*waits)[0][3].Fd
	if fd < 0 {
		t.Fatal("it hears of nothing")
	}
	if err := os.WriteFile(w.quarry.Broker.PIDFile, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	heard := []unix.PollFd{{Fd: fd, Events: unix.POLLIN}}
	if n, err := unix.Poll(heard, int(bound/time.Millisecond)); n != 1 {
		t.Errorf("it heard of nothing: %v", err)
	}
	w.page.beat.Store(int64(lease.BootClock()))
	w.turn()
	if fd := (*waits)[1][3].Fd; fd >= 0 {
		t.Error("it listens although it does not stand")
	}
}

// It runs beside no other test: the standard error is everybody's.
func TestAGuardWhoseLogNobodyReadsGoesOn(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[0])
	stderr, unread := os.Stderr, os.NewFile(uintptr(pair[1]), "unread")
	os.Stderr = unread
	t.Cleanup(func() { os.Stderr = stderr; unread.Close() })
	s, c, freeze := supervised(t)
	c.Arm(validFor(600 * time.Millisecond))
	freeze()
	s.awaitEnd() // which the guard tells
	again := s.restarted()
	s.await("the guard to stop the broker again", again.frozenOrEnded)
}

func TestAStandingGuardThatNobodyCanTakeOverEnds(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	c.Arm(validFor(600 * time.Millisecond))
	freeze()
	guard, err := process.TargetOf(s.guard())
	if err != nil {
		t.Fatal(err)
	}
	s.awaitEnd()
	if err := os.Remove(filepath.Join(s.dir, lockFile)); err != nil {
		t.Fatal(err)
	}
	s.await("the end of the guard", guard.Gone)
}

func TestAProofPutsTheStopOffAndNoLonger(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	v := validFor(time.Second)
	c.Arm(v)
	stopAt := lease.BootClock().Add(3 * time.Second)
	c.Postpone(stopAt)
	freeze()
	s.awaitEnd()
	if now := lease.BootClock(); now < stopAt {
		t.Errorf("%sstopped %v before the moment", violation, stopAt.Sub(now))
	}
	var stops []Acted
	s.await("what it did", func() bool { stops, _ = takeUp(s.dir); return len(stops) > 0 })
	if got := stops[0]; !got.Idle || !strings.Contains(got.String(), "last proven to serve nothing") {
		t.Errorf("%+v", got)
	}
}

// Patroni's watchdog was stopped as soon as the leader had ended, while backends served
// (its issue 3639), and stayed armed where there never were any (3723).
func TestAGuardStaysForTheGroupOfABrokerWhoseLeaderEnded(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		t.Run(fmt.Sprintf("somebody is left: %t", leaves), func(t *testing.T) {
			t.Parallel()
			pids := filepath.Join(t.TempDir(), "member")
			script := fmt.Sprintf("sleep 1000 & echo $! > %s.tmp; mv %[1]s.tmp %[1]s; wait", pids)
			if !leaves {
				script = "exec sleep 1000"
			}
			s := newLeader(t, "sh", "-c", script)
			t.Cleanup(func() { syscall.Kill(-s.broker.Process.Pid, syscall.SIGKILL) })
			var member process.Target
			if leaves {
				s.await("the member", func() bool {
					raw, err := os.ReadFile(pids)
					if err != nil {
						return false
					}
					var pid int
					fmt.Sscan(string(raw), &pid)
					member, err = process.TargetOf(pid)
					return err == nil
				})
			}
			b := Broker{Record: filepath.Join(s.dir, "child.json")}
			c, freeze := s.client(b, s.finds())
			s.await("a guard", func() bool { return c.Stands(s.target()) })
			c.Arm(validFor(2 * time.Second))
			syscall.Kill(s.broker.Process.Pid, syscall.SIGKILL)
			s.awaitEnd()
			freeze()
			late := lease.Instant(c.page.deadline.Load()).Add(bound / 6)
			s.await("the moment", func() bool {
				now := lease.BootClock()
				return now > late || now > lease.Instant(c.page.deadline.Load()) && (!leaves || member.Gone())
			})
			if leaves && !member.Gone() {
				t.Fatal("who serves was not stopped")
			}
			stops, err := takeUp(s.dir)
			if err != nil || leaves != (len(stops) == 1) || !leaves && c.page.fired.pid.Load() != 0 {
				t.Errorf("told %+v, %v", stops, err)
			}
		})
	}
}

// stub is a Stopper that is refused, and finds what it is told.
type stub struct {
	stops int
	t     process.Target
	err   error
}

func (s *stub) Stop(context.Context) (string, error) { s.stops++; return "", unix.EPERM }
func (s *stub) Find() (process.Target, bool, error)  { return s.t, s.t.Pid != 0, s.err }

// turning is a watcher of a page of its own, whose waits end at once and are written down.
func turning(t *testing.T, p post) (w *watcher, waits *[][]unix.PollFd, said *strings.Builder) {
	t.Helper()
	pg, f, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := pg.order(p); err != nil {
		t.Fatal(err)
	}
	said, waits = &strings.Builder{}, new([][]unix.PollFd)
	w = newWatcher(t.TempDir(), pg, said)
	if err := errors.Join(w.takePost(), w.openWaits()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.quarry.close)
	w.poll = func(fds []unix.PollFd, timeout int) (int, error) {
		*waits = append(*waits, append([]unix.PollFd(nil), fds...))
		return 0, nil
	}
	return w, waits, said
}

// Two guards whose stop was refused took both processors of a machine here, when the
// process had ended: its pidfd was readable for ever.
func TestAGuardNeverWaitsForAProcessThatHasEnded(t *testing.T) {
	s := newStage(t)
	w, waits, said := turning(t, post{Target: s.target(), Broker: Broker{PIDFile: filepath.Join(s.dir, "none")}})
	refused := &stub{err: process.ErrNotFound}
	w.stopper, w.seeker = refused, refused
	time.Sleep(2 * time.Second / ticksPerSecond) // the process is older than the word
	now := lease.BootClock()
	w.page.postpone(now, now)
	w.page.beat.Store(int64(now))
	held := int32(w.quarry.fd)
	for range 3 {
		w.turn()
	}
	if refused.stops != 3 || len(*waits) != 3 || (*waits)[2][2].Fd != held {
		t.Fatalf("%d stops, waits %v", refused.stops, *waits)
	}
	if n := strings.Count(said.String(), "not stopped yet"); n != 1 {
		t.Errorf("said %d times:\n%s", n, said)
	}
	s.broker.Process.Kill()
	s.awaitEnd()
	for beats := range 6 {
		if beats == 3 {
			w.page.beat.Store(1) // silent
		}
		before := len(*waits)
		if !w.turn() || len(*waits) != before+1 {
			t.Fatalf("turn %d: %d waits", beats, len(*waits)-before)
		}
		if fd := (*waits)[before][2].Fd; fd >= 0 {
			t.Errorf("turn %d: it waits for descriptor %d, which is readable", beats, fd)
		}
	}
	if refused.stops != 3 {
		t.Errorf("%d stops of a process that has ended", refused.stops-3)
	}
}

func TestANameOfSeveralProcessesIsNobodysAndThatIsSaidOnce(t *testing.T) {
	w, _, said := turning(t, post{Broker: Broker{Name: "several"}})
	several := &stub{err: errors.New(`2 processes are called "several"`)}
	w.stopper, w.seeker = several, several
	now := lease.BootClock()
	w.page.postpone(now, now)
	for range 5 {
		w.turn()
	}
	if several.stops != 0 || strings.Count(said.String(), "cannot tell") != 1 || strings.Count(said.String(), "it stands") != 1 {
		t.Errorf("%d stops; said:\n%s", several.stops, said)
	}
}

func TestAPostThatIsHalfWrittenIsNotTaken(t *testing.T) {
	first := post{Target: process.Target{Pid: 11, StartTicks: 1}, Broker: Broker{Name: "one", StopCommand: "true"}}
	w, _, _ := turning(t, first)
	next := &w.page.posts[(w.page.number.Load()+1)%2] // a sidecar that was killed while it wrote
	copy(next.text[:], `{"target":{"pid":12,`)
	next.size.Store(20)
	if got, number, err := w.page.post(); !reflect.DeepEqual(got, first) || number != 1 || err != nil {
		t.Errorf("%+v, %d, %v", got, number, err)
	}
	second := post{Target: process.Target{Pid: 12, StartTicks: 2}, Broker: first.Broker}
	if err := w.page.order(second); err != nil {
		t.Fatal(err)
	}
	if got, _, err := w.page.post(); !reflect.DeepEqual(got, second) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if w.page.held.Load() != 1 {
		t.Error("held before it was taken")
	}
	if err := w.takePost(); err != nil || w.page.held.Load() != 2 {
		t.Errorf("held %d, %v", w.page.held.Load(), err)
	}
	if err := w.page.order(post{Broker: Broker{StopCommand: strings.Repeat("x", slotSize)}}); err == nil {
		t.Error("a post that does not fit was written")
	}
}

func TestAGuardKeepsItsPostUntilItCanTakeTheNext(t *testing.T) {
	s := newStage(t)
	w, _, said := turning(t, post{Target: s.target(), Broker: Broker{Name: "one"}})
	if err := w.page.order(post{Broker: Broker{StopCommand: "'a quote that is not closed"}}); err != nil {
		t.Fatal(err)
	}
	w.turn()
	if w.page.held.Load() != 1 || w.quarry.Target != s.target() || !strings.Contains(said.String(), "keeps its post") {
		t.Errorf("holds %v by post %d; said:\n%s", w.quarry.Target, w.page.held.Load(), said)
	}
}

// Also while the sidecar's side, which looks after it, hangs.
func TestANearerWordWakesTheGuard(t *testing.T) {
	t.Parallel()
	s, c, freeze := supervised(t)
	c.Arm(validFor(time.Hour))
	time.Sleep(2 * Look) // it sleeps for half an hour now
	freeze()
	v := validFor(time.Second)
	c.Arm(v)
	s.awaitEnd()
	if left := v.Deadline().Sub(lease.BootClock()); left <= 0 {
		t.Errorf(violation+"%v after the deadline", -left)
	}
}

func TestWhatAGuardIsAboutToWriteIsNotLost(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, actsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if acts, err := takeUp(dir); len(acts) != 0 || err != nil {
		t.Errorf("%v, %v", acts, err)
	}
	if _, err := f.WriteString(`{"guard":1}` + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := leave(dir, Acted{Guard: 2}); err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= 2; want++ {
		if acts, err := takeUp(dir); len(acts) != 1 || acts[0].Guard != want || err != nil {
			t.Errorf("%v, %v", acts, err)
		}
	}
	if acts, err := takeUp(dir); len(acts) != 0 || err != nil {
		t.Errorf("twice: %v, %v", acts, err)
	}
}
