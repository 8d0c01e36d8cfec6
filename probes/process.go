package probes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// lookupFile and lookupName are the pauses between two looks for the process: by
	// pid file, which costs one small read, and by name, which walks /proc.
	lookupFile = 250 * time.Millisecond
	lookupName = time.Second
	// relook is the pause between two looks at the pid file while its process lives.
	relook = time.Second
	// pollGone is the pause between two looks at a process without a pidfd.
	pollGone = 100 * time.Millisecond
)

// ProcessView is the watched process.
type ProcessView struct {
	Pid        int       // 0: none found
	Name       string    // as the kernel calls it, at most 15 bytes
	StartTicks uint64    // since boot, in clock ticks: with the pid, its name for as long as the host runs
	StartedAt  time.Time // wall clock; zero without a process
	LastError  string    // why none was found
}

// ErrNoProcess is wrapped by FindProcess and ReadProcess when they could look and
// saw that no such process runs. Any other error means that nobody knows.
var ErrNoProcess = errors.New("no such process")

// ErrNeverBroker is wrapped by FindProcess when what it was led to can be no broker:
// the first process of the host or container, or one of Holdfast's own.
var ErrNeverBroker = errors.New("not the broker")

// neverBroker is an ErrNeverBroker in its own words.
type neverBroker string

func (e neverBroker) Error() string        { return string(e) }
func (e neverBroker) Is(target error) bool { return target == ErrNeverBroker }

// noProcess is an ErrNoProcess in its own words.
type noProcess string

func (e noProcess) Error() string        { return string(e) }
func (e noProcess) Is(target error) bool { return target == ErrNoProcess }

// Process finds the broker's process and notices its end at once, by a pidfd. Where
// the kernel or a seccomp profile refuses pidfds it looks every 100 ms instead.
//
// A pid that the kernel has given to another process is not taken for the broker:
// the start time is compared, and with a pid file, the file must not be older than
// the process. Not guaranteed: that a process is noticed which starts and ends
// between two looks (250 ms with a pid file, 1 s by name). A pid file that names another
// process while the old one lives is noticed within 1 s.
type Process struct {
	pidFile, name string
	expected      found // by an earlier watch; zero: none
	log           *slog.Logger
	lost          chan struct{}
	changes       chan struct{}
	view          atomic.Pointer[ProcessView]
	held          atomic.Pointer[hold]

	// openPidfd is unix.PidfdOpen, so that tests can refuse it.
	openPidfd func(pid, flags int) (int, error)
}

// NewProcess prepares the watch of one process, found by pidFile, by name, or by
// both: then the process in the pid file must have the name.
func NewProcess(pidFile, name string, log *slog.Logger) *Process {
	p := &Process{
		pidFile: pidFile, name: name, log: log,
		lost: make(chan struct{}, 1), changes: make(chan struct{}, 1),
		openPidfd: unix.PidfdOpen,
	}
	p.view.Store(&ProcessView{})
	return p
}

// Expect says which process was found to be the one before this watch began. It is called
// before Run.
func (p *Process) Expect(pid int, startTicks uint64) {
	p.expected = known(pid, startTicks)
}

// Lost receives a value when the watched process has ended, or when the pid file
// names another one. It has room for one value.
func (p *Process) Lost() <-chan struct{} { return p.lost }

// Changes receives a value after the view changed.
func (p *Process) Changes() <-chan struct{} { return p.changes }

// Snapshot is the process as last seen.
func (p *Process) Snapshot() ProcessView { return *p.view.Load() }

// Pid is the watched process; 0 when there is none.
func (p *Process) Pid() int { return p.Snapshot().Pid }

// StartedAt is when the watched process started, on the wall clock as it was set
// when the process was found; zero when there is none.
func (p *Process) StartedAt() time.Time { return p.Snapshot().StartedAt }

// hold is a process by its pidfd.
type hold struct {
	found
	conn syscall.RawConn
}

// Lives reports whether that process is watched and has not ended. It is one system call,
// where a look at /proc is a dozen times as dear. False says nothing: nobody may be watched.
func (p *Process) Lives(pid int, startTicks uint64) bool {
	h := p.held.Load()
	if h == nil || h.PID != pid || h.Starttime != startTicks {
		return false
	}
	over := true
	err := h.conn.Control(func(fd uintptr) { over = isOver(fd) })
	return err == nil && !over
}

// Run watches until ctx ends and then returns nil.
func (p *Process) Run(ctx context.Context) error {
	var last found
	for ctx.Err() == nil {
		next, err := p.find(last)
		if err != nil {
			p.publish(ProcessView{LastError: err.Error()})
			select {
			case <-ctx.Done():
			case <-time.After(p.lookup()):
			}
			continue
		}
		last = next
		p.publish(next.view())
		if why := p.await(ctx, next); why != "" {
			signal(p.lost) // first: readiness hangs on it
			p.publish(ProcessView{LastError: why})
		}
	}
	return nil
}

func (p *Process) lookup() time.Duration {
	if p.pidFile != "" {
		return lookupFile
	}
	return lookupName
}

// await says why the process is not the broker any more, once it is not. It returns
// an empty string when ctx ended.
func (p *Process) await(ctx context.Context, f found) string {
	gone := fmt.Sprintf("process %d has ended", f.PID)
	ended, conn, stop, err := p.watchEnd(f.PID)
	pause := relook
	switch {
	case err == nil:
		defer stop()
	case errors.Is(err, unix.ESRCH):
		return gone
	default: // no pidfds here (ENOSYS, EPERM), or none left (EMFILE)
		p.log.Warn("no pidfd: looking at the broker process every 100 ms instead", "pid", f.PID, "error", err)
		pause = pollGone
	}
	// The pid may have been recycled before the pidfd was opened.
	if !f.alive() {
		return gone
	}
	if ended != nil {
		p.held.Store(&hold{f, conn})
		defer p.held.Store(nil)
	}
	look := time.NewTicker(pause)
	defer look.Stop()
	if ended != nil && p.pidFile == "" {
		look.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return ""
		case <-ended:
			return gone
		case <-look.C:
		}
		if ended == nil && !f.alive() {
			return gone
		}
		if p.pidFile == "" {
			continue
		}
		if pid, _, err := readPid(p.pidFile); err == nil && pid != f.PID {
			if other, err := p.find(f); err == nil && other.PID != f.PID {
				return fmt.Sprintf("the pid file names %d now, and no longer %d", other.PID, f.PID)
			}
		}
	}
}

// watchEnd returns what is closed when the process ends. No thread waits for it.
func (p *Process) watchEnd(pid int) (ended <-chan struct{}, conn syscall.RawConn, stop func(), err error) {
	fd, err := p.openPidfd(pid, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	_ = unix.SetNonblock(fd, true) // else it is not given to epoll, and the next says so
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	conn, err = pidfd.SyscallConn()
	if err == nil {
		err = pidfd.SetReadDeadline(time.Time{})
	}
	if err != nil {
		pidfd.Close()
		return nil, nil, nil, err
	}
	over, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		if err := conn.Read(isOver); err == nil { // else the descriptor was closed
			close(over)
		}
	}()
	return over, conn, func() { pidfd.Close(); <-left }, nil
}

// isOver reports whether the process of a pidfd has ended.
func isOver(pidfd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents != 0
}

func (p *Process) publish(v ProcessView) {
	old := p.Snapshot()
	if old == v {
		return
	}
	p.view.Store(&v)
	switch {
	case v.Pid != 0:
		p.log.Info("watching the broker process", "pid", v.Pid, "started_at", v.StartedAt)
	case old.Pid != 0:
		p.log.Info("broker process gone", "pid", old.Pid)
	default:
		p.log.Warn("broker process not found", "error", v.LastError)
	}
	signal(p.changes)
}

// find looks for the process. previous is the one that was watched last.
func (p *Process) find(previous found) (found, error) {
	expected := previous
	if expected.PID == 0 {
		expected = p.expected
	}
	f, err := findProcess(p.pidFile, p.name, expected)
	if err != nil {
		return found{}, err
	}
	// The file still names the pid of the process that ended, and somebody else has it.
	if p.pidFile != "" && f.PID == previous.PID && f.Starttime != previous.Starttime && f.written.Equal(previous.written) {
		return found{}, fmt.Errorf("pid file %s still names %d, which is another process by now", p.pidFile, f.PID)
	}
	return f, nil
}

// FindProcess looks once for the process that NewProcess would watch, for a check of
// the settings. The error names what was looked for and what to set.
func FindProcess(pidFile, name string) (ProcessView, error) {
	return FindKnown(pidFile, name, 0, 0)
}

// FindKnown is FindProcess where a process is known to have been the right one: a pid
// file that names it is believed, however the wall clock was set since.
func FindKnown(pidFile, name string, pid int, startTicks uint64) (ProcessView, error) {
	f, err := findProcess(pidFile, name, known(pid, startTicks))
	if err != nil {
		return ProcessView{LastError: err.Error()}, err
	}
	return f.view(), nil
}

// ReadProcess reads who has the pid now. A zombie has it no more.
func ReadProcess(pid int) (ProcessView, error) {
	f, err := readProcess(pid)
	if errors.Is(err, os.ErrNotExist) {
		err = noProcess(fmt.Sprintf("no process has the id %d", pid))
	}
	if err != nil {
		return ProcessView{LastError: err.Error()}, err
	}
	return f.view(), nil
}

// guardName is what a dead-man guard calls itself.
const guardName = "holdfast-guard"

func findProcess(pidFile, name string, expected found) (found, error) {
	where := fmt.Sprintf("--broker-process %q", name)
	look := func() (found, error) { return findByName(name) }
	if pidFile != "" {
		where = "pid file " + pidFile
		look = func() (found, error) { return findByFile(pidFile, name, expected) }
	}
	f, err := look()
	remedy := "does the broker have another pid namespace? share it, or set --stop-command"
	switch {
	case err != nil:
		return f, err
	case f.PID == 1:
		// The kernel does not let it be killed from inside of its own pid namespace.
		return found{}, neverBroker(fmt.Sprintf("%s leads to process 1 (%s), which is never signaled: %s", where, f.Comm, remedy))
	case f.PID == os.Getpid() || f.Comm == guardName:
		return found{}, neverBroker(fmt.Sprintf("%s leads to holdfast itself (process %d): %s", where, f.PID, remedy))
	}
	return f, nil
}

func findByFile(pidFile, name string, expected found) (found, error) {
	pid, written, err := readPid(pidFile)
	if err != nil {
		return found{}, err
	}
	f, err := readProcess(pid)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return found{}, noProcess(fmt.Sprintf("pid file %s names %d: no such process", pidFile, pid))
	case err != nil:
		return found{}, fmt.Errorf("pid file %s names %d: %w", pidFile, pid, err)
	}
	f.written = written
	if p, err := procfs.NewProc(pid); name != "" && (err != nil || !named(p, name)) {
		return found{}, noProcess(fmt.Sprintf("pid file %s names %d, which is %q and not %q", pidFile, pid, f.Comm, name))
	}
	// Both are read on the wall clock of today, which may have been set since.
	if late := f.startedAt.Sub(written); name == "" && late > pidFileSlack && !f.is(expected) {
		return found{}, fmt.Errorf("pid file %s is %v older than process %d: the pid is another process's, or the clock was set: set --broker-process as well",
			pidFile, late.Round(time.Second), pid)
	}
	return f, nil
}
