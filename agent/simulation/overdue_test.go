package simulation

import (
	"context"
	"slices"
	"time"

	"holdfast/recovery"
)

// run looks at what only time makes wrong.
func (c *checks) run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.f.store.Inspect(c.look) // nothing else tells of a renewal
		case <-c.poke:
		}
		c.overdue()
		c.askReady()
	}
}

// overdue finds what should have ended by now.
func (c *checks) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	s := c.f.settings
	for i, w := range c.nodes {
		id := c.f.nodes[i].id
		if !w.zombie.IsZero() && (w.bounded(w.zombie, now, s) || w.unfenced(now, s)) {
			c.violated("%s has served %v for %v without a registration (%s)", id, w.serving, now.Sub(w.zombie), w.why)
			w.zombie = now // once is enough
		}
		if w.registered && w.mode.Mode == recovery.Drained && w.serves() &&
			min(w.wellFor(now), w.netFor(now), now.Sub(w.modeSince)) > heard && !w.lately(now) && now.Sub(w.meddled) > soon {
			c.violated("%s is drained (%s) and serves %v", id, w.mode.Reason, w.serving)
			w.modeSince = now
		}
		if w.registered && !w.running && !w.ended.IsZero() && w.sidecar && w.bad.count == 0 && now.Sub(later(later(w.ended, c.refreshed), w.wellSince)) > s.granted()+soon+heard {
			c.violated("%s is registered, and its broker does not run since %v", id, now.Sub(w.ended))
			w.ended = now
		}
	}
	c.overdueLocks(now)
	for topic, since := range c.doubles {
		excused := false
		for _, w := range c.nodes {
			if w.serves() && slices.Contains(w.serving, topic) {
				// Without locks nobody knows that another serves it, and a pause holds orphans.
				excused = excused || !w.bounded(since, now, s) || !s.Locks && w.lately(now)
			}
		}
		if !excused {
			c.violated("two brokers have served %s for %v", topic, now.Sub(since))
			c.doubles[topic] = now
		}
	}
}

// askReady asks the sidecars of which it matters whether they are ready. It waits for
// none: one may freeze over the question.
func (c *checks) askReady() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, w := range c.nodes {
		double := w.serves() && slices.ContainsFunc(w.serving, func(topic string) bool { _, ok := c.doubles[topic]; return ok })
		if w.sidecar && (double || !w.registered && w.why != "") {
			c.f.aside.Go(func() { c.readiness(i) })
		}
	}
}

func (c *checks) readiness(i int) {
	asked := time.Now()
	ready := c.f.nodes[i].ready()
	status, told := c.f.nodes[i].status()
	now := time.Now()
	if now != asked {
		return
	}
	c.mu.Lock()
	w, id := c.nodes[i], c.f.nodes[i].id
	if told && !w.registered && w.sidecar {
		detached := status.Attachment == "detached"
		if !detached && !w.detached.IsZero() && w.detached.Before(now) { // not a moment ago: answers overtake each other
			c.violated("%s came back although its registration has been gone all the while (%s)", id, w.why)
		}
		// What a stranger takes may have been looked at just before.
		switch sure := detached && (w.why != stranger || now.Sub(w.gone) > heard); {
		case !sure:
			w.detached = time.Time{}
		case w.detached.IsZero():
			w.detached = now
		}
	}
	if !ready {
		c.mu.Unlock()
		return
	}
	if !w.registered && (w.why != stranger && !w.standing.within(noticed, now) && !w.blinkedSince(now, c.f.settings) || w.bounded(w.gone, now, c.f.settings)) {
		c.violated("%s is ready without a registration (%s)", id, w.why)
	}
	var others []int
	topic := ""
	for name := range c.doubles {
		for j, other := range c.nodes {
			if j != i && w.serves() && slices.Contains(w.serving, name) && other.serves() && slices.Contains(other.serving, name) &&
				!unforeseen(w, now) && !unforeseen(other, now) {
				others, topic = append(others, j), name
			}
		}
	}
	c.mu.Unlock()
	for _, j := range others {
		if c.f.nodes[j].ready() && time.Now() == asked {
			c.mu.Lock()
			if _, still := c.doubles[topic]; still {
				c.violated("%s is served by %s and %s, and both are ready", topic, id, c.f.nodes[j].id)
			}
			c.mu.Unlock()
		}
	}
}

// stubbornly notes that a broker refuses to quiesce, or does so no more: what it serves
// then nobody could prevent, and readiness does not wait for ever.
func (c *checks) stubbornly(i int, d time.Duration) {
	c.change(i, func(w *watched, now time.Time) {
		if until := now.Add(d + soon); until.After(w.stubborn) {
			w.stubborn = until
		}
	})
}

// unforeseen reports whether somebody else took the registration not long ago, or the
// broker refused to obey.
func unforeseen(w *watched, now time.Time) bool {
	return now.Before(w.stubborn) || w.why == stranger && (!w.registered || now.Sub(w.gone) < heard)
}
