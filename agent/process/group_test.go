package process

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

func init() {
	roles["headless"] = headless
	if os.Getenv(roleVar) == "headless" {
		runtime.LockOSThread() // in an init: the first thread
	}
}

// headless ends its first thread, as pthread_exit in main does, and goes on.
func headless() {
	go func() {
		ready()
		await(syscall.SIGTERM)
		exit(0)
	}()
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

func TestAProcessWhoseFirstThreadHasEndedIsAliveAndIsStopped(t *testing.T) {
	b, _ := broker(t, "headless")
	pid := b.Process.Pid
	here := target(t, pid)
	eventually(t, "its first thread has ended", func() bool {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err == nil && strings.Contains(string(raw), ") Z ")
	})
	if _, err := probes.ReadProcess(pid); err != nil || here.Gone() || GroupGone(here) {
		t.Errorf("gone: %t, with its group: %t, %v", here.Gone(), GroupGone(here), err)
	}
	if in, err := group(here); err != nil || len(in) != 1 {
		t.Errorf("its group is %v, %v", in, err)
	}
	for name, s := range map[string]Settings{"by pid file": {PIDFile: pidFile(t, pid)}, "as a child": {Child: childOf(here)}} {
		if hit, ok := stopper(t, s).Target(); !ok || hit != here {
			t.Errorf("%s: would hit %v, %t", name, hit, ok)
		}
	}
	how, _, err := stop(t, stopper(t, Settings{PIDFile: pidFile(t, pid)}), 2*time.Second)
	if err != nil || how != HowTerm || !here.Gone() {
		t.Errorf("%s, %v; gone: %t", how, err, here.Gone())
	}
}

// Patroni took its watchdog off when the leader had ended and backends served on (its issue
// 3639), and left it on when there never was a backend (3723).
func TestAGroupIsGoneWhenTheLeaderAndTheLastMemberAre(t *testing.T) {
	b, member := broker(t, "parent")
	leader, left := target(t, b.Process.Pid), target(t, member)
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = b.Process.Wait()
	if !leader.Gone() || GroupGone(leader) {
		t.Fatalf("the leader is gone: %t, its group: %t", leader.Gone(), GroupGone(leader))
	}
	s := stopper(t, Settings{Child: childOf(leader)})
	if hit, ok := s.Target(); !ok || hit != leader {
		t.Errorf("would hit %v, %t", hit, ok)
	}
	if how, _, err := stop(t, s, time.Second); err != nil || how != HowKill || !left.Gone() || !GroupGone(leader) {
		t.Errorf("%s, %v; gone: %t, the group: %t", how, err, left.Gone(), GroupGone(leader))
	}
	if how, _, err := stop(t, s, time.Second); err != nil || how != HowGone {
		t.Errorf("an empty group: %s, %v", how, err)
	}
}

func TestTheGroupOfAChildWhoseLeaderEndedIsFoundAndStoppedBeforeTheNextStart(t *testing.T) {
	dir := t.TempDir()
	path, ready := filepath.Join(dir, "child.json"), filepath.Join(dir, "ready")
	b, member := broker(t, "parent")
	leader, left := target(t, b.Process.Pid), target(t, member)
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := (record{BootID: boot, Mark: newMark(), Target: leader}).save(path); err != nil {
		t.Fatal(err)
	}
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = b.Process.Wait()
	if found, runs, err := FindChild(path); !runs || err != nil || found != leader {
		t.Errorf("found %v, %t, %v", found, runs, err)
	}
	l := live(t, ChildSettings{Command: as("polite", "HF_TEST_READY="+ready), Record: path})
	child := l.runs(ready)
	if !left.Gone() || child == leader {
		t.Error("two brokers run")
	}
	if got := l.all(); got != "adopted ended:status_unknown started" {
		t.Error(got)
	}
}

// Reading what another process is called waits for as long as its memory map is locked.
func TestWhatIsHeldIsSignaledThoughTheSearchHangs(t *testing.T) {
	b, _ := broker(t, "polite")
	hang, end := context.WithCancel(context.Background())
	defer end()
	held := target(t, b.Process.Pid)
	s := stopper(t, Settings{PIDFile: pidFile(t, b.Process.Pid), Seen: held})
	s.lookup = func() ([]aim, error) { <-hang.Done(); return nil, nil }
	for range maxSearches + 1 {
		if _, _, err := stop(t, s, 100*time.Millisecond); err == nil {
			t.Error("proven without a look")
		}
	}
	if !held.Gone() {
		t.Error("it lives")
	}
	if n := s.searches.Load(); n != maxSearches {
		t.Errorf("%d searches hang, want at most %d", n, maxSearches)
	}
}
