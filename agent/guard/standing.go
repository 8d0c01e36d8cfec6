package guard

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// Standing is the guard of a state directory at one moment, as an operator sees it.
type Standing struct {
	Pid  int       // of the guard
	Dir  string    // the state directory
	At   time.Time // when it stops the broker unless a sidecar renews before; zero: it has nothing to stop, or is of another version
	Over bool      // that moment is over: it keeps the broker down
	Held int       // the process of the broker that it holds by SIGSTOP; 0: none
}

// StandingOf finds the guard that has the lock of the state directory. The file's content is no
// proof: a guard that was killed leaves its pid there. False: there is none, or it is not
// ours to see.
func StandingOf(dir string) (Standing, bool) {
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	path := filepath.Join(dir, lockFile)
	pid, err := pidIn(path)
	if err != nil || !hasLock(pid, path) {
		return Standing{}, false
	}
	s := Standing{Pid: pid, Dir: dir}
	p, err := readPage(pid)
	if err != nil {
		return s, true
	}
	if o, now := p.orders(), lease.BootClock(); o.StopAt != 0 {
		s.At, s.Over = time.Now().Add(o.StopAt.Sub(now)), o.StopAt <= now
	}
	if fired := (process.Target{Pid: int(p.fired.pid.Load()), StartTicks: p.fired.ticks.Load()}); fired.Pid != 0 && fired.Stopped() {
		s.Held = fired.Pid
	}
	return s, true
}

// Hint says how the guard is ended without a sidecar, when that is right, and what follows.
func (s Standing) Hint() string {
	goesOn := ""
	if s.Held != 0 {
		goesOn = fmt.Sprintf(" && kill -CONT %d", s.Held)
	}
	return fmt.Sprintf("only if no sidecar is to run here again: kill -KILL %d%s ends the guard, and nobody guards what the broker then serves", s.Pid, goesOn)
}

// String is what the guard does, and what ends that.
func (s Standing) String() string {
	text := fmt.Sprintf("the guard of %s, process %d, ", s.Dir, s.Pid)
	switch {
	case s.At.IsZero():
		text += "stands by"
	case s.Over:
		text += "keeps the broker down until a sidecar runs again"
	default:
		text += fmt.Sprintf("stops the broker at %s unless a sidecar renews the lease before", s.At.UTC().Format("15:04:05Z"))
	}
	return text
}

// hasLock reports whether the process has the file open and locked, as a guard has it.
func hasLock(pid int, path string) bool {
	var ours, theirs unix.Stat_t
	if unix.Stat(path, &ours) != nil || unix.Stat(descriptor(pid, lockFD), &theirs) != nil ||
		ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return false
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, lockFD))
	return err == nil && bytes.Contains(info, []byte("FLOCK"))
}

// readPage is the page of a guard as it is now.
func readPage(pid int) (*page, error) {
	if err := hasPage(pid, pageFD); err != nil {
		return nil, err
	}
	f, err := os.Open(descriptor(pid, pageFD))
	if err != nil {
		return nil, fmt.Errorf("read the page of the guard: %w", err)
	}
	defer f.Close()
	p := new(page)
	if _, err := io.ReadFull(f, unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))); err != nil {
		return nil, fmt.Errorf("read the page of the guard: %w", err)
	}
	if p.magic.Load() != pageMagic {
		return nil, errNoPage
	}
	return p, nil
}
