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
// by package guard. There is one for each process of the broker for which a sidecar that
// was not frozen has started one.
type guardian struct {
	n *node

	mu       sync.Mutex
	word     guard.Orders
	instance int // broker process that it looks after; 0: none
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
	if g.instance != instance || !running {
		g.instance = 0
		if alive && running && !l.frozen.isShut() && !g.word.Goodbye {
			g.instance = instance
		}
	}
	if g.instance == 0 {
		if !alive {
			g.word = guard.Orders{} // the last process that had the page has ended
		}
		return look
	}
	now := g.n.fleet.clock()
	born := lease.Instant(bootOffset + started.Sub(g.n.fleet.born))
	d := guard.Decide(guard.Sight{Orders: g.word, Born: born, Orphaned: !alive}, now)
	switch d.Do {
	case guard.Stop:
		g.n.fleet.note("%s: the guard stops the broker", g.n.id)
		g.word.Spent, g.instance = g.word.StopAt, 0
		// A process that does not care is killed, and its end takes time, too.
		wait := max(0, g.word.KillAt.Sub(now)) + dying
		g.n.fleet.aside.Go(func() {
			time.Sleep(wait)
			b.killInstance(instance)
			g.n.fleet.supervise(g.n)
		})
	case guard.Leave:
		g.instance = 0
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
