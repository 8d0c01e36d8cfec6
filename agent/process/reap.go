package process

import (
	"context"
	"fmt"
	"os"
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

// own are the pids of the processes that this package started and waits for. Each is put in right after
// its start, which is sooner than it could be an orphan's age as a zombie, and goes when it was waited for.
var own sync.Map

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
	for _, z := range zombies {
		if _, known := own.Load(z.Pid); !known {
			ours = append(ours, z.Target)
		}
	}
	return ours
}
