package simulation

import (
	"sync"
	"time"

	"holdfast/agent/lease"
)

// bootOffset is the boot clock when the simulation begins.
const bootOffset = time.Hour

// host is the machine of a node, as its clocks show it. The bubble's time is the truth.
type host struct {
	mu        sync.Mutex
	paused    time.Duration // how long the virtual machine stood: no clock of its own ran
	suspended time.Duration // how long the host slept: the boot clock ran on
	stepped   time.Duration // by which somebody has set the wall clock forward
	stands    bool
}

// clock is the boot clock.
func (n *node) clock() lease.Instant { return n.clocks().Boot }

func (n *node) clocks() lease.Clocks {
	h := &n.host
	h.mu.Lock()
	defer h.mu.Unlock()
	truth := bootOffset + time.Since(n.fleet.born)
	boot := truth - h.paused
	return lease.Clocks{Boot: lease.Instant(boot), Mono: boot - h.suspended, Wall: time.Now().Add(h.stepped)}
}

// stands stops the whole host for a time: the sidecar, the guard and the broker do nothing,
// and their clocks go on, or not, as of counts it. What the sidecar waited for by a timer
// that stood too, it waits for a little longer: by rest after everybody else runs.
func (n *node) stands(d, rest time.Duration, of *time.Duration) {
	n.host.mu.Lock()
	already := n.host.stands
	n.host.stands = true
	n.host.mu.Unlock()
	if already {
		return // a machine stands once at a time
	}
	n.fleet.checks.unwell(n.index, 1)
	n.fleet.checks.stood(n.index, 1, d)
	n.broker.freeze()
	n.guard.frozen.shut()
	thaw := n.freezeLife()
	time.Sleep(d)
	n.host.mu.Lock()
	*of += d
	n.host.stands = false
	n.host.mu.Unlock()
	n.guard.frozen.release()
	n.broker.thaw()
	time.Sleep(rest)
	thaw()
	n.fleet.checks.stood(n.index, -1, d)
	n.fleet.checks.unwell(n.index, -1)
}

// freezeLife stops the sidecar that there is, and returns what lets it go on.
func (n *node) freezeLife() (thaw func()) {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil || l.leaving.Load() {
		return func() {}
	}
	l.frozen.shut()
	return l.thaw
}
