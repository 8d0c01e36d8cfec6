package simulation

import (
	"context"
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
	s.n.broker.kill()
	s.life.stopped.Store(true)
	s.n.fleet.supervise(s.n)
	return "killed", nil
}

// guardian is the page between sidecar and guard, and the guard's process, which decides
// by package guard. A sidecar that is not frozen starts it for the first process of the
// broker, and tells it of each later one.
type guardian struct {
	n *node

	mu       sync.Mutex
	word     guard.Orders
	stands   bool // the process lives
	instance int  // broker process that it holds; 0: none yet
	stopping int  // the one that it is stopping, or has stopped
}

// dying is how long the kernel takes to end a process that was killed.
const dying = 40 * time.Millisecond

// look is how often a sidecar looks after its guard, and a guard at the word.
const look = 250 * time.Millisecond

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
	b := g.n.broker
	b.mu.Lock()
	running, instance, started := b.running, b.instance, b.started
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
	now := g.n.fleet.clock()
	born := lease.Instant(bootOffset + started.Sub(g.n.fleet.born))
	gone := !running || g.instance != instance || g.stopping == instance
	d := guard.Decide(guard.Sight{Orders: g.word, Born: born, Gone: gone, Orphaned: !alive}, now)
	switch {
	case d.Do == guard.Stop, d.Do == guard.Seek && running && g.stopping != instance:
		g.n.fleet.note("%s: the guard stops the broker", g.n.id)
		g.word.Spent, g.stopping = g.word.StopAt, instance
		// A process that does not care is killed, and its end takes time, too.
		wait := max(0, g.word.KillAt.Sub(now)) + dying
		g.n.fleet.aside.Go(func() {
			time.Sleep(wait)
			b.killInstance(instance)
			g.n.fleet.supervise(g.n)
		})
	case d.Do == guard.Leave:
		g.stands = false
	default:
		return min(look, d.Until.Sub(now))
	}
	return look
}

// killInstance ends that process of the broker, and no later one.
func (b *broker) killInstance(instance int) {
	b.mu.Lock()
	same := b.instance == instance
	b.mu.Unlock()
	if same {
		b.kill()
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
