package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast/probes"
)

// restBound is the time to stop what an ended child left in its group.
const restBound = 2 * time.Second

// gateLook is the pause between two looks whether the child may start.
const gateLook = 250 * time.Millisecond

// ErrEnded is wrapped by Child.Run when the child ended and the policy does not
// start it again.
var ErrEnded = errors.New("the broker has ended")

// EndError carries how the child ended, for the one who ends with it.
type EndError struct{ Ending Ending }

func (e *EndError) Error() string { return fmt.Sprintf("%v: %v", ErrEnded, e.Ending) }
func (e *EndError) Unwrap() error { return ErrEnded }

// ChildSettings say what is started and when again.
type ChildSettings struct {
	Command []string // the program and its arguments; not empty
	Policy  Policy
	Record  string // file, in a directory that no other sidecar uses
	// MayStart is asked before each start. The word is the reason of the
	// change that is told, the detail a sentence for people.
	MayStart func() (ok bool, word, detail string)
	// Fenced is asked when the child has ended: did the fence end it?
	Fenced func(Target) bool
	// Tell is called from Run with each transition.
	Tell func(Change)
	Log  *slog.Logger
}

// Change is one transition of the child.
type Change struct {
	To     string // "started", "adopted", "ended", "start_failed", "held"
	Reason string
	Detail string
}

// ChildView is the child as last seen.
type ChildView struct {
	Target              // zero: it does not run
	StartedAt time.Time // wall clock
	Starts    int       // by this sidecar; 0: it was adopted
}

// Child is the broker as the child of this sidecar: it is started, watched, started
// again, and found again by the next sidecar if this one is killed.
//
// It gets a process group of its own, our standard streams, and our environment
// without systemd's talk with us. It survives us: no death signal is set; whoever
// kills a sidecar must not kill the clients' connections with it, and the guard
// watches the deadline.
type Child struct {
	settings ChildSettings
	view     atomic.Pointer[ChildView]
	lost     chan struct{}
	changes  chan struct{}

	// rest pauses before a start, so that tests need not.
	rest func(context.Context, time.Duration)

	mu       sync.Mutex
	cmd      *exec.Cmd // nil: adopted, or none
	stopping bool
}

// NewChild prepares; nothing is started.
func NewChild(s ChildSettings) *Child {
	c := &Child{settings: s, lost: make(chan struct{}, 1), changes: make(chan struct{}, 1), rest: probes.Sleep}
	c.view.Store(&ChildView{})
	return c
}

// Snapshot is the child as last seen.
func (c *Child) Snapshot() ChildView { return *c.view.Load() }

// StartedAt is when the running child started; zero when none runs.
func (c *Child) StartedAt() time.Time { return c.Snapshot().StartedAt }

// Target is the running child, for a Stopper.
func (c *Child) Target() (Target, bool) {
	v := c.Snapshot()
	return v.Target, v.Pid != 0
}

// Lost receives a value when the child has ended. It has room for one value.
func (c *Child) Lost() <-chan struct{} { return c.lost }

// Changes receives a value after the view changed. It has room for one value.
func (c *Child) Changes() <-chan struct{} { return c.changes }

// Forward passes on the signals that are not ours, until ctx ends: HUP, QUIT, USR1,
// USR2 and WINCH. TERM and INT begin our own orderly stop.
func (c *Child) Forward(ctx context.Context) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-signals:
			if t, runs := c.Target(); runs {
				if err := Signal(t, s.(syscall.Signal)); err != nil {
					c.settings.Log.Warn("signal not forwarded to the broker", "signal", s.String(), "err", err)
				}
			}
		}
	}
}

// Stop ends the child with its process group, in the way of a Stopper, and keeps Run
// from starting another. Call it after Run or beside it.
func (c *Child) Stop(ctx context.Context) (how string, err error) {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	how, err = c.stopper().Stop(ctx)
	if err == nil {
		c.collect(c.Snapshot())
	}
	return how, err
}

// Run adopts or starts the child, watches it and starts it again by the policy,
// until ctx ends. Then it returns nil and leaves the child running: Stop is
// another's decision. It returns a *StartError if the first start fails for a reason
// that lasts, and an *EndError when the policy does not start the child again.
func (c *Child) Run(ctx context.Context) error {
	var pause backoff
	running, err := c.adopt()
	if err != nil {
		return err
	}
	for first := true; ctx.Err() == nil; first = false {
		if !running {
			if !c.permitted(ctx) {
				return nil
			}
			err := c.start()
			var lasting *StartError
			switch {
			case errors.Is(err, errStopping):
				<-ctx.Done()
				return nil
			case errors.As(err, &lasting) && first:
				return err
			case err != nil:
				c.settings.Log.Error("broker not started: trying again", "err", err)
				c.settings.Tell(Change{To: "start_failed", Detail: err.Error()})
				c.rest(ctx, pause.after(0, rand.Float64()))
				continue
			}
		}
		running = false
		begun := time.Now()
		if !c.Snapshot().AwaitEnd(ctx) {
			return nil
		}
		ran := time.Since(begun)
		c.stopRest()
		was := c.Snapshot()
		end := c.collect(was)
		end.Ran = ran
		if c.isStopping() {
			<-ctx.Done()
			return nil
		}
		end.Fenced = c.settings.Fenced(was.Target)
		c.ended(end)
		if !c.settings.Policy.again(end) {
			return &EndError{end}
		}
		wait := pause.after(end.Ran, rand.Float64())
		c.settings.Log.Info("broker will be started again", "in", wait, "policy", c.settings.Policy)
		c.rest(ctx, wait)
	}
	return nil
}

// permitted waits until the child may start; false: ctx ended first.
func (c *Child) permitted(ctx context.Context) bool {
	said := false
	for ctx.Err() == nil {
		ok, word, detail := c.settings.MayStart()
		if ok {
			return true
		}
		if !said {
			said = true
			c.settings.Log.Warn("broker is not started yet", "reason", word, "detail", detail)
			c.settings.Tell(Change{To: "held", Reason: word, Detail: detail})
		}
		probes.Sleep(ctx, gateLook)
	}
	return false
}

// stopRest ends what the child left in its process group: it may hold the broker's
// ports and files, or serve.
func (c *Child) stopRest() {
	t, _ := c.Target()
	if GroupGone(t) {
		return
	}
	c.settings.Log.Warn("broker ended and left processes of its group behind: they are stopped", "group", t.Pid)
	ctx, cancel := context.WithTimeout(context.Background(), restBound)
	defer cancel()
	if _, err := c.stopper().Stop(ctx); err != nil {
		c.settings.Log.Error("rest of the broker's process group not stopped", "group", t.Pid, "err", err)
	}
}

func (c *Child) stopper() *Stopper {
	return newStopper(Settings{Child: c.Target, Log: c.settings.Log}, nil)
}

// collect takes the status of a child that has ended, and forgets it.
func (c *Child) collect(v ChildView) Ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := Ending{Pid: v.Pid}
	if c.cmd != nil && c.cmd.Process.Pid == v.Pid {
		_ = c.cmd.Wait() // it has ended, so this does not wait
		own.Delete(v.Pid)
		if state := c.cmd.ProcessState; state != nil {
			end.Known, end.Code = true, state.ExitCode()
			if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				end.Code, end.Signal = 0, ws.Signal().String()
			}
		}
		c.cmd = nil
	}
	if now := c.Snapshot(); now.Pid == v.Pid && v.Pid != 0 {
		c.publish(ChildView{Starts: v.Starts})
	}
	return end
}

func (c *Child) ended(e Ending) {
	c.settings.Log.Warn("broker ended", "reason", e.Reason(), "detail", e.String())
	c.settings.Tell(Change{To: "ended", Reason: e.Reason(), Detail: e.String()})
}

func (c *Child) isStopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopping
}

func (c *Child) publish(v ChildView) {
	if c.Snapshot().Pid != 0 && v.Pid == 0 {
		probes.Signal(c.lost) // first: readiness hangs on it
	}
	c.view.Store(&v)
	probes.Signal(c.changes)
}
