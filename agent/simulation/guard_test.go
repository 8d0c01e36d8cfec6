package simulation

import (
	"context"
	"sync"
	"time"

	"holdfast/agent/lease"
)

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
	s.n.broker.kill()
	s.n.fleet.supervise(s.n)
	return "killed", nil
}

// guard is the second process.
type guard struct {
	n *node

	mu    sync.Mutex
	v     lease.Validity
	armed bool
	wake  chan struct{}
}

func (g *guard) set(v lease.Validity, on bool) {
	g.mu.Lock()
	g.v, g.armed = v, on
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run is the guard's life.
func (g *guard) run(ctx context.Context) {
	for {
		g.mu.Lock()
		v, on := g.v, g.armed
		g.mu.Unlock()
		wait := time.Hour
		if on {
			wait = v.Deadline().Add(-v.Margin / 3).Sub(g.n.fleet.clock())
			if wait <= 0 {
				g.n.fleet.note("%s: the guard stops the broker", g.n.id)
				g.n.broker.kill()
				g.n.fleet.supervise(g.n)
				g.mu.Lock()
				g.armed = g.armed && g.v != v
				g.mu.Unlock()
				continue
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-g.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// armed is the guard as a sidecar life speaks to it.
type armed struct {
	g    *guard
	life *life
}

func (a armed) Arm(v lease.Validity) {
	a.life.pass()
	if !a.life.dead.Load() {
		a.g.set(v, true)
	}
}

func (a armed) Disarm() {
	a.life.pass()
	if !a.life.dead.Load() {
		a.g.set(lease.Validity{}, false)
	}
}
