package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

// orphanAge is how long a zombie that we do not know is left to somebody else in this
// process who may still wait for it.
const orphanAge = 2 * time.Second

// own are the processes that this package started and waits for. A lock is held over
// each start, so that a process is known before anybody can see it as a zombie.
var own = struct {
	sync.RWMutex
	pids map[int]struct{}
}{pids: map[int]struct{}{}}

func startOwn(cmd *exec.Cmd) error {
	own.Lock()
	defer own.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	own.pids[cmd.Process.Pid] = struct{}{}
	return nil
}

// disown forgets a process after it was waited for.
func disown(pid int) {
	own.Lock()
	defer own.Unlock()
	delete(own.pids, pid)
}

// ReapOrphans makes this process the parent of its descendants that lose theirs, as
// process 1 is anyway, and takes the exit statuses that nobody waits for, until ctx
// ends. Processes that this package started are never touched. One started elsewhere
// with os/exec has 2 s from its end until its Wait must have been called.
func ReapOrphans(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("take over orphans: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for ctx.Err() == nil {
		before := orphans()
		if len(before) == 0 {
			select {
			case <-ctx.Done():
			case <-ended:
			}
			continue
		}
		probes.Sleep(ctx, orphanAge)
		for _, z := range orphans() {
			if ctx.Err() == nil && slices.Contains(before, z) {
				var status unix.WaitStatus
				_, _ = unix.Wait4(z.Pid, &status, unix.WNOHANG, nil) // if somebody was faster, the better
			}
		}
	}
	return nil
}

// orphans are the zombies that this package does not wait for. What cannot be listed is looked
// at again after the next signal.
func orphans() (ours []Target) {
	zombies, _ := probes.Processes(func(v probes.ProcessView) bool { return v.Parent == os.Getpid() && v.Ended })
	own.RLock()
	defer own.RUnlock()
	for _, z := range zombies {
		if _, known := own.pids[z.Pid]; !known {
			ours = append(ours, z.Target)
		}
	}
	return ours
}
