package simulation

import (
	"errors"
	"strings"
	"time"

	"holdfast/agent/control"
)

// endedByItself judges a sidecar that nobody has asked to end: only its session policy
// may do that, after it has stopped the broker.
func (n *node) endedByItself(l *life, err error) {
	if l.leaving.Swap(true) {
		return // somebody was about to end it
	}
	var exit *control.ExitError
	s := n.fleet.settings
	switch {
	case s.Policy != "shutdown" && s.Retries == 0, !errors.As(err, &exit), exit.Code != control.ExitFailed:
		n.fleet.checks.fail("the sidecar of %s ended by itself: %v", n.id, err)
	case !l.stopped.Load() && !n.broker.cannotBeStopped():
		n.fleet.checks.fail("the sidecar of %s ended without having stopped its broker: %v", n.id, err)
	}
	n.fleet.checks.gaveUp(n.index, err)
	n.fleet.checks.sidecar(n.index, false)
	n.keepFile()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == l {
		n.life, n.ended = nil, true
	}
}

func (n *node) hasEnded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended
}

// gaveUp judges the moment: a pause forbids it, and only silence uses retries up.
func (c *checks) gaveUp(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, id, now := c.nodes[i], c.f.nodes[i].id, time.Now()
	if w.heldBack(now) {
		c.violated("%s was stopped by its session policy during a pause", id)
	}
	since := w.gone
	if w.registered || w.why == "" {
		since = now.Add(-2 * c.f.settings.TTL)
	}
	if err != nil && strings.Contains(err.Error(), "--session-retries") && w.silent == 0 && w.silentSince.Before(since.Add(-soon)) {
		c.violated("%s used its session retries up although etcd was never silent: %v", id, err)
	}
}
