package guard

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// What a guard inherits, beside the standard streams.
const (
	pageFD = 3
	lockFD = 4
)

// wakeSignal has a guard read the sidecar's word now.
const wakeSignal = unix.SIGUSR1

const (
	// lastWords bounds a line that a guard writes to its standard error, which may be
	// somebody's full socket.
	lastWords = time.Second
	// again bounds a stop command after the deadline, and is the pause between two.
	again = 5 * time.Second
	// pollGone is the pause between two looks at a process without a pidfd.
	pollGone = 100 * time.Millisecond
)

// Verb is how the binary is called to be a guard.
const Verb = "guard"

var errNotByHand = errors.New("guard: it is started by 'holdfast run', with the fence step stop and --guard on")

// Main is a guard's life. args follow the verb. It returns when the guard has ended,
// with an error only if it could not begin.
func Main(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet(Verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("state-dir", "", "")
	if err := flags.Parse(args); err != nil || *dir == "" {
		return errNotByHand
	}
	p, file, err := openPage(os.Getpid(), pageFD)
	if err != nil {
		return errors.Join(errNotByHand, err)
	}
	defer file.Close()
	// It ends by the sidecar's word, not because somebody ended the sidecar, its terminal
	// or its pipes. The signals are caught and not read, rather than ignored: the stop
	// command would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	// Neither may live on in the stop command.
	unix.CloseOnExec(pageFD)
	unix.CloseOnExec(lockFD)
	if _, err := unix.Pwrite(lockFD, fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0); err != nil {
		return fmt.Errorf("guard: note the pid: %w", err)
	}
	w := newWatcher(*dir, p, stderr)
	if err := w.takePost(); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	defer w.quarry.close()
	w.lost = func() bool { return lostLock(*dir, lockFD) }
	if err := w.openWaits(); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	settle(w.rehearse)
	p.standing.Store(true)
	for w.turn() {
	}
	_, _ = unix.Pwrite(lockFD, fmt.Appendf(nil, "%-10s\n", ""), 0) // nobody may take the pid for that of a guard; the room for the next one's is kept
	return nil
}

// watcher carries out what Decide decides.
type watcher struct {
	dir    string
	page   *page
	stderr io.Writer

	number  uint64 // of the post
	quarry  *quarry
	stopper stopper
	seeker  finder // finds whoever is the broker by now
	finder  *process.Finder
	trying  *try // nil: nothing is being stopped

	lost func() bool // nobody can take this guard over any more; nil: never

	stands  bool // that it does was said
	unclear bool // that the broker cannot be told was said
	command lease.Instant
	held    process.Target // by SIGSTOP; zero: none
	files   int            // readable when a file is written beside the pid file; negative: not listened to
	pid     int            // of this process
	timer   int
	bell    int // readable when the sidecar wants the word to be read
	poll    func(fds []unix.PollFd, timeout int) (int, error)
}

func newWatcher(dir string, p *page, stderr io.Writer) *watcher {
	return &watcher{dir: dir, page: p, stderr: stderr, quarry: watch(post{}), timer: -1, bell: -1, files: -1, pid: os.Getpid(), poll: unix.Poll}
}

// openWaits prepares what a wait can be ended by.
func (w *watcher) openWaits() (err error) {
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("make a timer that runs on while the host is suspended: %w", err)
	}
	if w.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make a bell: %w", err)
	}
	rung := make(chan os.Signal, 1)
	signal.Notify(rung, wakeSignal)
	go func() { // for as long as the process lives
		for range rung {
			_, _ = unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // any count but zero, in either byte order
		}
	}()
	return nil
}

// takePost takes the post that the sidecar wants it to have. Until it can, it keeps the
// one that it has.
func (w *watcher) takePost() error {
	p, number, err := w.page.post()
	if err != nil || number == w.number {
		return err
	}
	held, err := p.Broker.stopper(p.Target)
	if err != nil {
		return err
	}
	any, err := p.Broker.stopper(process.Target{})
	if err != nil {
		return err
	}
	held.Refuse(w.page.shuns)
	any.Refuse(w.page.shuns)
	if w.finder == nil || p.Target.Pid == 0 || p.Broker != w.quarry.Broker {
		w.finder = &process.Finder{PIDFile: p.Broker.PIDFile, Name: p.Broker.Name}
	}
	w.finder.Expect(p.Target, p.Clues)
	any.Use(w.finder)
	next := watch(p)
	w.quarry.close()
	w.quarry, w.stopper, w.seeker, w.number = next, held, any, number
	w.unclear = false
	w.page.held.Store(number)
	return nil
}

// turn does the next thing; false: the guard's life is over.
func (w *watcher) turn() bool {
	if err := w.takePost(); err != nil {
		w.say("it keeps its post: %v", err)
	}
	s, now := w.sight(), lease.BootClock()
	d := Decide(s, now)
	if d.Do != Seek {
		w.release()
		w.deafen()
	}
	if d.Do != Stop && d.Do != Seek {
		w.endTry()
		w.stands = false
	}
	switch d.Do {
	case Wait:
		w.wait(d.Until)
	case Stop:
		w.stop(s.Orders, now)
	case Seek:
		if w.lost != nil && w.lost() {
			w.endTry()
			w.say("its state directory %s is gone, so no sidecar can take it over: it ends", w.dir)
			return false
		}
		w.seek(s.Orders, now)
		w.wait(d.Until)
	case Leave:
		return false
	}
	return true
}

// lostLock reports whether a lock is not the one of the state directory: who removed that
// directory has removed the sidecar, and a later one would never find us.
func lostLock(dir string, fd int) bool {
	var ours, there unix.Stat_t
	if unix.Fstat(fd, &ours) != nil {
		return false
	}
	err := unix.Stat(filepath.Join(dir, lockFile), &there)
	return errors.Is(err, unix.ENOENT) || err == nil && (there.Dev != ours.Dev || there.Ino != ours.Ino)
}

// rehearse goes through a stop without stopping anything, so that what it needs is in
// memory when memory is what lacks.
func (w *watcher) rehearse() {
	_, _, _ = w.seeker.Find()
	s := w.sight()
	Decide(s, lease.BootClock())
	_ = Acted{At: time.Now(), How: process.HowTerm}.String()
}

func (w *watcher) sight() Sight {
	var gone bool
	w.finder.Saw(w.quarry.Target, func() bool { gone = w.quarry.gone(); return gone })
	s := Sight{Orders: w.page.orders(), Born: w.quarry.born(), Gone: gone || w.page.shuns(w.quarry.Target) != nil}
	if owner := w.page.owner.Load(); owner != 0 {
		s.Orphaned = errors.Is(unix.Kill(int(owner), 0), unix.ESRCH)
	}
	return s
}

// wait returns at the moment, when the process ends, or when the sidecar has another word.
// A moment that passed while the host was suspended has come.
func (w *watcher) wait(until lease.Instant) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(until), 1))} // 0 would switch it off
	timeout := -1
	if err := unix.TimerfdSettime(w.timer, unix.TFD_TIMER_ABSTIME, &at, nil); err != nil {
		timeout = int(pollGone / time.Millisecond)
	}
	if w.quarry.unwatched() {
		timeout = int(pollGone / time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(w.timer), Events: unix.POLLIN}, {Fd: int32(w.bell), Events: unix.POLLIN}, {Fd: int32(w.quarry.fd), Events: unix.POLLIN}, {Fd: int32(w.files), Events: unix.POLLIN}}
	_, _ = w.poll(fds, timeout) // whatever woke us, Decide looks anew
	w.hear()
	var rung [8]byte
	_, _ = unix.Read(w.bell, rung[:])
}
