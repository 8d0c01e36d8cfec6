package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

// harm is what is done to a sidecar.
type harm string

const (
	frozen    harm = "frozen"
	killed    harm = "killed"
	starved   harm = "starved"   // by signals: it runs for a hundredth of the time
	throttled harm = "throttled" // the same by a quota, which its guard shares
)

// The duty cycle of a starved sidecar.
const (
	runFor  = 2 * time.Millisecond
	stopFor = 198 * time.Millisecond
)

// do harms the sidecar until ctx ends; it returns once the harm is done or has begun.
func (h harm) do(ctx context.Context, s *harness.Sidecar, undo func(func())) error {
	switch h {
	case frozen:
		return s.Freeze()
	case killed:
		return s.Kill()
	case throttled:
		return throttle(s, undo)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	undo(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil && errors.Join(s.Signal(syscall.SIGSTOP), harness.Wait(ctx, stopFor), s.Thaw()) == nil {
			_ = harness.Wait(ctx, runFor)
		}
		_ = s.Thaw() // it may have ended
	}()
	return nil
}

// cpuGroup is where a version 1 hierarchy of the processor is mounted.
const cpuGroup = "/sys/fs/cgroup/cpu"

// quota is 1 ms of every 100 ms.
var quota = map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "1000"}

func newGroup() (dir string, err error) {
	if dir, err = os.MkdirTemp(cpuGroup, "holdfast-bench-"); err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	for file, value := range quota {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return "", errors.Join(fmt.Errorf("set a quota: %w", err), os.Remove(dir))
		}
	}
	return dir, nil
}

func canThrottle() error {
	dir, err := newGroup()
	if err == nil {
		err = os.Remove(dir)
	}
	return err
}

// throttle gives the sidecar, and its guard, a hundredth of one processor together.
func throttle(s *harness.Sidecar, undo func(func())) error {
	dir, err := newGroup()
	if err != nil {
		return err
	}
	pids := []int{s.PID()}
	if g := s.Guard(); g != 0 {
		pids = append(pids, g)
	}
	undo(func() {
		for _, pid := range pids { // those that have ended are not in it
			_ = os.WriteFile(filepath.Join(cpuGroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		_ = harness.Await(context.Background(), 5*time.Second, "the cgroup to be empty", func(context.Context) (bool, string) {
			err := os.Remove(dir)
			return err == nil, fmt.Sprint(err)
		})
	})
	for _, pid := range pids {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("throttle process %d: %w", pid, err)
		}
	}
	return nil
}
