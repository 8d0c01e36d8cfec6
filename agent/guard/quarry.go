package guard

import (
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// ticksPerSecond is the unit of times in /proc: USER_HZ, 100 on every Linux.
const ticksPerSecond = 100

// quarry is the process that a guard watches, by a pidfd where the kernel gives one.
type quarry struct {
	process.Target
	fd   int  // negative: none; then it is looked at by its pid and start
	over bool // it had ended when it was to be opened
}

// watch opens the process; the zero Target is none, and never gone.
func watch(t process.Target) *quarry {
	q := &quarry{Target: t, fd: -1}
	if !q.known() {
		return q
	}
	if fd, err := unix.PidfdOpen(t.Pid, 0); err == nil {
		q.fd = fd // of a later process, perhaps, until its start is compared
	}
	if t.Gone() {
		q.close()
		q.over = true
	}
	return q
}

func (q *quarry) close() {
	if q.fd >= 0 {
		unix.Close(q.fd)
		q.fd = -1
	}
}

func (q *quarry) known() bool { return q.Pid != 0 }

// born is when the process started, to a clock tick; 0: there is none.
func (q *quarry) born() lease.Instant { return born(q.Target) }

func born(t process.Target) lease.Instant {
	return lease.Instant(t.StartTicks) * lease.Instant(time.Second/ticksPerSecond)
}

func (q *quarry) gone() bool {
	switch {
	case q.over:
		return true
	case q.fd < 0:
		return q.known() && q.Gone()
	}
	fds := []unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
