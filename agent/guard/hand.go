package guard

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast/agent/process"
)

// hand is a sidecar's hold on its guard: it is told of the guard's end, and signals it and no later
// process.
type hand struct {
	mu   sync.Mutex
	proc *os.Process // held by a pidfd, where there are any; nil: no guard
	let  context.CancelFunc
	task sync.WaitGroup
}

// take holds the guard, and calls ended when it has ended. It is called while the process
// is surely the guard: it was not reaped, or has the page.
func (h *hand) take(pid int, ended func()) {
	h.drop()
	proc, err := os.FindProcess(pid)
	guard, seen := process.TargetOf(pid)
	if err != nil || seen != nil {
		ended()
		return
	}
	ctx, let := context.WithCancel(context.Background())
	h.task.Go(func() {
		if guard.AwaitEnd(ctx) {
			ended()
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.proc, h.let = proc, let
}

// send signals the guard.
func (h *hand) send(signal unix.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.proc != nil && hasPage(h.proc.Pid, pageFD) == nil { // where there are no pidfds, another may have its pid
		_ = h.proc.Signal(signal) // if it has ended, nobody need wake
	}
}

// drop lets go of a guard.
func (h *hand) drop() {
	h.mu.Lock()
	if h.proc != nil {
		h.let()
		_ = h.proc.Release()
	}
	h.proc = nil
	h.mu.Unlock()
	h.task.Wait()
}

// durable is the standard error if it can be inherited by a process that outlives us:
// a file or a socket, such as the journal's. Whoever reads a pipe or a terminal waits
// for, or takes with it, everybody who has it.
func durable(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() && info.Mode()&os.ModeSocket == 0 {
		return nil // the null device
	}
	return f
}
