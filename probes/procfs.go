package probes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// ticksPerSecond is the unit of times in /proc: USER_HZ, 100 on every Linux.
	ticksPerSecond = 100
	// pidFileSlack is by how much a process may seem to have started after its pid
	// file was written: clock ticks, coarse file times, a clock that is being slewed.
	pidFileSlack = 5 * time.Second
	// pollGone is the pause between two looks at a process without a pidfd.
	pollGone = 100 * time.Millisecond
	// guardName is what a dead-man guard calls itself.
	guardName = "holdfast-guard"
)

// ErrNoProcess is wrapped by errors that say that no such process runs. Any other error
// means that nobody knows. ErrNeverBroker is wrapped when what was found can be no broker:
// the first process of the host or container, or one of Holdfast's own.
var (
	ErrNoProcess   = errors.New("no such process")
	ErrNeverBroker = errors.New("not the broker")
)

// Target is one process, told from a later one with the same pid by its start. Only
// targets of the same boot of the host can be compared.
type Target struct {
	Pid        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"` // since boot, in clock ticks
}

func (t Target) String() string { return fmt.Sprintf("process %d", t.Pid) }

// awaited has the pidfd of each process whose end is awaited, a syscall.RawConn by its Target.
var awaited sync.Map

// Gone is true when the process is proven to have ended. A zombie has. To see that one lives
// whose end is awaited takes one system call.
func (t Target) Gone() bool {
	if pidfd, ok := awaited.Load(t); ok {
		lives := false
		err := pidfd.(syscall.RawConn).Control(func(fd uintptr) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			lives = n == 0 && err == nil
		})
		if err == nil && lives {
			return false
		}
	}
	v, err := ReadProcess(t.Pid)
	if err != nil {
		return errors.Is(err, ErrNoProcess) // not to be read is not to be gone
	}
	return v.Target != t
}

// Stopped is true while the process does not run because a signal has stopped it.
func (t Target) Stopped() bool {
	v, err := ReadProcess(t.Pid)
	return err == nil && v.Target == t && v.Stopped
}

// pidfdOpen is unix.PidfdOpen, so that tests can refuse it.
var pidfdOpen = unix.PidfdOpen

// AwaitEnd waits for the end of the process; false: ctx ended first. No thread waits. Where
// there are no pidfds (an old kernel, a seccomp profile) or none are left, it looks every 100 ms.
func (t Target) AwaitEnd(ctx context.Context) bool {
	if fd, err := pidfdOpen(t.Pid, 0); err == nil {
		_ = unix.SetNonblock(fd, true) // else it is not given to epoll, and Read says so
		pidfd := os.NewFile(uintptr(fd), "pidfd")
		defer pidfd.Close()
		defer context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })()
		conn, err := pidfd.SyscallConn()
		if err == nil && !t.Gone() { // it may have been recycled before the pidfd was opened
			awaited.Store(t, conn)
			defer awaited.Delete(t)
			err = conn.Read(func(fd uintptr) bool {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				_, err := unix.Poll(fds, 0)
				return err == nil && fds[0].Revents != 0
			})
			if err == nil {
				return true
			}
		}
	}
	for ; ctx.Err() == nil; Sleep(ctx, pollGone) {
		if t.Gone() {
			return true
		}
	}
	return false
}

// Sleep waits for so long, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// ProcessView is a process as it was seen.
type ProcessView struct {
	Target              // zero: none found
	Name      string    // as the kernel calls it, at most 15 bytes
	StartedAt time.Time // wall clock; zero without a process
	Parent    int
	Group     int       // the process that leads or led its process group
	Ended     bool      // what is left is a zombie
	Stopped   bool      // by SIGSTOP or a debugger
	LastError string    // why none was found
	written   time.Time // the pid file that named it
}

// view reads a process, zombies too. The state is the first thread's. One that ended alone is a
// zombie as well, and the others may serve; it counts among the threads until the last of them
// has ended. It is read by hand, for it is read several times a second for as long as the sidecar
// lives: procfs takes five times as long for all fields.
func view(pid int) (ProcessView, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/stat", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ProcessView{}, err
	}
	defer unix.Close(fd)
	var line [512]byte // what is used of it fits, however large its numbers are
	n, err := unix.Read(fd, line[:])
	if err != nil {
		return ProcessView{}, err
	}
	_, text, _ := strings.Cut(string(line[:n]), "(")
	end := strings.LastIndexByte(text, ')') // a name may have one, too
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 20 {
		return ProcessView{}, fmt.Errorf("its stat is %q", text)
	}
	field := func(i int) (n int64) { // as proc_pid_stat(5) counts them
		n, bad := strconv.ParseInt(fields[i-3], 10, 64)
		err = errors.Join(err, bad)
		return n
	}
	v := ProcessView{Target: Target{pid, uint64(field(22))}, Name: text[:end], Parent: int(field(4)), Group: int(field(5))}
	v.Ended = fields[0] == "X" || fields[0] == "Z" && field(20) <= 1
	v.Stopped = strings.EqualFold(fields[0], "T")
	var boot unix.Timespec // suspended time included, as /proc counts it
	if err := errors.Join(err, unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)); err != nil {
		return ProcessView{}, err
	}
	started := time.Duration(v.StartTicks) * (time.Second / ticksPerSecond)
	v.StartedAt = time.Now().Add(started - time.Duration(boot.Nano())).Round(0) // a past moment has no monotonic reading
	return v, nil
}

// ReadProcess reads who has the pid now. A zombie has it no more.
func ReadProcess(pid int) (ProcessView, error) {
	v, err := view(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH), v.Ended: // it may end between open and read
		return ProcessView{}, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	case err != nil:
		return ProcessView{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return v, nil
}

// Processes lists those that are wanted, zombies too. What cannot be read has ended or is
// hidden from us.
func Processes(want func(ProcessView) bool) (wanted []ProcessView, err error) {
	all, err := procfs.AllProcs()
	for _, p := range all {
		if v, err := view(p.PID); err == nil && want(v) {
			wanted = append(wanted, v)
		}
	}
	return wanted, err
}

// neverBroker says that a process can be no broker; nil: it can.
func neverBroker(where string, v ProcessView) error {
	// The first process of a pid namespace cannot be killed from inside of it.
	if v.Pid != 1 && v.Pid != os.Getpid() && v.Name != guardName {
		return nil
	}
	return fmt.Errorf("%s leads to process %d (%s), which is never signaled: %w: "+
		"does the broker have another pid namespace? share it, or set --stop-command", where, v.Pid, v.Name, ErrNeverBroker)
}

// findByFile finds the process in a pid file. One that names known, which is known to have been the right
// one, is believed however the wall clock was set since.
func findByFile(pidFile, name string, known Target) (ProcessView, error) {
	pid, written, err := readPid(pidFile)
	if err != nil {
		return ProcessView{}, err
	}
	v, err := ReadProcess(pid)
	v.written = written
	switch late := v.StartedAt.Sub(written); {
	case err != nil:
		err = fmt.Errorf("pid file %s names %w", pidFile, err)
	case name != "" && !named(pid, name):
		err = fmt.Errorf("pid file %s names %d, which is %q and not %q: %w", pidFile, pid, v.Name, name, ErrNoProcess)
	case name == "" && late > pidFileSlack && v.Target != known:
		// Both are read on the wall clock of today, which may have been set since.
		err = fmt.Errorf("pid file %s is %v older than process %d: the pid is another process's, or the clock was set: set --broker-process as well",
			pidFile, late.Round(time.Second), pid)
	}
	return v, err
}

// readPid reads a pid file, and when it was written.
func readPid(path string) (pid int, written time.Time, err error) {
	var text []byte
	info, err := os.Stat(path) // before it is read: it may be written meanwhile
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = errors.New("not a regular file") // a fifo would hold us up
	case err == nil:
		text, err = os.ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, time.Time{}, fmt.Errorf("read the pid file %s: %w: start the broker, and have it write one there, or set --broker-pid-file to the one that it writes", path, err)
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the pid file %s: %w", path, err)
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 1 {
		return 0, time.Time{}, fmt.Errorf("pid file %s: %.64q is not a process id", path, oneLine(string(text)))
	}
	return pid, info.ModTime(), nil
}

// named compares with the kernel's name of a process, of at most 15 bytes, and with the
// last part of argv[0].
func named(pid int, name string) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	if comm, err := p.Comm(); err == nil && comm == name {
		return true
	}
	args, err := p.CmdLine()
	return err == nil && len(args) > 0 && args[0] != "" && filepath.Base(args[0]) == name
}
