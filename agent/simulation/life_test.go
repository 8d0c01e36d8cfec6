package simulation

import (
	"time"

	"holdfast/cluster/memory"
)

// This file is the truth about who lived on while somebody was not registered.

// elect has the store elect a leader, who lifts every lease.
func (f *fleet) elect(how func()) {
	f.store.Inspect(f.checks.look)
	how()
	f.checks.elected()
}

func (c *checks) look(v memory.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewals(v)
}

// renewals notes when the lease of each registration was last renewed. What a leader
// lifted was not.
func (c *checks) renewals(v memory.View) {
	for _, w := range c.nodes {
		if l, ok := v.Lease(w.lease); ok && w.registered {
			if at := l.Deadline.Add(-l.TTL); at.After(c.refreshed) {
				w.renewed = later(w.renewed, at)
			}
		}
	}
}

// somebodyLived reports whether anybody renewed or registered since the registration went that is
// asked about, or left on purpose since its last renewal: who did not could not see that.
func (c *checks) somebodyLived(i int) bool {
	for j, w := range c.nodes {
		if j != i && (w.renewed.After(c.nodes[i].lossGone) || w.leave.at.After(c.nodes[i].lossRenewed)) {
			return true
		}
	}
	return false
}

// surelyLived reports whether a peer that was registered before the node was well all the
// while, and is: since the node's last renewal, one TTL before its registration went, because
// who came back after that may have been down with it, and the node cannot tell.
func (c *checks) surelyLived(i int, now time.Time) bool {
	gone := now.Sub(c.nodes[i].lossGone) + c.f.settings.granted()
	for j, w := range c.nodes {
		well := w.registered && w.running && !w.frozen && min(w.wellFor(now), w.netFor(now)) > gone+heard
		if j != i && well && w.stood.Before(c.nodes[i].lossGone) {
			return true
		}
	}
	return false
}
