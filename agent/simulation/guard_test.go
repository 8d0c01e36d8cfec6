package simulation

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast/agent/guard"
	"holdfast/agent/lease"
)

// ladderStops says that the sidecar's ladder has the step stop and arms the guard.
const ladderStops = true

// stopper ends the broker's process.
type stopper struct {
	n    *node
	life *life
}

func (s stopper) Stop(ctx context.Context) (string, error) {
	s.life.pass()
	if s.life.dead.Load() {
		return "", errDead
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	s.n.fleet.note("%s: the ladder stops the broker", s.n.id)
	if st, ok := s.n.status(); ok && st.Broker.Up == "up" {
		s.n.fleet.checks.stops(s.n.index)
	}
	b := s.n.broker
	instance, exited := b.terminate()
	patience := 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 2
	}
	select {
	case <-exited:
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(patience):
		s.life.pass()
		if s.life.dead.Load() {
			return "", errDead
		}
		if err := b.killInstance(instance); err != nil {
			return "", err
		}
	}
	s.life.pass()
	if s.life.dead.Load() {
		return "", errDead
	}
	s.life.stopped.Store(true)
	return "stopped", nil
}

// guardian is the page between sidecar and guard, and the guard's process, which decides
// by package guard. A sidecar that is not frozen starts it for the first process of the
// broker, and tells it of each later one.
type guardian struct {
	n      *node
	frozen gate

	mu       sync.Mutex
	word     guard.Orders
	stands   bool // the process lives
	instance int  // broker process that it holds; 0: none yet
	stopping int  // the one that it is stopping, or has stopped
	stops    int  // that it began
}

// dying is how long the kernel takes to end a process that was killed.
const dying = 40 * time.Millisecond

// tryAgain is the pause before a guard tries a stop again.
const tryAgain = 100 * time.Millisecond

// look is how often a sidecar looks after its guard, and a guard at the word.
const look = 250 * time.Millisecond

// die ends the guard. Its page goes too unless a sidecar has it.
func (g *guardian) die() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stands, g.instance = false, 0
}

func (g *guardian) lives() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stands
}

// stopped counts the stops that it began.
func (g *guardian) stopped() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stops
}

func (g *guardian) tell(change func(o *guard.Orders)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.word)
}

// run is all guards' lives.
func (g *guardian) run(ctx context.Context) {
	for {
		timer := time.NewTimer(g.act())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// act does what the guard that there is has to do now, and says when to look again.
func (g *guardian) act() time.Duration {
	g.frozen.pass()
	b := g.n.broker
	b.mu.Lock()
	running, instance, born := b.running, b.instance, b.born
	b.mu.Unlock()
	g.n.mu.Lock()
	l := g.n.life
	g.n.mu.Unlock()
	alive := l != nil && !l.dead.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	if alive && running && !l.frozen.isShut() && !g.word.Goodbye {
		g.stands, g.instance = true, instance
	}
	if !g.stands {
		if !alive {
			g.word = guard.Orders{} // the last process that had the page has ended
		}
		return look
	}
	now := g.n.clock()
	gone := !running || g.instance != instance || g.stopping == instance
	d := guard.Decide(guard.Sight{Orders: g.word, Born: born, Gone: gone, Orphaned: !alive}, now)
	switch {
	case d.Do == guard.Stop, d.Do == guard.Seek && running && g.stopping != instance:
		g.n.fleet.note("%s: the guard stops the broker", g.n.id)
		g.word.Spent, g.stopping, g.stops = g.word.StopAt, instance, g.stops+1
		// A process that does not care is killed, and its end takes time, too. One that was
		// started after the moment does nothing from here on: the real guard holds it.
		wait := dying
		if born < g.word.StopAt {
			wait += max(0, g.word.KillAt.Sub(now))
		}
		g.n.fleet.aside.Go(func() {
			time.Sleep(wait)
			for g.frozen.pass(); g.lives() && b.killInstance(instance) != nil; g.frozen.pass() {
				time.Sleep(tryAgain)
			}
		})
	case d.Do == guard.Leave:
		g.stands = false
	default:
		return min(look, d.Until.Sub(now))
	}
	return look
}

var errNotStopped = errors.New("operation not permitted")

// terminate asks the process to end, and returns which one that was and what tells of its
// end. One that cannot be stopped from here hears nothing.
func (b *broker) terminate() (instance int, exited <-chan struct{}) {
	b.mu.Lock()
	instance, exited = b.instance, b.exited
	if !b.running {
		exited = shut
	}
	refuses, takes := b.unstoppable > 0, b.stopping
	b.mu.Unlock()
	switch {
	case refuses:
	case takes == 0:
		_ = b.killInstance(instance)
	default:
		b.beside(func() {
			time.Sleep(takes)
			b.end(instance)
		})
	}
	return instance, exited
}

// killInstance ends that process of the broker, and no later one.
func (b *broker) killInstance(instance int) error {
	b.mu.Lock()
	refuses := b.unstoppable > 0 && b.running && b.instance == instance
	b.mu.Unlock()
	if refuses {
		return errNotStopped
	}
	b.end(instance)
	return nil
}

func (b *broker) cannotBeStopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unstoppable > 0
}

// end is killInstance for a process that has heard.
func (b *broker) end(instance int) {
	b.mu.Lock()
	same := b.running && b.instance == instance
	b.mu.Unlock()
	if same {
		b.kill()
		b.ended()
	}
}

// guarded is the guard as a sidecar life speaks to it.
type guarded struct {
	g    *guardian
	life *life
}

func (a guarded) tell(change func(o *guard.Orders)) {
	a.life.pass()
	if !a.life.dead.Load() {
		a.g.tell(change)
	}
}

func (a guarded) Arm(v lease.Validity) {
	a.tell(func(o *guard.Orders) { o.StopAt, o.KillAt = guard.Points(v) })
}

func (a guarded) Postpone(stopAt lease.Instant) {
	a.tell(func(o *guard.Orders) { *o = o.Postponed(stopAt) })
}
func (a guarded) Beat(now lease.Instant)        { a.tell(func(o *guard.Orders) { o.Beat = now }) }
func (a guarded) Disarm()                       { a.tell(func(o *guard.Orders) { o.StopAt = 0 }) }
func (a guarded) Goodbye()                      { a.tell(func(o *guard.Orders) { o.Goodbye = true }) }
func (a guarded) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (a guarded) News() []guard.Event           { return nil }
func (a guarded) Alive() bool                   { return true }
func (a guarded) Starts() int64                 { return 1 }

// openGuard takes the guard of an earlier sidecar over: its word stays in force.
func (n *node) openGuard(l *life) guarded {
	n.guard.tell(func(o *guard.Orders) { o.Goodbye = false })
	return guarded{n.guard, l}
}
