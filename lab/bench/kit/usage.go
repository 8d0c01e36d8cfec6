package kit

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Usage is what a process has used since it began.
type Usage struct {
	at             time.Time
	cpu            time.Duration
	switches       map[int]uint64 // of each thread: times that it was switched out
	Resident, Most uint64         // bytes of memory that it has, and had at its highest
}

// Look reads the usage of a process.
func Look(pid int) (u Usage, err error) {
	fail := func(err error) (Usage, error) { return Usage{}, fmt.Errorf("look at process %d: %w", pid, err) }
	p, err := procfs.NewProc(pid)
	if err != nil {
		return fail(err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return fail(err)
	}
	u = Usage{switches: map[int]uint64{}, Resident: status.VmRSS, Most: status.VmHWM}
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return fail(err)
	}
	for _, t := range threads {
		if s, err := t.NewStatus(); err == nil { // else it ended
			u.switches[t.PID] = s.VoluntaryCtxtSwitches + s.NonVoluntaryCtxtSwitches
		}
	}
	// The clock of another process's processor time, in nanoseconds and of threads that
	// ended, too; /proc counts in hundredths of a second. See clock_getcpuclockid(3).
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return fail(err)
	}
	u.at, u.cpu = time.Now(), time.Duration(ts.Nano())
	return u, nil
}

// Rate is what a process uses in a second.
type Rate struct {
	Percent  float64 // of one core
	Switches float64
}

// Since is the rate between two looks.
func (u Usage) Since(earlier Usage) Rate {
	seconds := u.at.Sub(earlier.at).Seconds()
	r := Rate{Percent: 100 * (u.cpu - earlier.cpu).Seconds() / seconds}
	for thread, n := range u.switches {
		r.Switches += float64(n-earlier.switches[thread]) / seconds
	}
	return r
}

// Plus is both together.
func (r Rate) Plus(o Rate) Rate { return Rate{r.Percent + o.Percent, r.Switches + o.Switches} }
