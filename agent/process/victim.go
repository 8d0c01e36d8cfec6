package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

// signalGroup is PIDFD_SIGNAL_PROCESS_GROUP of Linux 6.9.
const signalGroup = 1 << 2

// finder is os.FindProcess: a hold on the process by a pidfd, where there are any.
type finder func(pid int) (*os.Process, error)

// victim is a process that has to end, with its process group if it leads one that
// Holdfast made. Its pid cannot become another's under it where there are pidfds.
type victim struct {
	Target
	group bool
	find  finder
	proc  *os.Process // nil: it has ended
}

// grab takes hold of the victim. One that has ended is no error. The caller must close it.
func (find finder) grab(t Target, group bool) (*victim, error) {
	v := &victim{Target: t, group: group, find: find}
	proc, err := find(t.Pid)
	if err != nil {
		return v, err
	}
	// The pid may have been recycled before that.
	now, err := TargetOf(t.Pid)
	if err == nil && now == t {
		v.proc = proc
		return v, nil
	}
	_ = proc.Release()
	if errors.Is(err, probes.ErrNoProcess) {
		err = nil
	}
	return v, err
}

// Signal signals a process, and never another that has its pid by now. What has ended is no error.
func Signal(t Target, sig syscall.Signal) error {
	v, err := finder(os.FindProcess).grab(t, false)
	if err != nil {
		return err
	}
	defer v.close()
	return v.send(sig)
}

func (v *victim) close() {
	if v.proc != nil {
		_ = v.proc.Release()
	}
}

// over reports whether the process has ended, and waits for that at most so long.
func (v *victim) over(bound time.Duration) bool {
	if v.proc == nil {
		return true
	}
	var fds [1]unix.PollFd
	if err := v.proc.WithHandle(func(pidfd uintptr) {
		fds[0] = unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN}
		_, _ = unix.Poll(fds[:], int(bound/time.Millisecond)) // woken or not, the caller looks
	}); err != nil {
		time.Sleep(bound)
		return v.Gone()
	}
	return fds[0].Revents&unix.POLLIN != 0
}

// gone is true when the process has ended and its group is empty.
func (v *victim) gone() bool {
	if !v.over(0) {
		return false
	}
	members, err := v.members()
	return err == nil && len(members) == 0
}

// await waits for the end of the process, at most for the bound.
func (v *victim) await(bound time.Duration) {
	if v.over(0) {
		time.Sleep(bound) // for the rest of its group
	} else {
		v.over(bound)
	}
}

// members lists the group, if it is one that has to end.
func (v *victim) members() ([]probes.ProcessView, error) {
	if !v.group {
		return nil, nil
	}
	return group(v.Target)
}

// send signals the process, and its group. What has ended is no error.
func (v *victim) send(sig syscall.Signal) error {
	var err error
	if !v.over(0) {
		if v.group && v.sendGroup(sig) {
			return nil
		}
		if err = v.proc.Signal(sig); errors.Is(err, os.ErrProcessDone) {
			err = nil
		} else if err != nil {
			err = fmt.Errorf("signal %s: %w", v.Target, err)
		}
	}
	members, unseen := v.members()
	err = errors.Join(err, unseen)
	for _, m := range members {
		one, hidden := v.find.grab(m.Target, false)
		if hidden == nil && m.Target != v.Target { // ended or not to be read: if it lives, gone finds it again
			err = errors.Join(err, one.send(sig))
		}
		one.close()
	}
	return err
}

// sendGroup signals the group that the process leads, and reports whether the kernel could do
// that in one step.
func (v *victim) sendGroup(sig syscall.Signal) (sent bool) {
	err := v.proc.WithHandle(func(pidfd uintptr) {
		sent = unix.PidfdSendSignal(int(pidfd), sig, nil, signalGroup) == nil
	})
	return err == nil && sent
}
