package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// bound is for what should take well under a second. It is never a claim: a busy machine
// stands still for seconds.
const bound = time.Minute

// violation begins what is true by whatever chance it came out: CI does not run such a test
// again, as it does one that a busy machine made late. As lab/harness has it.
const violation = "VIOLATION: "

// The test binary is its own guard, and its own sidecar that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		if err := Main(os.Args[2:], os.Stderr); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv("GUARD_TEST_SIDECAR"); dir != "" {
		sidecarThatIsKilled(dir)
	}
	os.Exit(m.Run())
}

// stage is a broker, which is a process that does nothing, and the sidecar's side.
type stage struct {
	*testing.T
	dir    string
	broker *exec.Cmd
	exited chan struct{}
}

func newStage(t *testing.T, broker ...string) *stage {
	t.Helper()
	if len(broker) == 0 {
		broker = []string{"sleep", "1000"}
	}
	return begin(t, exec.Command(broker[0], broker[1:]...))
}

// newLeader is newStage with a broker that leads a process group of its own.
func newLeader(t *testing.T, broker ...string) *stage {
	t.Helper()
	cmd := exec.Command(broker[0], broker[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return begin(t, cmd)
}

func begin(t *testing.T, broker *exec.Cmd) *stage {
	t.Helper()
	s := &stage{T: t, dir: t.TempDir(), broker: broker, exited: make(chan struct{})}
	if err := s.broker.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.exited)
		s.broker.Wait()
	}()
	t.Cleanup(func() {
		s.broker.Process.Kill()
		<-s.exited
		s.await("the guard to end", func() bool {
			if pid := s.guard(); pid != 0 {
				syscall.Kill(pid, syscall.SIGKILL)
				return false
			}
			return true
		})
	})
	return s
}

func (s *stage) target() process.Target {
	s.Helper()
	t, err := process.TargetOf(s.broker.Process.Pid)
	if err != nil {
		s.Fatal(err)
	}
	return t
}

// client is a sidecar's side, whose loop runs until the test or stop ends it, however busy the
// machine is.
func (s *stage) client(b Broker, find func() (process.Target, bool)) (c *Client, stop func()) {
	s.Helper()
	c, err := Open(Settings{Dir: s.dir, Broker: b, Find: find, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for ctx.Err() == nil {
			c.Beat(lease.BootClock().Add(bound))
			time.Sleep(20 * time.Millisecond)
		}
	}()
	go func() {
		defer close(done)
		c.Run(ctx)
		<-beating
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		c.Beat(lease.BootClock())
	})
	s.Cleanup(stop)
	return c, stop
}

// by finds what is written into the stage's pid file.
func (s *stage) by(command string) Broker {
	return Broker{PIDFile: filepath.Join(s.dir, "pid"), StopCommand: command}
}

// finds is the broker, for as long as it lives.
func (s *stage) finds() func() (process.Target, bool) {
	t := s.target()
	return func() (process.Target, bool) { return t, !t.Gone() }
}

// guarded is a client whose guard watches the broker.
func (s *stage) guarded(command string) *Client {
	s.Helper()
	c, _ := s.client(s.by(command), s.finds())
	s.await("a guard", func() bool { return c.Stands(s.target()) })
	return c
}

func (s *stage) await(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("await %s: not within %v", what, bound)
		}
	}
}

// guard is the pid of the guard of the state directory, 0: there is none.
func (s *stage) guard() int {
	s.Helper()
	f, err := os.Open(filepath.Join(s.dir, "guard.lock"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	c := Client{lock: f}
	if free, err := c.tryLock(); err != nil || free {
		return 0
	}
	pid, err := pidIn(c.lock.Name())
	if err != nil {
		return 0 // not yet
	}
	if _, err := process.TargetOf(pid); err != nil {
		return 0
	}
	return pid
}

// validFor is a lease whose guard acts after d: the margin is 3 s, so the stop begins
// 1 s and the kill 0.5 s before the deadline. d must be longer than Look.
func validFor(d time.Duration) lease.Validity {
	return lease.Validity{SentAt: lease.BootClock(), TTL: d + time.Second, Margin: 3 * time.Second}
}

// awaitEnd waits for the end of the broker.
func (s *stage) awaitEnd() {
	s.Helper()
	if !s.endsWithin(bound) {
		s.Fatalf("the broker does not end within %v", bound)
	}
}

func (s *stage) ended() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// stopped waits for the end of the broker and returns what the guard told of it.
func (s *stage) stopped(c *Client, v lease.Validity) Acted {
	s.Helper()
	s.awaitEnd()
	left := v.Deadline().Sub(lease.BootClock())
	s.Logf("stopped %v before the deadline", left)
	if left <= 0 {
		s.Error(violation + "too late")
	}
	var stop Acted
	s.await("the news of the stop", func() bool {
		for _, e := range c.News() {
			if e.What == Stopped {
				stop = e.Acted
				return true
			}
		}
		return false
	})
	s.Log(stop)
	return stop
}

func TestABrokerOfWhichNothingIsHeardIsEndedBeforeTheDeadline(t *testing.T) {
	for _, c := range []struct {
		name   string
		broker []string
		frozen bool
		how    string
	}{
		{"it ends when it is asked to", nil, false, process.HowTerm},
		{"it does not", []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}, false, process.HowKill},
		{"it is frozen", nil, true, process.HowKill},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, c.broker...)
			client, target := s.guarded(""), s.target()
			if c.frozen {
				s.broker.Process.Signal(syscall.SIGSTOP)
			}
			v := validFor(time.Second)
			client.Arm(v)
			if client.Fired(target) {
				t.Error("fired already")
			}
			got := s.stopped(client, v)
			client.Arm(validFor(time.Hour))
			if later := (process.Target{Pid: target.Pid, StartTicks: target.StartTicks + 1}); !client.Fired(target) || client.Fired(later) {
				t.Errorf("it is not known which process was stopped: %t, %t", client.Fired(target), client.Fired(later))
			}
			if stopAt, _ := Points(v); got.How != c.how || got.Broker != s.broker.Process.Pid || got.LeftMS > v.Deadline().Sub(stopAt).Milliseconds() {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestADisarmedGuardLeavesTheBrokerAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.guarded("")
	v := validFor(700 * time.Millisecond)
	c.Arm(v)
	c.Disarm()
	for lease.BootClock() < v.Deadline().Add(Look) { // this long nothing may happen
		time.Sleep(20 * time.Millisecond)
		if s.ended() || s.guard() == 0 {
			t.Fatal(violation + "the broker or the guard ended, and nothing was armed")
		}
	}
}

func TestAGuardEndsByGoodbyeAndNotBySIGTERM(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.guarded("")
	c.Arm(validFor(time.Hour))
	guard := s.guard()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		syscall.Kill(guard, sig)
	}
	time.Sleep(2 * supervise) // this long nothing may happen
	if s.guard() != guard {
		t.Error("a signal ended it")
	}
	c.Goodbye()
	s.await("the end of the guard", func() bool { return s.guard() == 0 })
	if raw, err := os.ReadFile(filepath.Join(s.dir, lockFile)); err != nil || len(bytes.TrimSpace(raw)) > 0 {
		t.Errorf("it left %q in its lock: %v", raw, err)
	}
	time.Sleep(2 * supervise)
	if s.guard() != 0 || s.ended() {
		t.Error("another guard was started, or the broker stopped")
	}
}

func TestAGuardThatWasKilledIsReplacedAndItsWordStaysInForce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.guarded("")
	v := validFor(8 * time.Second) // the next one stands long before
	c.Arm(v)
	first := s.guard()
	syscall.Kill(first, syscall.SIGKILL)
	s.await("another guard", func() bool { g := s.guard(); return g != 0 && g != first })
	var told []What
	s.await("the news of another guard", func() bool {
		for _, e := range c.News() {
			told = append(told, e.What)
		}
		return len(told) >= 3
	})
	if !slices.Equal(told, []What{Started, Died, Started}) {
		t.Errorf("told %v", told)
	}
	s.stopped(c, v)
}

func TestTheNextSidecarTakesTheGuardOverWithItsWord(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c, stop := s.client(s.by(""), s.finds())
	s.await("a guard", func() bool { return s.guard() != 0 })
	v := validFor(2 * time.Second)
	c.Arm(v)
	first := s.guard()
	stop()
	next, _ := s.client(s.by(""), s.finds())
	if got := next.News(); len(got) != 1 || got[0].What != TakenOver {
		t.Errorf("told %+v", got)
	}
	if stopAt, _ := Points(v); next.page.orders().StopAt != stopAt || next.page.orders().Goodbye {
		t.Errorf("the word is %+v", next.page.orders())
	}
	time.Sleep(2 * supervise)
	if s.guard() != first {
		t.Error("the guard was replaced")
	}
	s.stopped(next, v)
}

// What was started a moment after the guard had acted was not meant. The kernel tells that to a
// clock tick.
func TestNoProcessIsTakenForOlderThanItIs(t *testing.T) {
	for range 20 {
		before := lease.BootClock()
		if s := newStage(t); born(s.target()) < before {
			t.Fatalf("started after %v, taken for started before %v", before, born(s.target()))
		}
	}
	if q := watch(post{}); q.born() != 0 {
		t.Errorf("nobody was started at %v", q.born())
	}
}

// A broker that is started again after its predecessor was stopped, by the guard or by
// anybody, is not stopped by the same word, however late the sidecar is with another.
func TestABrokerThatIsStartedAgainIsNotStoppedByTheOldWord(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var broker atomic.Pointer[process.Target]
	is := func(t process.Target) { broker.Store(&t) }
	is(s.target())
	c, _ := s.client(s.by(""), func() (process.Target, bool) { return *broker.Load(), true })
	s.await("a guard", func() bool { return s.guard() != 0 })
	v := validFor(700 * time.Millisecond)
	stopAt, _ := Points(v)
	tick := time.Second / ticksPerSecond
	v.SentAt = v.SentAt.Add(tick + time.Millisecond - time.Duration(stopAt)%tick) // the moment is early in its tick
	c.Arm(v)
	s.awaitEnd()
	again := newStage(t)
	again.dir = s.dir
	is(again.target())
	c.Wake()
	s.await("the guard to look after it", func() bool { return c.Stands(again.target()) })
	time.Sleep(3 * Look) // this long nothing may happen
	if again.ended() {
		t.Fatal(violation + "stopped by an old word")
	}
	v = validFor(700 * time.Millisecond)
	c.Arm(v)
	again.awaitEnd()
}

func TestAStopCommandIsRunFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	script := filepath.Join(s.dir, "stop")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nkill -INT $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := s.guarded(script + " " + strconv.Itoa(s.broker.Process.Pid))
	v := lease.Validity{SentAt: lease.BootClock(), TTL: 11 * time.Second, Margin: 30 * time.Second} // the command has 2.5 s
	c.Arm(v)
	if got := s.stopped(c, v); got.How != process.HowCommand || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	if ws := s.broker.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGINT {
		t.Errorf("ended by %v", ws)
	}
}

func TestWithoutAProcessToSeeTheStopCommandIsAllThereIs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c, _ := s.client(Broker{StopCommand: "kill " + strconv.Itoa(s.broker.Process.Pid)}, func() (process.Target, bool) { return process.Target{}, false })
	s.await("a guard", func() bool { return s.guard() != 0 })
	v := validFor(700 * time.Millisecond)
	c.Arm(v)
	if got := s.stopped(c, v); got.How != process.HowCommand || got.Broker != 0 {
		t.Errorf("%+v", got)
	}
	c.Goodbye()
}

func TestABrokerThatIsNotSeenIsToldOnceWhenItIsToBeGuarded(t *testing.T) {
	t.Parallel()
	c, err := Open(Settings{Dir: t.TempDir(), Broker: Broker{Name: "nobody"}, NotSeen: "look elsewhere", Log: slog.New(slog.DiscardHandler),
		Find: func() (process.Target, bool) { return process.Target{}, false }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	c.look()
	if news := c.News(); len(news) != 0 {
		t.Errorf("nothing is to be guarded yet: %+v", news)
	}
	c.Arm(validFor(time.Hour))
	c.look()
	c.look()
	if news := c.News(); len(news) != 1 || news[0].What != Failing || news[0].Detail != "look elsewhere" {
		t.Errorf("%+v", news)
	}
}

// sidecarThatIsKilled gives its word and waits for what is done to it.
func sidecarThatIsKilled(dir string) {
	b := Broker{PIDFile: filepath.Join(dir, "pid")}
	if name := os.Getenv("GUARD_TEST_NAME"); name != "" {
		b = Broker{Name: name}
	}
	stopper, err := b.stopper(process.Target{})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	if b.Name != "" {
		stopper.Use(&process.Finder{Name: b.Name, Admin: func() ([]netip.AddrPort, error) {
			at, err := netip.ParseAddrPort(os.Getenv("GUARD_TEST_ADMIN"))
			return []netip.AddrPort{at}, err
		}})
	}
	c, err := Open(Settings{Dir: dir, Broker: b, Find: stopper.Target, Clues: stopper.Clues, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	go c.Run(context.Background())
	for {
		c.Beat(lease.BootClock())
		c.Arm(validFor(1500 * time.Millisecond))
		time.Sleep(100 * time.Millisecond)
	}
}

func TestAGuardOutlivesASidecarThatIsFrozenOrKilledWithItsGroup(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"frozen": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			if err := os.WriteFile(filepath.Join(s.dir, "pid"), []byte(strconv.Itoa(s.broker.Process.Pid)), 0o600); err != nil {
				t.Fatal(err)
			}
			sidecar := exec.Command("/proc/self/exe")
			sidecar.Env = append(os.Environ(), "GUARD_TEST_SIDECAR="+s.dir)
			sidecar.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := sidecar.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				sidecar.Process.Kill()
				sidecar.Wait()
			}()
			s.await("a guard", func() bool { return s.guard() != 0 })
			time.Sleep(2 * time.Second) // longer than one word
			if s.ended() {
				t.Fatal("stopped beside a healthy sidecar")
			}
			p, _, err := openPage(s.guard(), pageFD)
			if err != nil {
				t.Fatal(err)
			}
			unix.Kill(-sidecar.Process.Pid, sig)
			s.awaitEnd()
			if left := lease.Instant(p.deadline.Load()).Sub(lease.BootClock()); left <= 0 {
				t.Errorf("%sstopped %v after the deadline", violation, -left)
			} else if left > time.Second {
				t.Errorf("stopped %v before the deadline", left)
			}
			var stops []Acted
			s.await("what it did", func() bool { stops, err = takeUp(s.dir); return err != nil || len(stops) > 0 })
			if err != nil || len(stops) != 1 || stops[0].How != process.HowTerm {
				t.Errorf("%+v, %v", stops, err)
			}
		})
	}
}

func TestAGuardIsNotStartedByHand(t *testing.T) {
	for _, args := range [][]string{nil, {"-state-dir", t.TempDir()}, {"--nonsense"}} {
		if err := Main(args, os.Stderr); !errors.Is(err, errNotByHand) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestAGuardStandsForTheProcessThatItWatchesAndForNoOther(t *testing.T) {
	t.Parallel()
	first, second := newStage(t), newStage(t)
	var there atomic.Pointer[process.Target]
	old, next := first.target(), second.target()
	there.Store(&old)
	c, _ := first.client(first.by(""), func() (process.Target, bool) { return *there.Load(), true })
	first.await("a guard that stands by", func() bool { return c.Stands(old) })
	if c.Stands(next) || c.Stands(process.Target{}) || c.Stands(process.Target{Pid: old.Pid, StartTicks: old.StartTicks + 1}) {
		t.Error("it stands for another process")
	}
	guard := first.guard()
	first.broker.Process.Kill()
	there.Store(&next)
	woken := time.Now()
	c.Wake()
	first.await("a guard of the next process", func() bool { return c.Stands(next) })
	t.Logf("%v after it was woken", time.Since(woken))
	if c.Stands(old) || first.guard() != guard || c.Starts() != 1 {
		t.Errorf("it stands for the old one: %t; guard %d, before %d, %d starts", c.Stands(old), first.guard(), guard, c.Starts())
	}
	v := validFor(time.Second)
	c.Arm(v)
	second.stopped(c, v)
}

func TestAGuardThatStopsInAnotherWayStandsForNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, stop := s.client(s.by(""), s.finds())
	s.await("a guard that stands by", func() bool { return old.Stands(s.target()) })
	stop()
	guard := s.guard()
	syscall.Kill(guard, syscall.SIGSTOP) // it takes no other post
	s.await("the guard to be frozen", func() bool { return frozen(guard) })
	c, _ := s.client(s.by("true"), s.finds())
	s.await("the post to be ordered", func() bool { return c.posted.Load() != nil })
	if c.Stands(s.target()) {
		t.Error("the guard of a sidecar with other settings counts")
	}
	syscall.Kill(guard, syscall.SIGCONT)
	s.await("the guard stops in our way", func() bool { return c.Stands(s.target()) })
}

func TestAGuardThatCannotBeginIsToldOfOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c, stop := s.client(Broker{StopCommand: "'a quote that is not closed"}, s.finds())
	s.await("three tries", func() bool { return c.Starts() >= 3 })
	stop()
	if c.Stands(s.target()) {
		t.Error("it stands by")
	}
	if news := c.News(); len(news) != 1 || news[0].What != Failing {
		t.Errorf("%+v", news)
	}
}

func TestTheStopCommandIsNotShownToEverybody(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.guarded(fmt.Sprintf("sh -c 'kill %d' secret", s.broker.Process.Pid))
	for _, shown := range []string{"cmdline", "environ"} {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.guard(), shown))
		if err != nil || strings.Contains(string(args), "secret") {
			t.Errorf("%q, %v", args, err)
		}
	}
	v := validFor(time.Second)
	c.Arm(v)
	s.stopped(c, v)
}

func TestAProcessThatIsNotTheBrokerIsNotHitByAnyGuard(t *testing.T) {
	for _, how := range []string{"its guard lets go", "the stop command's guard finds it in the pid file"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newStage(t) // its process is the stranger
			file := filepath.Join(s.dir, "wrong.pid")
			if err := os.WriteFile(file, fmt.Append(nil, s.broker.Process.Pid), 0o600); err != nil {
				t.Fatal(err)
			}
			b, find := Broker{PIDFile: file}, s.finds()
			if how != "its guard lets go" {
				b.StopCommand = "false"
				find = func() (process.Target, bool) { return process.Target{}, false }
			}
			c, _ := s.client(b, find)
			s.await("a guard", func() bool { return s.guard() != 0 })
			c.Shun(s.target())
			c.Arm(validFor(2 * time.Second))
			time.Sleep(3 * time.Second) // past the deadline: this long nothing may happen
			c.Goodbye()
			if s.ended() {
				t.Error("the stranger was stopped")
			}
		})
	}
}
