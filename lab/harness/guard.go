package harness

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Guard is a sidecar's dead-man guard, as it is seen from outside.
type Guard struct {
	PID      int
	Deadline time.Time // of the lease, by the sidecar's last word; zero: it gave none
	Armed    bool
	Beat     time.Time // when the sidecar's loop last ran
}

// The page that sidecar and guard share, which /proc shows as the guard's descriptor.
const (
	guardPageFD   = 3
	guardStopAt   = 8 // offsets, in the machine's byte order, nanoseconds of the boot clock
	guardDeadline = 24
	guardBeat     = 48
	guardPageSize = 56
)

// Guard looks for the guard of the sidecar's state directory; false: there is none.
func (s *Sidecar) Guard() (Guard, bool) {
	b, err := os.ReadFile(filepath.Join(s.StateDir, "guard.lock"))
	if err != nil {
		return Guard{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return Guard{}, false
	}
	page, err := readPage(fmt.Sprintf("/proc/%d/fd/%d", pid, guardPageFD))
	if err != nil {
		return Guard{}, false // it ended; another process's descriptor is no page
	}
	g := Guard{PID: pid, Armed: binary.NativeEndian.Uint64(page[guardStopAt:]) != 0}
	if d := binary.NativeEndian.Uint64(page[guardDeadline:]); d != 0 {
		g.Deadline = fromBootClock(time.Duration(d))
	}
	g.Beat = fromBootClock(time.Duration(binary.NativeEndian.Uint64(page[guardBeat:])))
	return g, true
}

func readPage(path string) ([]byte, error) {
	link, err := os.Readlink(path)
	if err != nil || !strings.Contains(link, "holdfast-guard") {
		return nil, fmt.Errorf("%s is no page of a guard: %q, %w", path, link, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	page := make([]byte, guardPageSize)
	_, err = f.ReadAt(page, 0)
	return page, err
}

// fromBootClock is the moment on the wall clock.
func fromBootClock(at time.Duration) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}
	}
	return time.Now().Add(at - time.Duration(ts.Nano()))
}

// PrivateMemory is what a process has in memory for itself alone, in bytes: what would
// be free if it ended.
func PrivateMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	var sum int64
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if name == "Private_Clean" || name == "Private_Dirty" {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read memory of process %d: %w", pid, err)
			}
			sum += kb << 10
		}
	}
	return sum, nil
}
