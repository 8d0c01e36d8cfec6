package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

const (
	// supervise is the pause between two looks at whether the guard lives.
	supervise = 250 * time.Millisecond
	// relook is the pause between two searches for the broker's process while a guard
	// watches one, which notices its end by itself.
	relook = 2 * time.Second
	// retry is the pause after a guard could not be started, or ended at once.
	retry = time.Second
	// claim bounds the wait for a guard of an earlier sidecar that has just started.
	claim = 2 * time.Second
)

// Settings say where a guard belongs and how it stops the broker.
type Settings struct {
	Dir    string // the state directory
	Broker Broker
	// Find is the process that is the broker now; false: none is known. Only Run calls it.
	Find func() (process.Target, bool)
	// NotSeen is what to say when the broker is to be guarded, and was never found.
	NotSeen string
	Clock   func() lease.Instant // default: the boot clock
	Log     *slog.Logger
}

// What is the kind of an event.
type What string

// What can be told of a guard.
const (
	Started   What = "started"
	TakenOver What = "taken_over" // from an earlier sidecar, with its word
	Died      What = "died"       // without a reason that we know of; another is started
	Failing   What = "failing"    // it cannot be started: told once
	Stopped   What = "stopped"    // it stopped the broker: Acted says how
)

// Event is something that the sidecar's journal should have.
type Event struct {
	What   What
	Detail string
	Acted  Acted // with Stopped
}

// Client is the sidecar's side: the word that it gives, and the care for the process
// that keeps it. Arm, Disarm and Goodbye make no system call beyond reading the
// clock, and never block; they may be called from anywhere, at any time.
type Client struct {
	set  Settings
	page *page
	file *os.File // the page, for the guards to come

	leaving atomic.Bool
	alive   atomic.Bool
	starts  atomic.Int64

	woken  chan struct{}
	digest uint64 // of the way to stop the broker

	mu   sync.Mutex
	news []Event

	// Owned by Run.
	lock    *os.File // while we have the lock, there is no guard; nil: to be opened
	locked  bool
	child   int // pid of a guard that we started and must reap; 0: none
	sought  lease.Instant
	target  process.Target // as last found; zero: never
	notYet  lease.Instant
	failing bool
}

// Open prepares the guard of a state directory, or takes over the one that an earlier
// sidecar left: its word stays in force. It starts none; Run does. The error of a guard
// that cannot be taken over names its process: it would stop the broker.
func Open(s Settings) (*Client, error) {
	if s.Clock == nil {
		s.Clock = lease.BootClock
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("guard: find %s: %w", s.Dir, err)
	}
	s.Dir = dir
	c := &Client{set: s, woken: make(chan struct{}, 1), digest: s.Broker.digest()}
	if err := c.claim(); err != nil {
		return nil, err
	}
	c.page.owner.Store(int64(os.Getpid()))
	return c, nil
}

// Left is the guard that an earlier sidecar of the state directory left, for a sidecar
// that has none of its own; nil: there is none. Its word stays in force until Goodbye.
// Run must not be called.
func Left(dir string) (*Client, error) {
	c, err := Open(Settings{Dir: dir})
	if err != nil {
		return nil, err
	}
	c.close()
	if !c.Alive() {
		return nil, nil
	}
	return c, nil
}

// claim gets the lock and a new page, or the page of the guard that has the lock. One
// that was only just started may not have said yet who it is.
func (c *Client) claim() error {
	if err := c.openLock(); err != nil {
		return err
	}
	for deadline := time.Now().Add(claim); ; time.Sleep(supervise / 10) {
		free, err := c.tryLock()
		if err == nil && free {
			c.page, c.file, err = newPage()
			return err
		}
		pid := 0
		if err == nil {
			if pid, err = c.holder(); err == nil {
				if c.page, c.file, err = openPage(pid, pageFD); err == nil {
					c.alive.Store(true)
					c.page.goodbye.Store(false)
					c.target = c.page.target()
					c.tell(Event{What: TakenOver, Detail: fmt.Sprintf("guard %d of an earlier sidecar", pid)})
					return nil
				}
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("--state-dir %s: the guard of an earlier sidecar (process %d) cannot be taken over, and may stop the broker: kill it: %w", c.set.Dir, pid, err)
		}
	}
}

func (c *Client) openLock() error {
	path := filepath.Join(c.set.Dir, "guard.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the guard's lock: %w", err)
	}
	c.lock, c.locked = f, false
	return nil
}

// tryLock reports whether we have the lock now: then no guard lives.
func (c *Client) tryLock() (bool, error) {
	if c.locked {
		return true, nil
	}
	err := unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", c.lock.Name(), err)
	}
	c.locked = true
	return true, nil
}

// holder is the guard that has the lock, as it says itself.
func (c *Client) holder() (int, error) {
	var b [16]byte
	n, err := c.lock.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read %s: %w", c.lock.Name(), err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", c.lock.Name(), err)
	}
	return pid, nil
}

// Arm says until when the broker may serve.
func (c *Client) Arm(v lease.Validity) { c.page.arm(v, c.set.Clock()) }

// Disarm says that there is nothing to stop.
func (c *Client) Disarm() { c.page.disarm() }

// Goodbye lets the guard end, and none is started any more.
func (c *Client) Goodbye() {
	c.leaving.Store(true)
	c.page.goodbye.Store(true)
}

// Alive reports whether there was a guard at the last look, at most 250 ms ago.
func (c *Client) Alive() bool { return c.alive.Load() }

// Stands reports whether a guard keeps the word for that process of the broker, and
// would stop it in our way. The zero Target is whatever the stop command stops. A guard
// that died is noticed within 250 ms.
func (c *Client) Stands(t process.Target) bool {
	return c.alive.Load() && c.page.standing.Load() && !c.page.goodbye.Load() &&
		c.page.target() == t && c.page.broker.Load() == c.digest
}

// Fired reports whether a guard of ours began to stop that process of the broker.
func (c *Client) Fired(t process.Target) bool {
	return t.Pid != 0 && c.page.target() == t && lease.Instant(c.page.spent.Load()) > born(t)
}

// Wake has Run look for the broker's process at once: there is another.
func (c *Client) Wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// Starts counts the guards that were started.
func (c *Client) Starts() int64 { return c.starts.Load() }

// News are the events since the last call.
func (c *Client) News() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.news
	c.news = nil
	return news
}

func (c *Client) tell(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = append(c.news, e)
}

// Run sees to it that there is a guard while there is a broker to guard. It returns nil
// when ctx ends, and leaves the guard as it is.
func (c *Client) Run(ctx context.Context) error {
	tick := time.NewTicker(supervise)
	defer tick.Stop()
	defer c.close()
	for {
		c.look()
		select {
		case <-ctx.Done():
			return nil
		case <-c.woken:
			c.sought = 0
		case <-tick.C:
		}
	}
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
	free := false
	if err == nil {
		free, err = c.tryLock()
	}
	if err != nil {
		c.fail(err)
		return
	}
	wanted := c.seek()
	if !free {
		c.alive.Store(true)
		if wanted && (c.page.target() != c.target || c.page.broker.Load() != c.digest) {
			c.page.goodbye.Store(true) // it guards another process, or would stop it in another way
		}
		return
	}
	acted, was := c.takeUp(), c.page.target()
	if c.alive.Swap(false) && !acted && !c.page.goodbye.Load() && (was.Pid == 0 || !was.Gone()) {
		c.set.Log.Warn("the guard died: another is started")
		c.tell(Event{What: Died, Detail: "another is started"})
	}
	switch {
	case c.leaving.Load():
	case wanted:
		c.start(c.target)
	case c.target.Pid == 0 && c.page.stopAt.Load() != 0:
		c.fail(errors.New(c.set.NotSeen))
	}
}

// seek looks for the broker's process, and reports whether there is something to guard:
// a process, or whatever the stop command stops.
func (c *Client) seek() bool {
	pause := Look
	if c.alive.Load() {
		pause = relook
	}
	if now := c.set.Clock(); now >= c.sought.Add(pause) {
		c.sought = now
		if t, ok := c.set.Find(); ok {
			c.target = t
		}
	}
	if c.target.Pid == 0 {
		return c.set.Broker.StopCommand != ""
	}
	return !c.target.Gone()
}

// takeUp tells what guards did; there is none now.
func (c *Client) takeUp() (acted bool) {
	acts, err := takeUp(c.set.Dir)
	if err != nil {
		c.fail(err)
	}
	for _, a := range acts {
		c.set.Log.Error("the guard stopped the broker", "how", a.How, "detail", a.String())
		c.tell(Event{What: Stopped, Detail: a.String(), Acted: a})
	}
	return len(acts) > 0
}

// start starts a guard, which inherits the lock that we have. One that ended as soon as
// it was started is not started again at once.
func (c *Client) start(t process.Target) {
	if c.set.Clock() < c.notYet {
		return
	}
	c.page.pid.Store(int64(t.Pid))
	c.page.ticks.Store(t.StartTicks)
	c.page.broker.Store(c.digest)
	c.page.standing.Store(false)
	c.page.goodbye.Store(false)
	if c.leaving.Load() { // said meanwhile
		c.page.goodbye.Store(true)
	}
	// The program that runs now, even if its file was replaced.
	cmd := exec.Command("/proc/self/exe", append([]string{Verb, "-state-dir", c.set.Dir}, c.set.Broker.args(t)...)...)
	cmd.Args[0] = "holdfast"
	cmd.Env = process.Environment()
	cmd.Stderr = durable(os.Stderr)
	cmd.ExtraFiles = []*os.File{c.file, c.lock} // pageFD, lockFD
	cmd.SysProcAttr = apart()
	c.notYet = c.set.Clock().Add(retry)
	if err := cmd.Start(); err != nil {
		c.fail(fmt.Errorf("start the guard: %w", err))
		return
	}
	c.child = cmd.Process.Pid
	cmd.Process.Release() // reaped by look: nobody may have to wait for it
	c.starts.Add(1)
	c.alive.Store(true)
	c.failing = false
	c.lock.Close() // the guard's copy holds it
	c.lock, c.locked = nil, false
	c.set.Log.Info("guard started", "pid", c.child, "broker", t.Pid)
	c.tell(Event{What: Started, Detail: fmt.Sprintf("guard %d for process %d of the broker", c.child, t.Pid)})
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
