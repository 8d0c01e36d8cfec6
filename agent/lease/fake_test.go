package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	errRefused    = errors.New("connection refused")
	errUnanswered = errors.New("no answer")
)

// cut is a time without a network; from and to count from the start of the world.
type cut struct{ from, to time.Duration }

// call is one call that the Keeper made.
type call struct {
	what  string // keepalive, establish, revoke
	at    time.Duration
	id    int64
	fresh bool
}

// conn is one connection. What was sent on it during a cut is lost, and with it
// the connection: TCP sleeps in its own backoff.
type conn struct {
	ready chan struct{}
	dead  bool
}

// world is a store with leases, the way to it, and a Keeper, in virtual time. It
// is Line and Registrar at once.
type world struct {
	t       *testing.T
	k       *Keeper
	log     *lines
	born    time.Time
	set     Settings
	refuses bool          // in a cut, calls fail at once instead of hanging
	latency time.Duration // one way
	redial  time.Duration // a connection is back this long after the heal

	mu         sync.Mutex
	cuts       []cut
	leases     map[int64]Instant // expiry, as the store sees it
	registered int64             // lease of the registration
	nextID     int64
	revision   int64
	term       uint64 // of the leader
	epoch      int64  // of the registration; 0: there is none
	calls      []call
	current    *conn
	back       chan struct{} // closed and replaced when a connection comes back
	dials      sync.WaitGroup
	// scripts; nil: the store answers
	onKeepAlive func(ctx context.Context, n int) (time.Duration, error)
	onRenewal   func() (Renewal, error) // instead of the store
	onEstablish func(ctx context.Context, n int) error
	onProve     func(ctx context.Context, n int) (term uint64, err error) // 0 and nil: the store answers
	onRevoke    func(ctx context.Context) error
}

// lines is a log that can be counted.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

// inWorld runs claim in a bubble with a running Keeper that is to renew.
func inWorld(t *testing.T, prepare func(w *world), claim func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newStillWorld(t)
		if prepare != nil {
			prepare(w)
		}
		w.k = newQuietKeeper(w)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.k.Run(ctx) }()
		w.k.Order(Renew)
		synctest.Wait()
		claim(w)
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, ErrShutdown) {
			t.Errorf("run: %v", err)
		}
		w.dials.Wait()
	})
}

// newStillWorld is a sound network and an empty store, without a Keeper.
func newStillWorld(t *testing.T) *world {
	w := &world{t: t, born: time.Now(), latency: time.Millisecond, redial: 250 * time.Millisecond,
		leases: map[int64]Instant{}, nextID: 100, revision: 1000, term: 2, back: make(chan struct{}), log: &lines{},
		set: Settings{Timing: defaults, Classes: []string{"timeout", "unreachable", "lease_not_found", "other"}}}
	w.set.Clock, w.set.Classify = w.now, classifyFake
	w.current = &conn{ready: make(chan struct{})}
	close(w.current.ready)
	return w
}

func newQuietKeeper(w *world) *Keeper {
	return NewKeeper(w.set, w, w, 0, slog.New(slog.NewTextHandler(w.log, nil)), prometheus.NewPedanticRegistry())
}

func classifyFake(err error) string {
	switch {
	case errors.Is(err, ErrLost):
		return "lease_not_found"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, errRefused):
		return "unreachable"
	}
	return "other"
}

// scriptEstablish replaces what the Registrar answers while the world runs.
func (w *world) scriptEstablish(f func(ctx context.Context, n int) error) {
	w.lock(func() { w.onEstablish = f })
}

// now is the boot clock. It does not start at zero, which means "never".
func (w *world) now() Instant { return Instant(time.Hour + w.age()) }

func (w *world) age() time.Duration { return time.Since(w.born) }

// until lets virtual time run to that age.
func (w *world) until(age time.Duration) {
	time.Sleep(age - w.age())
	synctest.Wait()
}

// after lets virtual time run for d.
func (w *world) after(d time.Duration) { w.until(w.age() + d) }

func (w *world) lock(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// cutAt reports the cut that is on at age.
func (w *world) cutAt(age time.Duration) (cut, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cuts {
		if age >= c.from && age < c.to {
			return c, true
		}
	}
	return cut{}, false
}

// dial opens a connection: at once on a sound network, else soon after the heal.
func (w *world) dial() *conn {
	c := &conn{ready: make(chan struct{})}
	w.lock(func() { w.current = c })
	w.dials.Go(func() {
		for {
			x, on := w.cutAt(w.age())
			if !on {
				break
			}
			time.Sleep(x.to - w.age() + w.redial)
		}
		w.lock(func() {
			close(c.ready)
			close(w.back)
			w.back = make(chan struct{})
		})
	})
	return c
}

// pass carries one message one way on c.
func (w *world) pass(ctx context.Context, c *conn) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, on := w.cutAt(w.age()); on {
		if w.refuses {
			return errRefused
		}
		w.lock(func() { c.dead = true })
	}
	dead := false
	w.lock(func() { dead = c.dead })
	if dead {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", errUnanswered, ctx.Err())
	}
	select {
	case <-time.After(w.latency):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exchange carries a question to the store, has it act, and carries the answer back.
func (w *world) exchange(ctx context.Context, fresh bool, act func() error) error {
	var c *conn
	w.lock(func() { c = w.current })
	if fresh && !w.refuses {
		c = w.dial()
	}
	if err := w.pass(ctx, c); err != nil {
		return err
	}
	var err error
	w.lock(func() { w.revision++; err = act() })
	if back := w.pass(ctx, c); back != nil {
		return back
	}
	return err
}

func (w *world) note(what string, id int64, fresh bool) (n int) {
	w.lock(func() {
		for _, c := range w.calls {
			if c.what == what {
				n++
			}
		}
		w.calls = append(w.calls, call{what, w.age(), id, fresh})
	})
	return n
}

// alive is called with the lock held.
func (w *world) alive(id int64) bool {
	expiry, ok := w.leases[id]
	if ok && w.now() >= expiry {
		delete(w.leases, id)
		ok = false
	}
	return ok
}

func (w *world) KeepAlive(ctx context.Context, id int64, fresh bool) (Renewal, error) {
	n := w.note("keepalive", id, fresh)
	var script func(context.Context, int) (time.Duration, error)
	w.lock(func() { script = w.onKeepAlive })
	if script != nil {
		if granted, err := script(ctx, n); granted != 0 || err != nil {
			return Renewal{Granted: max(granted, 0), Term: w.leader()}, err
		}
	}
	var renewal func() (Renewal, error)
	w.lock(func() { renewal = w.onRenewal })
	if renewal != nil {
		return renewal()
	}
	r := Renewal{Granted: w.set.Timing.TTL}
	err := w.exchange(ctx, fresh, func() error {
		r.Revision, r.Term = w.revision, w.term
		if !w.alive(id) {
			return fmt.Errorf("%w: %d", ErrLost, id)
		}
		w.leases[id] = w.now().Add(w.set.Timing.TTL)
		return nil
	})
	if err != nil {
		return Renewal{}, err
	}
	return r, nil
}

// leader is the raft term.
func (w *world) leader() (term uint64) {
	w.lock(func() { term = w.term })
	return term
}

// Prove reads the registration, which goes with its lease.
func (w *world) Prove(ctx context.Context, g Grant) (term uint64, err error) {
	n := w.note("prove", g.LeaseID, false)
	var script func(context.Context, int) (uint64, error)
	w.lock(func() { script = w.onProve })
	if script != nil {
		if term, err := script(ctx, n); term != 0 || err != nil {
			return term, err
		}
	}
	err = w.exchange(ctx, false, func() error {
		term = w.term
		switch {
		case !w.alive(w.registered):
			return ErrLost
		case g.LeaseID != w.registered || g.Epoch != w.epoch:
			return ErrForeign
		}
		return nil
	})
	return term, err
}

func (w *world) Establish(ctx context.Context, held int64, fresh bool) (Grant, error) {
	n := w.note("establish", held, fresh)
	var script func(context.Context, int) error
	w.lock(func() { script = w.onEstablish })
	if script != nil {
		if err := script(ctx, n); err != nil {
			return Grant{}, err
		}
	}
	g := Grant{SentAt: w.now(), TTL: w.set.Timing.TTL}
	err := w.exchange(ctx, fresh, func() error {
		g.LeaseID = held
		if !w.alive(held) {
			w.nextID++
			g.LeaseID = w.nextID
			w.registered, w.epoch = g.LeaseID, g.LeaseID
		}
		w.leases[g.LeaseID] = w.now().Add(g.TTL)
		g.Epoch, g.Revision = g.LeaseID, w.revision
		return nil
	})
	return g, err
}

func (w *world) Revoke(ctx context.Context, id int64) error {
	w.note("revoke", id, false)
	return w.exchange(ctx, false, func() error {
		delete(w.leases, id)
		if w.onRevoke != nil {
			return w.onRevoke(ctx)
		}
		return nil
	})
}

func (w *world) AwaitReconnect(ctx context.Context) error {
	var back chan struct{}
	w.lock(func() { back = w.back })
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reconnected is the edge that AwaitReconnect waits for.
func (w *world) reconnected() {
	w.lock(func() { close(w.back); w.back = make(chan struct{}) })
}

// expire ends a lease as somebody who revokes it would.
func (w *world) expire(id int64) { w.lock(func() { delete(w.leases, id) }) }

// made lists the ages of the calls of one sort since an age.
func (w *world) made(what string, since time.Duration) (list []call) {
	w.lock(func() {
		for _, c := range w.calls {
			if c.what == what && c.at >= since {
				list = append(list, c)
			}
		}
	})
	return list
}

// nothingFalse fails if the Keeper believes in a lease for longer than it lives.
func (w *world) nothingFalse() {
	w.t.Helper()
	v := w.k.View()
	if !v.Validity.Known() {
		return
	}
	w.lock(func() {
		expiry, ok := w.leases[v.Grant.LeaseID]
		if !ok && w.now() < v.Validity.Deadline() {
			w.t.Fatalf("at %v: lease %d is gone, and believed to live until %v", w.age(), v.Grant.LeaseID, v.Validity.Deadline())
		}
		if ok && v.Validity.Deadline() > expiry {
			w.t.Fatalf("at %v: lease %d ends at %v, and the deadline is %v", w.age(), v.Grant.LeaseID, expiry, v.Validity.Deadline())
		}
	})
}

func (w *world) wantPhase(p Phase) {
	w.t.Helper()
	if got := w.k.View().Phase; got != p {
		w.t.Errorf("at %v: %v, want %v", w.age(), got, p)
	}
}
