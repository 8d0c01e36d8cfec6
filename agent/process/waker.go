package process

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pollGone is the pause between two looks at a process without a pidfd.
const pollGone = 100 * time.Millisecond

// waker wakes a wait for a file descriptor when its context ends.
type waker struct {
	fd    int
	stop  func() bool
	woken chan struct{}
}

func newWaker(ctx context.Context) (*waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open an event descriptor: %w", err)
	}
	w := &waker{fd: fd, woken: make(chan struct{})}
	w.stop = context.AfterFunc(ctx, func() {
		defer close(w.woken)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // any count but zero wakes, in either byte order
	})
	return w, nil
}

// await waits until fd is readable or the context ends; without an fd a little while.
func (w *waker) await(fd int) {
	timeout := -1
	if fd < 0 {
		timeout = int(pollGone / time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, timeout) // the caller looks why it woke
}

func (w *waker) close() {
	if !w.stop() {
		<-w.woken // the descriptor must outlive the write
	}
	unix.Close(w.fd)
}
