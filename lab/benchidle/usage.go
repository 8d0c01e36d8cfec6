package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a process has used since it began.
type usage struct {
	at       time.Time
	cpu      time.Duration
	switches map[string]int64 // of each thread: times that it was switched out
}

// look reads the usage of a process.
func look(pid int) (usage, error) {
	u := usage{switches: map[string]int64{}}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		return usage{}, fmt.Errorf("process %d has no threads: it ended", pid)
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}
		for line := range strings.Lines(string(b)) {
			if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "_ctxt_switches") {
				n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				if err != nil {
					return usage{}, fmt.Errorf("read %s: %w", path, err)
				}
				u.switches[path] += n
			}
		}
	}
	// The clock of another process's processor time, in nanoseconds and of threads that
	// ended, too; /proc counts in hundredths of a second. See clock_getcpuclockid(3).
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return usage{}, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	u.at, u.cpu = time.Now(), time.Duration(ts.Nano())
	return u, nil
}

// rate is what a process uses in a second.
type rate struct {
	percent  float64 // of one core
	switches float64
}

func (u usage) since(earlier usage) rate {
	seconds := u.at.Sub(earlier.at).Seconds()
	r := rate{percent: 100 * (u.cpu - earlier.cpu).Seconds() / seconds}
	for thread, n := range u.switches {
		r.switches += float64(n-earlier.switches[thread]) / seconds
	}
	return r
}

func (r rate) plus(o rate) rate { return rate{r.percent + o.percent, r.switches + o.switches} }
