package probes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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
	pid        int
	comm       string // the kernel's name, at most 15 bytes
	state      byte   // R, S, D, Z, …
	parent     int
	group      int
	threads    int
	startTicks uint64 // since boot
	startedAt  time.Time
	written    time.Time // modification time of the pid file, if there is one
}

func (f found) view() ProcessView {
	return ProcessView{Pid: f.pid, Name: f.comm, StartTicks: f.startTicks, StartedAt: f.startedAt}
}

// is tells a process from a later one with the same pid.
func (f found) is(other found) bool {
	return f.pid == other.pid && f.startTicks == other.startTicks
}

// ended is true for what is left of a process: a zombie, or less. The state is the first
// thread's. One that ended alone is a zombie as well, and the others may serve; it counts
// among the threads until the last of them has ended.
func (f found) ended() bool { return f.state == 'X' || f.state == 'Z' && f.threads <= 1 }

// alive is true while the same process has not ended. A zombie has.
func (f found) alive() bool {
	now, err := readProcess(f.pid)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) // not to be read is not to be gone
	}
	return now.startTicks == f.startTicks
}

// StoppedBySignal reports whether the process is seen to be stopped, by SIGSTOP or a
// debugger: it runs again only when it is told to.
func StoppedBySignal(pid int) bool {
	f, err := readStat(pid)
	return err == nil && (f.state == 'T' || f.state == 't')
}

// named compares with the process name and with the last part of argv[0].
func (f found) named(name string) bool {
	if f.comm == name {
		return true
	}
	cmdline, err := readBounded(filepath.Join("/proc", strconv.Itoa(f.pid), "cmdline"), 4096)
	if err != nil {
		return false
	}
	argv0, _, _ := bytes.Cut(cmdline, []byte{0})
	return len(argv0) > 0 && filepath.Base(string(argv0)) == name
}

// readProcess reads /proc/<pid>/stat. It wraps os.ErrNotExist when there is no such
// process, or only its zombie.
func readProcess(pid int) (found, error) {
	f, err := readStat(pid)
	if err != nil {
		return found{}, err
	}
	if f.ended() {
		return found{}, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	sinceBoot, err := bootClock()
	if err != nil {
		return found{}, err
	}
	started := time.Duration(f.startTicks) * (time.Second / ticksPerSecond)
	f.startedAt = time.Now().Add(started - sinceBoot).Round(0) // a past moment has no monotonic reading
	return f, nil
}

// readStat is readProcess for zombies too, and without the wall clock.
func readStat(pid int) (found, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := readBounded(path, 1024)
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist // it ended between open and read
	}
	if err != nil {
		return found{}, fmt.Errorf("read %s: %w", path, err)
	}
	f, err := parseStat(data)
	if err != nil {
		return found{}, fmt.Errorf("read %s: %w", path, err)
	}
	f.pid = pid
	return f, nil
}

// parseStat takes the line of proc(5) apart. The name is in parentheses and may hold
// any byte, parentheses and spaces too, so fields are counted from the last one.
func parseStat(data []byte) (found, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return found{}, errors.New("no process name in it")
	}
	fields := strings.Fields(string(data[end+1:]))
	const state, parent, group, threads, startTime = 0, 4 - 3, 5 - 3, 20 - 3, 22 - 3 // fields 3, 4, 5, 20 and 22 of proc(5)
	if len(fields) <= startTime || len(fields[state]) != 1 {
		return found{}, errors.New("too few fields")
	}
	ticks, err := strconv.ParseUint(fields[startTime], 10, 63)
	if err != nil {
		return found{}, fmt.Errorf("parse the start time: %w", err)
	}
	pgrp, err := strconv.Atoi(fields[group])
	if err != nil {
		return found{}, fmt.Errorf("parse the process group: %w", err)
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return found{}, fmt.Errorf("parse the parent: %w", err)
	}
	many, err := strconv.Atoi(fields[threads])
	if err != nil {
		return found{}, fmt.Errorf("parse the number of threads: %w", err)
	}
	return found{comm: string(data[open+1 : end]), state: fields[state][0], parent: ppid, group: pgrp, threads: many, startTicks: ticks}, nil
}

// bootClock is the time since boot, suspended time included, as /proc counts it.
func bootClock() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("read the boot clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// readBounded reads the beginning of a small file, which comes with one read. It is called
// each second, so it spares what an os.File costs.
func readBounded(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // a fifo must not block us
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	data := make([]byte, limit)
	for {
		n, err := unix.Read(fd, data)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		return data[:n], nil
	}
}

// readPidFile reads the pid and when the file was written.
func readPidFile(path string) (int, time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("read the pid file: %w", err)
	}
	pid, err := readPid(path)
	return pid, info.ModTime(), err
}

func readPid(path string) (int, error) {
	data, err := readBounded(path, 64)
	if err != nil {
		return 0, fmt.Errorf("read the pid file: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("pid file %s: %q is not a process id", path, oneLine(string(data)))
	}
	return pid, nil
}

// findByName walks /proc. Exactly one process must have the name.
func findByName(name string) (found, error) {
	all, err := pids()
	if err != nil {
		return found{}, fmt.Errorf("look for process %q: %w", name, err)
	}
	var match found
	var pids []string
	for _, pid := range all {
		f, err := readProcess(pid)
		if err != nil || !f.named(name) {
			continue // ended meanwhile, hidden from us, or another program
		}
		match = f
		pids = append(pids, strconv.Itoa(pid))
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

// pids lists the processes that /proc shows us.
func pids() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			list = append(list, pid)
		}
	}
	return list, nil
}
