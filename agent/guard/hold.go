package guard

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// A broker that is started after the moment is held by SIGSTOP and not ended: whoever starts
// it again at once would do so for ever, or until its service manager gives up, and it serves
// for a moment each time. One that is held before it listens serves nobody. It goes on as
// soon as the sidecar's loop beats again, which fences it like any that comes up beside it,
// and when the guard leaves: whoever started the two together must not find one of them
// dead. A group is ended: its members may start others.

const howHeld = "SIGSTOP"

// hold keeps a process from running; false: it cannot, and the process has to be stopped.
func (w *watcher) hold(t process.Target, now lease.Instant) bool {
	if w.quarry.Broker.Record != "" || t.Gone() || process.Signal(t, unix.SIGSTOP) != nil {
		return false
	}
	if t == w.held {
		return true // and nobody else has it run again
	}
	if w.held != (process.Target{}) {
		_ = process.Signal(w.held, unix.SIGKILL) // no pid file names it any more, so nobody would fence it
	}
	w.held = t
	w.tell(Acted{
		At: time.Now().UTC(), Guard: w.pid, Broker: t.Pid, How: howHeld,
		QuietMS: now.Sub(lease.Instant(w.page.heardAt.Load())).Milliseconds(),
		LeftMS:  lease.Instant(w.page.deadline.Load()).Sub(lease.BootClock()).Milliseconds(),
	})
	return true
}

// release lets go on what is held.
func (w *watcher) release() {
	if w.held != (process.Target{}) {
		_ = process.Signal(w.held, unix.SIGCONT) // it may have ended
		w.held = process.Target{}
	}
}

// listen has a pid file that is written wake the guard: a broker may serve before the next
// look. Where it cannot, looks have to do.
func (w *watcher) listen() {
	path := w.quarry.Broker.PIDFile
	if w.files >= 0 || path == "" {
		return
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO); err != nil {
		unix.Close(fd)
		return
	}
	w.files = fd
}

// hear forgets what woke the guard.
func (w *watcher) hear() {
	var events [4096]byte
	if w.files >= 0 {
		_, _ = unix.Read(w.files, events[:])
	}
}

func (w *watcher) deafen() {
	if w.files >= 0 {
		unix.Close(w.files)
		w.files = -1
	}
}
