package process

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

// victim is a process that has to end, with its process group if it leads one that
// Holdfast made.
type victim struct {
	Target
	group  bool
	handle *handle // nil: the process has ended
	kernel kernel
}

// grab opens the victim. One that has ended is no error.
func (k kernel) victim(t Target, group bool) (*victim, error) {
	h, err := k.grab(t)
	if errors.Is(err, errGone) {
		h, err = nil, nil
	}
	return &victim{Target: t, group: group, handle: h, kernel: k}, err
}

func (v *victim) close() {
	if v.handle != nil {
		v.handle.close()
	}
}

// gone is true when the process has ended and its group is empty.
func (v *victim) gone() bool {
	if v.handle != nil && !v.handle.gone() {
		return false
	}
	members, err := v.members()
	return err == nil && len(members) == 0
}

// await waits for the end of the process, at most for the bound.
func (v *victim) await(bound time.Duration) {
	if v.handle != nil && !v.handle.gone() {
		v.handle.await(bound)
		return
	}
	time.Sleep(bound) // for the rest of its group
}

// members lists the group, if it is one that has to end.
func (v *victim) members() ([]probes.ProcessView, error) {
	if !v.group {
		return nil, nil
	}
	return v.Target.group()
}

// send signals the process, and its group. What has ended is no error.
func (v *victim) send(sig unix.Signal) error {
	if v.group && v.handle != nil && v.handle.sendGroup(sig) {
		return nil
	}
	var errs []error
	if v.handle != nil {
		errs = append(errs, v.handle.send(sig))
	}
	members, err := v.members()
	errs = append(errs, err)
	for _, m := range members {
		h, err := v.kernel.grab(Target{m.Pid, m.StartTicks})
		if err != nil {
			continue // ended; if not, gone finds it again
		}
		errs = append(errs, h.send(sig))
		h.close()
	}
	return errors.Join(errs...)
}
