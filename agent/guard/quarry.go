package guard

import (
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// ticksPerSecond is the unit of times in /proc: USER_HZ, 100 on every Linux.
const ticksPerSecond = 100

// quarry is the process that a guard holds, by a pidfd where the kernel gives one.
type quarry struct {
	post
	fd   int  // negative: none, or it has become readable; never waited on again
	over bool // it has ended, and its group
}

// watch opens the process; the zero Target is none.
func watch(p post) *quarry {
	q := &quarry{post: p, fd: -1}
	if !q.known() {
		return q
	}
	if fd, err := unix.PidfdOpen(p.Target.Pid, 0); err == nil {
		q.fd = fd // of a later process, perhaps, until its start is compared
	}
	if p.Target.Gone() {
		q.close()
	}
	return q
}

func (q *quarry) close() {
	if q.fd >= 0 {
		unix.Close(q.fd)
		q.fd = -1
	}
}

func (q *quarry) known() bool { return q.Target.Pid != 0 }

// born is when the process had started for certain; 0: there is none.
func (q *quarry) born() lease.Instant {
	if !q.known() {
		return 0
	}
	return born(q.Target)
}

// born is the end of the clock tick in which the process started: by its beginning, one that was
// started again right after the moment would be taken for one that was meant.
func born(t process.Target) lease.Instant {
	return lease.Instant(t.StartTicks+1) * lease.Instant(time.Second/ticksPerSecond)
}

// gone reports whether there is nothing to stop: the process has ended, and its group, or
// there is neither a process nor a command.
func (q *quarry) gone() bool {
	switch {
	case !q.known():
		return q.Broker.StopCommand == ""
	case q.over:
		return true
	case q.fd >= 0 && !readable(q.fd):
		return false
	}
	q.close() // from here on it would wake every wait
	q.over = q.Broker.gone(q.Target)
	return q.over
}

// unwatched reports whether nothing tells when it ends.
func (q *quarry) unwatched() bool { return q.known() && !q.over && q.fd < 0 }

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
