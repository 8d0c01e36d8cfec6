package guard

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// hand is a sidecar's hold on its guard: it is told of the guard's end by the kernel, and
// signals it and no later process.
type hand struct {
	mu    sync.Mutex
	pid   int
	pidfd *os.File      // nil: no guard, or pidfds are refused
	ended chan struct{} // closed when nobody waits for its end any more
}

// take holds the guard, and calls ended when it has ended. It is called while the process
// is surely the guard: it was not reaped, or has the page.
func (h *hand) take(pid int, ended func()) {
	h.drop()
	h.mu.Lock()
	h.pid = pid
	h.mu.Unlock()
	fd, err := unix.PidfdOpen(pid, unix.O_NONBLOCK)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "guard")
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if conn.Read(func(fd uintptr) bool { return readable(int(fd)) }) == nil {
			ended()
		}
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pidfd, h.ended = f, over
}

// holds reports whether the end of the guard will be told.
func (h *hand) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pidfd != nil
}

// signal wakes the guard.
func (h *hand) signal() { h.send(wakeSignal) }

// kill ends the guard.
func (h *hand) kill() { h.send(unix.SIGKILL) }

func (h *hand) send(signal unix.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pidfd == nil {
		if h.pid != 0 && hasPage(h.pid, pageFD) == nil {
			_ = unix.Kill(h.pid, signal)
		}
		return
	}
	if conn, err := h.pidfd.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), signal, nil, 0) }) // if it has ended, nobody need wake
	}
}

// drop lets go of a guard.
func (h *hand) drop() {
	h.mu.Lock()
	f, over := h.pidfd, h.ended
	h.pid, h.pidfd, h.ended = 0, nil, nil
	h.mu.Unlock()
	if f != nil {
		f.Close()
		<-over
	}
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
