package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// stopper is a process.Stopper that knows whom it stops.
type stopper interface {
	Stop(ctx context.Context) (how string, err error)
}

// finder is a process.Stopper that looks for whom it stops.
type finder interface {
	stopper
	Find() (t process.Target, found bool, err error)
}

// try is a stop that is not proven yet.
type try struct {
	Acted
	target process.Target
	began  lease.Instant
}

// stop tries to stop what the guard holds; the next turn sees what came of it. Nothing
// waits for a process that has ended.
func (w *watcher) stop(o Orders, now lease.Instant) {
	if w.quarry.known() {
		w.page.fired.set(w.quarry.Target)
		w.page.spent.Store(int64(o.StopAt))
	}
	bound := 2 * max(o.patience(now), 0)
	if bound == 0 && !w.quarry.known() {
		bound = again // nothing but the command, which needs its time
	}
	proven := w.attempt(w.stopper, w.quarry.Target, bound, now) || w.quarry.known() && w.quarry.gone()
	if !proven {
		pause := SeekEvery
		if !w.quarry.known() {
			pause = again // a command that fails
		}
		w.wait(lease.BootClock().Add(pause))
		return
	}
	w.endTry()
	w.page.spent.Store(int64(o.StopAt)) // with nothing but the command, its word counts once
}

// seek stops a broker that somebody started again. A name that several processes have is
// nobody's: nothing is done, and it is said once.
func (w *watcher) seek(o Orders, now lease.Instant) {
	if !w.stands {
		w.stands = true
		w.say("it stands: the moment is over and the sidecar's loop is silent, so it stops the broker of %s as often as somebody starts it, until the sidecar runs again; 'holdfast status' with this --state-dir says how it is ended where none is to run again", w.dir)
	}
	if w.quarry.Broker.commandOnly() {
		if now < w.command {
			return
		}
		w.command = now.Add(again)
		ctx, cancel := context.WithTimeout(context.Background(), again)
		defer cancel()
		_, _ = w.stopper.Stop(ctx) // whether it stopped anything is not to be seen
		return
	}
	w.listen()
	t, found, err := w.seeker.Find()
	if found && t == w.held {
		t, found, err = w.seeker.Find() // the one before comes first as long as it lives
	}
	if !found {
		if err != nil && !errors.Is(err, process.ErrNotFound) && !w.unclear {
			w.unclear = true
			w.say("it cannot tell which process is the broker, and stops none: %v", err)
		}
		return
	}
	w.page.fired.set(t)
	if born(t) >= o.StopAt && w.hold(t, now) {
		return
	}
	if w.attempt(w.seeker, t, 2*max(o.patience(now), 0), now) || w.quarry.Broker.gone(t) {
		w.endTry()
	}
}

// attempt is one try; true: proven. A Stopper kills when half of its time is over, and at
// once when none is left.
func (w *watcher) attempt(x stopper, t process.Target, bound time.Duration, now lease.Instant) bool {
	if w.trying == nil || w.trying.target != t {
		w.endTry()
		w.page.trying.Store(true)
		quiet := now.Sub(lease.Instant(w.page.heardAt.Load()))
		w.trying = &try{Acted: Acted{Guard: w.pid, Broker: t.Pid, QuietMS: quiet.Milliseconds(), Runs: now < w.page.orders().silentFrom()}, target: t, began: now}
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	how, err := x.Stop(ctx)
	cancel()
	a, ended := w.trying, lease.BootClock()
	a.At, a.TookMS = time.Now().UTC(), ended.Sub(a.began).Milliseconds()
	o, deadline := w.page.orders(), lease.Instant(w.page.deadline.Load())
	a.LeftMS = deadline.Sub(ended).Milliseconds()
	a.Idle = o.StopAt > deadline
	switch {
	case how != "" && !(how == process.HowGone && a.Problem != ""):
		a.How = how
	case a.Problem != "":
		a.How = process.HowKill // of the try before, which was over before it could be proven
	}
	if err != nil && a.Problem == "" {
		a.Problem = err.Error()
		w.say("process %d of the broker is not stopped yet: %v", t.Pid, err)
	}
	return err == nil
}

// endTry writes down what came of a try.
func (w *watcher) endTry() {
	t := w.trying
	w.trying = nil
	if t == nil {
		return
	}
	if t.How == "" && t.target.Pid != 0 && w.quarry.Broker.gone(t.target) {
		t.How = process.HowKill // by the last try, which was over before it could be proven
	}
	if t.How != process.HowGone {
		w.tell(t.Acted)
	}
	w.page.trying.Store(false)
}

// tell writes down what was done, and says it.
func (w *watcher) tell(a Acted) {
	if err := leave(w.dir, a); err != nil {
		w.say("%v", err)
	}
	w.page.acts.Add(1)
	w.say("%s", a)
}

// say writes a line. A full pipe must not keep it from its work.
func (w *watcher) say(format string, args ...any) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(w.stderr, "holdfast guard: "+format+"\n", args...)
	}()
	select {
	case <-said:
	case <-time.After(lastWords):
	}
}
