package guard

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

const (
	// lastWords bounds the line that a guard writes to its standard error, which may be
	// somebody's full socket.
	lastWords = time.Second
	// again bounds each try of a stop command after the deadline.
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
	var b Broker
	var target process.Target
	flags := flag.NewFlagSet(Verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("state-dir", "", "")
	flags.IntVar(&target.Pid, "pid", 0, "")
	flags.Uint64Var(&target.StartTicks, "start-ticks", 0, "")
	b.flags(flags)
	if err := flags.Parse(args); err != nil || *dir == "" {
		return errNotByHand
	}
	b.StopCommand = os.Getenv(commandVar)
	os.Unsetenv(commandVar) // it is not for the stop command
	p, file, err := openPage(os.Getpid(), pageFD)
	if err != nil {
		return errors.Join(errNotByHand, err)
	}
	defer file.Close()
	// It ends by the sidecar's word or with the broker, not because somebody ended the
	// sidecar, its terminal or its pipes. The signals are caught and not read, rather than
	// ignored: the stop command would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	// Neither may live on in the stop command.
	unix.CloseOnExec(pageFD)
	unix.CloseOnExec(lockFD)
	if _, err := unix.Pwrite(lockFD, fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0); err != nil {
		return fmt.Errorf("guard: note the pid: %w", err)
	}
	w := &watcher{dir: *dir, page: p, quarry: watch(target)}
	defer w.quarry.close()
	if w.stopper, err = b.stopper(target); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	w.stopper.Refuse(p.shuns)
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("guard: make a timer that runs on while the host is suspended: %w", err)
	}
	defer unix.Close(w.timer)
	settle(w.rehearse)
	p.standing.Store(true)
	w.run(stderr)
	return nil
}

// watcher carries out what Decide decides.
type watcher struct {
	dir     string
	page    *page
	quarry  *quarry
	stopper *process.Stopper
	timer   int
}

func (w *watcher) run(stderr io.Writer) {
	for {
		s, now := w.sight(), lease.BootClock()
		switch d := Decide(s, now); d.Do {
		case Wait, Seek:
			w.wait(d.Until)
		case Stop:
			w.page.spent.Store(int64(s.StopAt)) // before anything is done: a word counts once
			if a := w.stop(s.Orders, now); a.How != process.HowGone {
				w.report(a, stderr)
			}
			return
		case Leave:
			return
		}
	}
}

// rehearse goes through a stop without stopping anything, so that what it needs is in
// memory when memory is what lacks.
func (w *watcher) rehearse() {
	_, _ = w.stopper.Target()
	s := w.sight()
	Decide(s, lease.BootClock())
	_ = Acted{At: time.Now(), How: process.HowTerm}.String()
}

func (w *watcher) sight() Sight {
	s := Sight{Orders: w.page.orders(), Born: w.quarry.born(), Gone: w.quarry.gone()}
	if owner := w.page.owner.Load(); owner != 0 {
		s.Orphaned = errors.Is(unix.Kill(int(owner), 0), unix.ESRCH)
	}
	return s
}

// wait returns at the moment, or when the process ends. A moment that passed while the
// host was suspended has come.
func (w *watcher) wait(until lease.Instant) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(until), 1))} // 0 would switch it off
	timeout := -1
	if err := unix.TimerfdSettime(w.timer, unix.TFD_TIMER_ABSTIME, &at, nil); err != nil {
		timeout = 1
	}
	if w.quarry.known() && w.quarry.fd < 0 { // nothing tells when it ends
		timeout = int(pollGone / time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(w.timer), Events: unix.POLLIN}, {Fd: int32(w.quarry.fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, timeout) // whatever woke us, Decide looks anew
}

// stop stops the broker, whatever it takes: there is no way back, and a sidecar that
// comes to itself now finds it stopped.
func (w *watcher) stop(o Orders, began lease.Instant) Acted {
	a := Acted{Guard: os.Getpid(), Broker: w.quarry.Pid, QuietMS: began.Sub(lease.Instant(w.page.heardAt.Load())).Milliseconds()}
	deadline := lease.Instant(w.page.deadline.Load())
	// A Stopper kills when half of its time is over, and at once when none is left.
	for bound := 2 * max(o.patience(began), 0); ; {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		how, err := w.stopper.Stop(ctx)
		cancel()
		ended := lease.BootClock()
		a.At, a.How = time.Now().UTC(), how
		a.TookMS, a.LeftMS = ended.Sub(began).Milliseconds(), deadline.Sub(ended).Milliseconds()
		if err == nil {
			if how == process.HowGone && a.Problem != "" {
				a.How = process.HowKill // of the try before, which was over before it could be proven
			}
			return a
		}
		if a.Problem == "" {
			a.Problem = err.Error()
		}
		if w.page.goodbye.Load() { // whoever says so has seen to it
			return a
		}
		if bound = 0; !w.quarry.known() {
			bound = again // nothing but the command, which needs its time
		}
		w.wait(lease.BootClock().Add(pollGone))
	}
}

// report leaves what was done in the state directory and says it once.
func (w *watcher) report(a Acted, stderr io.Writer) {
	said := make(chan struct{})
	go func() { // a full pipe must not keep the lock from the next guard
		defer close(said)
		fmt.Fprintf(stderr, "holdfast guard: %s\n", a)
	}()
	if err := leave(w.dir, a); err != nil {
		fmt.Fprintf(stderr, "holdfast guard: %v\n", err)
	}
	select {
	case <-said:
	case <-time.After(lastWords):
	}
}
