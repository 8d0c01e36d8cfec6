package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
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
	// supervise is the pause between two looks at a guard that does not stand yet, or not
	// for the process that it should.
	supervise = 250 * time.Millisecond
	// relook is the pause between two searches for the broker's process while there is none.
	relook = 2 * time.Second
	// settled is the pause between two looks while all is as it should be. What changes is
	// told of: the guard's end by the kernel, another process by Wake.
	settled = 10 * time.Second
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
	// Clues are what the guard finds the broker's next process by; nil: none. Only Run calls it.
	Clues func() process.Clues
	// NotSeen is what to say when the broker is to be guarded, and was never found.
	NotSeen string
	Log     *slog.Logger
}

// lockFile is held by the guard of a state directory, whose pid is in it.
const lockFile = "guard.lock"

// never is a beat after which the loop is not silent while the host runs.
const never = lease.Instant(math.MaxInt64 / 2)

// untold is no count of acts.
const untold = math.MaxUint64

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
// that keeps it. Arm, Postpone, Beat, Disarm and Goodbye never block. They make no system
// call beyond reading the clock, but for a signal to the guard with the last and with a word
// that is nearer. They may be called from anywhere, at any time, also when Run hangs.
type Client struct {
	set  Settings
	page *page
	file *os.File // the page, for the guards to come

	leaving atomic.Bool
	alive   atomic.Bool
	starts  atomic.Int64

	woken  chan struct{}
	posted atomic.Pointer[post] // the page's post in force, as far as it is known to be ours
	hand   hand                 // on the guard

	mu   sync.Mutex
	news []Event

	// Owned by Run.
	lock    *os.File // while we have the lock, there is no guard; nil: to be opened
	locked  bool
	child   int    // pid of a guard that we started and must reap; 0: none
	stood   bool   // the present guard was seen to keep the word
	acts    uint64 // the page's, as far as they were told
	sought  lease.Instant
	target  process.Target // as last found; zero: never
	clues   process.Clues
	notYet  lease.Instant
	failing bool
}

// Open prepares the guard of a state directory, or takes over the one that an earlier
// sidecar left: its word stays in force. It starts none; Run does. The error of a guard
// that cannot be taken over names its process: it would stop the broker.
func Open(s Settings) (*Client, error) {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("guard: find %s: %w", s.Dir, err)
	}
	s.Dir = dir
	for _, path := range []*string{&s.Broker.PIDFile, &s.Broker.Record} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	c := &Client{set: s, woken: make(chan struct{}, 1), acts: untold}
	if err := c.claim(); err != nil {
		return nil, err
	}
	c.page.owner.Store(int64(os.Getpid()))
	c.Beat(lease.BootClock())
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
	if !c.alive.Load() {
		return nil, nil
	}
	c.Beat(never) // nobody asks that our loop be watched
	return c, nil
}

// claim gets the lock and a new page, or the page of the guard that has the lock. One
// that was only just started may not have said yet who it is.
func (c *Client) claim() error {
	if err := c.openLock(); err != nil {
		if _, statErr := os.Lstat(filepath.Join(c.set.Dir, lockFile)); !errors.Is(statErr, fs.ErrNotExist) {
			return err
		}
		c.fail(err) // no guard can stand there; Run tries again
		c.page, c.file, err = newPage()
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
			if pid, err = pidIn(c.lock.Name()); err == nil {
				if c.page, c.file, err = openPage(pid, pageFD); err == nil {
					c.alive.Store(true)
					c.page.goodbye.Store(false)
					c.stood = true
					// It stands for nothing before it has taken a post of ours: it may be frozen.
					if was, _, err := c.page.post(); err == nil {
						c.target = was.Target
					}
					c.hand.take(pid, c.Wake)
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
	path := filepath.Join(c.set.Dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		var readErr error
		if f, readErr = os.Open(path); readErr != nil { // that of a guard which stands is enough to take it over
			return fmt.Errorf("open the guard's lock: %w", err)
		}
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

// pidIn is that of the guard that has the lock, as it says itself.
func pidIn(lock string) (int, error) {
	raw, err := os.ReadFile(lock)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// Arm says until when the broker may serve.
func (c *Client) Arm(v lease.Validity) {
	if c.page.arm(v, lease.BootClock()) { // a shorter TTL
		c.wakeGuard()
	}
}

// Postpone says that nothing is served, which was just proven: the guard acts at stopAt
// instead.
func (c *Client) Postpone(stopAt lease.Instant) { c.page.postpone(stopAt, lease.BootClock()) }

// Beat says that the sidecar's loop runs.
func (c *Client) Beat(now lease.Instant) { c.page.beat.Store(int64(now)) }

// Disarm says that there is nothing to stop.
func (c *Client) Disarm() { c.page.disarm() }

// Goodbye lets the guard end, and none is started any more.
func (c *Client) Goodbye() {
	c.leaving.Store(true)
	c.page.goodbye.Store(true)
	c.wakeGuard()
}

// wakeGuard has the guard read the word. One that does not stand yet will read it.
func (c *Client) wakeGuard() {
	if c.page.standing.Load() {
		c.hand.send(wakeSignal)
	}
}

// Standing is the guard as an operator sees it; false: there is none, or it was told to end.
func (c *Client) Standing() (Standing, bool) {
	if c.page.goodbye.Load() {
		return Standing{}, false
	}
	return StandingOf(c.set.Dir)
}

// Alive reports whether a guard keeps the word.
func (c *Client) Alive() bool { return c.alive.Load() && c.page.standing.Load() }

// Stands reports whether a guard keeps the word for that process of the broker, and
// would stop it in our way. The zero Target is whatever the stop command stops.
func (c *Client) Stands(t process.Target) bool {
	p := c.posted.Load()
	return c.Alive() && !c.page.goodbye.Load() &&
		p != nil && p.Target == t && p.Broker == c.set.Broker && c.page.held.Load() == c.page.number.Load()
}

// Fired reports whether a guard of ours began to stop that process of the broker.
func (c *Client) Fired(t process.Target) bool {
	return c.page.fired.is(t)
}

// Shun has a process left alone that is not the broker, also by a guard that runs; the
// zero Target ends that. Only the last one is remembered.
func (c *Client) Shun(t process.Target) { c.page.shunned.set(t) }

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
