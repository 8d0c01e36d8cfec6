package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// Run sees to it that there is a guard while there is a broker to guard. It returns nil
// when ctx ends, and leaves the guard as it is.
func (c *Client) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer c.close()
	for {
		c.look()
		timer.Reset(c.pause())
		select {
		case <-ctx.Done():
			return nil
		case <-c.woken:
			c.sought = 0
		case <-timer.C:
		}
	}
}

// pause is the time to the next look, if nobody wakes us before.
func (c *Client) pause() time.Duration {
	settled, stopAt, now := settled, lease.Instant(c.page.stopAt.Load()), lease.BootClock()
	if stopAt > now {
		settled = min(settled, stopAt.Sub(now))
	}
	switch {
	case !c.Alive() || !c.stood, stopAt != 0 && stopAt <= now,
		c.page.held.Load() != c.page.number.Load(), c.page.trying.Load():
		return supervise
	case c.target.Pid == 0 || c.set.Broker.gone(c.target):
		return relook
	}
	return settled
}

// close lets go of what the next sidecar needs. The page stays: a late word finds it.
func (c *Client) close() {
	c.file.Close()
	if c.lock != nil {
		c.lock.Close()
	}
}

// look starts a guard where there is none and should be one.
func (c *Client) look() {
	c.reap()
	var err error
	if c.lock == nil {
		err = c.openLock()
	}
	c.relock()
	free := false
	if err == nil {
		free, err = c.tryLock()
	}
	if err != nil {
		c.fail(err)
		return
	}
	wanted := c.seek()
	if c.page.acts.Load() != c.acts || free && c.alive.Load() {
		c.takeUp()
	}
	if !free {
		c.alive.Store(true)
		c.noteStanding()
		c.retarget(wanted)
		return
	}
	if c.alive.Load() {
		c.noteStanding() // it may have been a short life
	}
	died := c.alive.Swap(false) && !c.page.goodbye.Load()
	switch {
	case died && c.stood:
		next := "another is started"
		if !wanted {
			next = "another is started with the broker"
		}
		c.set.Log.Warn("the guard died: " + next)
		c.tell(Event{What: Died, Detail: next})
	case died:
		c.fail(errors.New("it ends as soon as it is started: see the limits on memory and processes, and the kernel's messages"))
	}
	c.stood = false
	c.hand.drop()
	switch {
	case c.leaving.Load():
	case wanted:
		c.start(c.target)
	case c.target.Pid == 0 && c.page.stopAt.Load() != 0:
		c.fail(errors.New(c.set.NotSeen))
	}
}

// relock replaces a lock whose file was removed, and with it the guard that has it: the next
// sidecar would not find that one, and it would stop the broker beside it.
func (c *Client) relock() {
	old, had := c.lock, c.locked
	if old == nil || !lostLock(c.set.Dir, int(old.Fd())) {
		return
	}
	if c.openLock() != nil {
		return // the directory is not back yet
	}
	if free, err := c.tryLock(); !free || err != nil {
		c.lock.Close()
		c.lock, c.locked = old, had
		return
	}
	old.Close()
	c.hand.send(unix.SIGKILL)
}

// seek looks for the broker's process, and reports whether there is something to guard:
// a process, or whatever the stop command stops.
func (c *Client) seek() bool {
	pause := Look
	if c.alive.Load() {
		pause = relook
	}
	if now := lease.BootClock(); now >= c.sought.Add(pause) {
		c.sought = now
		if t, ok := c.set.Find(); ok {
			c.target = t
		}
		if c.set.Clues != nil {
			c.clues = c.set.Clues()
		}
	}
	if c.page.shuns(c.target) != nil {
		c.target = process.Target{}
	}
	if c.target.Pid == 0 {
		return c.set.Broker.StopCommand != ""
	}
	return !c.set.Broker.gone(c.target)
}

// retarget has the guard look after the process that is the broker now, in our way. Until
// it has taken that post it keeps the one before.
func (c *Client) retarget(wanted bool) {
	next := post{c.target, c.set.Broker, c.clues}
	now := c.posted.Load()
	wanted = wanted || now != nil && c.page.shuns(now.Target) != nil
	if wanted && (now == nil || !reflect.DeepEqual(*now, next)) && c.post(next) {
		c.wakeGuard()
	}
}

func (c *Client) post(next post) bool {
	if err := c.page.order(next); err != nil {
		c.fail(err)
		return false
	}
	c.posted.Store(&next)
	return true
}

// takeUp tells what guards did, once they have written it down.
func (c *Client) takeUp() {
	c.acts = c.page.acts.Load()
	acts, err := takeUp(c.set.Dir)
	if err != nil {
		c.fail(err)
	}
	for _, a := range acts {
		c.set.Log.Error("the guard stopped the broker", "at", a.At, "how", a.How, "detail", a.String())
		c.tell(Event{What: Stopped, Detail: a.String(), Acted: a})
	}
}

// start starts a guard, which inherits the lock that we have. One that ended as soon as
// it was started is not started again at once.
func (c *Client) start(t process.Target) {
	if lease.BootClock() < c.notYet {
		return
	}
	if !c.post(post{t, c.set.Broker, c.clues}) {
		return
	}
	c.page.standing.Store(false)
	c.page.held.Store(0)
	c.page.goodbye.Store(false)
	if c.leaving.Load() { // said meanwhile
		c.page.goodbye.Store(true)
	}
	// The program that runs now, even if its file was replaced.
	cmd := exec.Command("/proc/self/exe", Verb, "-state-dir", c.set.Dir)
	cmd.Args[0] = "holdfast"
	cmd.Env = process.Environment()
	cmd.Stderr = durable(os.Stderr)
	cmd.ExtraFiles = []*os.File{c.file, c.lock}          // pageFD, lockFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what is meant for the sidecar's group and terminal is not for the guard
	c.notYet = lease.BootClock().Add(retry)
	if err := cmd.Start(); err != nil {
		c.fail(fmt.Errorf("start the guard: %w", err))
		return
	}
	c.child = cmd.Process.Pid
	c.hand.take(c.child, c.Wake)
	cmd.Process.Release() // reaped by look: nobody may have to wait for it
	c.starts.Add(1)
	c.alive.Store(true)
	c.lock.Close() // the guard's copy holds it
	c.lock, c.locked = nil, false
}

// noteStanding tells of a guard that we started once it keeps the word.
func (c *Client) noteStanding() {
	if c.stood || !c.page.standing.Load() {
		return
	}
	c.stood, c.failing = true, false
	broker := 0
	if now := c.posted.Load(); now != nil {
		broker = now.Target.Pid
	}
	c.set.Log.Info("guard started", "pid", c.child, "broker", broker)
	c.tell(Event{What: Started, Detail: fmt.Sprintf("guard %d for process %d of the broker", c.child, broker)})
}

func (c *Client) fail(err error) {
	if !c.failing {
		c.failing = true
		c.set.Log.Error("the guard cannot be relied on: perhaps nothing stops the broker if this process dies or hangs", "err", err)
		c.tell(Event{What: Failing, Detail: err.Error()})
	}
}

// reap takes a guard that ended from the list of processes.
func (c *Client) reap() {
	if c.child == 0 {
		return
	}
	if pid, err := unix.Wait4(c.child, nil, unix.WNOHANG, nil); pid == c.child || errors.Is(err, unix.ECHILD) {
		c.child = 0
	}
}

// What keeps a guard small. It allocates next to nothing after its start, so the
// collector has nothing to do; the limit is for what was not foreseen. It leaves room for
// what the runtime itself needs: below that, the collector runs whenever the guard wakes.
const (
	processors  = 2 // one waits in poll, one runs the stop command
	memoryLimit = 16 << 20
)

// guardNice is the priority that is asked for: above everything that is not urgent.
const guardNice = -10

// settle makes the process small, and sees that it gets to run when the machine is
// full. rehearse touches what the guard will need. All of it is a try: refused, the guard
// works as any process does.
func settle(rehearse func()) {
	runtime.GOMAXPROCS(processors)
	debug.SetMemoryLimit(memoryLimit)
	_ = os.WriteFile("/proc/self/comm", []byte(pageName), 0) // it would be "exe"
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	// A priority is a thread's; later threads inherit it.
	if threads, err := os.ReadDir("/proc/self/task"); err == nil {
		for _, t := range threads {
			if tid, err := strconv.Atoi(t.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, tid, guardNice)
			}
		}
	}
	debug.FreeOSMemory()
	rehearse()
	// What is mapped later is not locked: under a limit the program could not map it at all.
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_ONFAULT)
}
