package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

// errGone says that a process has ended. It is internal: to a Stopper it is success.
var errGone = errors.New("the process has ended")

// signalGroup is PIDFD_SIGNAL_PROCESS_GROUP of Linux 6.9.
const signalGroup = 1 << 2

// Target is one process, told from a later one with the same pid by its start. Only
// targets of the same boot of the host can be compared.
type Target struct {
	Pid        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`
}

func (t Target) String() string { return fmt.Sprintf("process %d", t.Pid) }

// TargetOf is the process that has the pid now. The error wraps probes.ErrNoProcess
// when there is none.
func TargetOf(pid int) (Target, error) {
	v, err := probes.ReadProcess(pid)
	if err != nil {
		return Target{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return Target{v.Pid, v.StartTicks}, nil
}

// Gone is true when the process is proven to have ended. A zombie has.
func (t Target) Gone() bool {
	v, err := probes.ReadProcess(t.Pid)
	if err != nil {
		return errors.Is(err, probes.ErrNoProcess) // not to be read is not to be gone
	}
	return v.StartTicks != t.StartTicks
}

// Stopped is true while the process does not run because a signal has stopped it.
func (t Target) Stopped() bool { return !t.Gone() && probes.StoppedBySignal(t.Pid) }

// kernel is what a handle asks of it, so that tests can refuse.
type kernel struct {
	open   func(pid, flags int) (int, error)
	signal func(pidfd int, sig unix.Signal, info *unix.Siginfo, flags int) error
}

var linux = kernel{open: unix.PidfdOpen, signal: unix.PidfdSendSignal}

// handle is a hold on a process: the pid cannot become another process's under it.
type handle struct {
	Target
	kernel kernel
	fd     int // negative: pidfds are refused here
}

// grab opens t. It returns errGone when t has ended; the caller must close the handle.
func (k kernel) grab(t Target) (*handle, error) {
	fd, err := k.open(t.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errGone
	}
	h := &handle{Target: t, kernel: k, fd: fd}
	if err != nil {
		h.fd = -1
	}
	// The pid may have been recycled before the pidfd was opened.
	now, err := TargetOf(t.Pid)
	switch {
	case errors.Is(err, probes.ErrNoProcess), err == nil && now != t:
		h.close()
		return nil, errGone
	case err != nil:
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *handle) close() {
	if h.fd >= 0 {
		unix.Close(h.fd)
	}
}

// gone is true when the process is proven to have ended.
func (h *handle) gone() bool {
	if h.fd < 0 {
		return h.Gone()
	}
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}

// await waits for the end of the process, at most for the bound.
func (h *handle) await(bound time.Duration) {
	if h.fd < 0 {
		time.Sleep(bound)
		return
	}
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, int(max(bound/time.Millisecond, 1))) // woken or not, the caller looks
}

// send signals the process, and only it. A process that has ended is no error.
func (h *handle) send(sig unix.Signal) error {
	err := unix.ENOSYS
	if h.fd >= 0 {
		err = errno(h.kernel.signal(h.fd, sig, nil, 0))
	}
	if err == unix.ENOSYS || err == unix.EPERM { // a seccomp profile answers EPERM
		if h.Gone() {
			return nil
		}
		err = errno(unix.Kill(h.Pid, sig))
	}
	if err != 0 && err != unix.ESRCH {
		return fmt.Errorf("signal %s: %w", h.Target, err)
	}
	return nil
}

// sendGroup signals the process group that the process leads, and reports whether
// the kernel could do that in one step.
func (h *handle) sendGroup(sig unix.Signal) bool {
	return h.fd >= 0 && h.kernel.signal(h.fd, sig, nil, signalGroup) == nil
}

func errno(err error) unix.Errno {
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	return 0
}
