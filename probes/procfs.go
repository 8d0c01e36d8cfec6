package probes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	// maxNamed bounds the pids that an error lists.
	maxNamed = 5
)

// found is one process, told from a later one with the same pid by its start.
type found struct {
	procfs.ProcStat
	startedAt time.Time
	written   time.Time // modification time of the pid file, if there is one
}

// known is a process of which no more is known than which it is.
func known(pid int, startTicks uint64) found {
	return found{ProcStat: procfs.ProcStat{PID: pid, Starttime: startTicks}}
}

func (f found) view() ProcessView {
	return ProcessView{Pid: f.PID, Name: f.Comm, StartTicks: f.Starttime, StartedAt: f.startedAt}
}

// is tells a process from a later one with the same pid.
func (f found) is(other found) bool { return f.PID == other.PID && f.Starttime == other.Starttime }

// ended is true for what is left of a process: a zombie, or less. The state is the first
// thread's. One that ended alone is a zombie as well, and the others may serve; it counts
// among the threads until the last of them has ended.
func (f found) ended() bool { return f.State == "X" || f.State == "Z" && f.NumThreads <= 1 }

// alive is true while the same process has not ended. A zombie has.
func (f found) alive() bool {
	now, err := readProcess(f.PID)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // not to be read is not to be gone
	}
	return now.is(f)
}

// StoppedBySignal reports whether the process is seen to be stopped, by SIGSTOP or a
// debugger: it runs again only when it is told to.
func StoppedBySignal(pid int) bool {
	f, err := readStat(pid)
	return err == nil && strings.EqualFold(f.State, "T")
}

// named compares with the kernel's name of a process, of at most 15 bytes, and with the
// last part of argv[0].
func named(p procfs.Proc, name string) bool {
	if comm, err := p.Comm(); err == nil && comm == name {
		return true
	}
	args, err := p.CmdLine()
	return err == nil && len(args) > 0 && args[0] != "" && filepath.Base(args[0]) == name
}

// readProcess wraps fs.ErrNotExist when there is no such process, or only its zombie.
func readProcess(pid int) (found, error) {
	f, err := readStat(pid)
	if err != nil {
		return found{}, err
	}
	if f.ended() {
		return found{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	var boot unix.Timespec // suspended time included, as /proc counts it
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return found{}, fmt.Errorf("read the boot clock: %w", err)
	}
	started := time.Duration(f.Starttime) * (time.Second / ticksPerSecond)
	f.startedAt = time.Now().Add(started - time.Duration(boot.Nano())).Round(0) // a past moment has no monotonic reading
	return f, nil
}

// readStat is readProcess for zombies too, and without the wall clock.
func readStat(pid int) (found, error) {
	p, err := procfs.NewProc(pid)
	var stat procfs.ProcStat
	if err == nil {
		stat, err = p.Stat()
	}
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist // it ended between open and read
	}
	if err != nil {
		return found{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return found{ProcStat: stat}, nil
}

// readPid reads a pid file, and when it was written.
func readPid(path string) (pid int, written time.Time, err error) {
	info, err := os.Stat(path) // before it is read: it may be written meanwhile
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file") // a fifo would hold us up
	}
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the pid file %s: %w", path, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 64))
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil || pid < 1 {
		return 0, time.Time{}, fmt.Errorf("pid file %s: %q is not a process id", path, oneLine(string(text)))
	}
	return pid, info.ModTime(), nil
}

// findByName walks /proc. Exactly one process must have the name.
func findByName(name string) (found, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return found{}, fmt.Errorf("look for process %q: %w", name, err)
	}
	var match found
	var pids []string
	for _, p := range all {
		if !named(p, name) {
			continue // another program, or hidden from us
		}
		if f, err := readProcess(p.PID); err == nil { // else it ended meanwhile
			match = f
			pids = append(pids, strconv.Itoa(p.PID))
		}
	}
	switch {
	case len(pids) == 1:
		return match, nil
	case len(pids) == 0:
		return found{}, noProcess(fmt.Sprintf("no process is called %q: see --broker-process", name))
	}
	listed := strings.Join(pids[:min(len(pids), maxNamed)], ", ")
	if len(pids) > maxNamed {
		listed += ", …"
	}
	return found{}, fmt.Errorf("%d processes are called %q (%s): set --broker-pid-file", len(pids), name, listed)
}

// InGroup lists the processes of a process group. Zombies are not in it.
func InGroup(group int) ([]ProcessView, error) {
	return list("look for a process group", func(f found) bool { return f.PGRP == group && !f.ended() })
}

// GroupLeaders lists the processes that lead a process group.
func GroupLeaders() ([]ProcessView, error) {
	return list("look for process groups", func(f found) bool { return f.PGRP == f.PID && !f.ended() })
}

// ZombiesOf lists the processes that have ended and whose parent has not taken their
// status yet.
func ZombiesOf(parent int) ([]ProcessView, error) {
	return list("look for zombies", func(f found) bool { return f.PPID == parent && f.ended() })
}

// list returns the processes that are wanted, without StartedAt. What cannot be read
// has ended or is hidden from us.
func list(what string, want func(found) bool) ([]ProcessView, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var wanted []ProcessView
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && want(found{ProcStat: stat}) {
			wanted = append(wanted, found{ProcStat: stat}.view())
		}
	}
	return wanted, nil
}
