package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// manyMoves is how often a topic may move while the same brokers are active: home, and
// once more for each sidecar that did not know all of them yet.
const manyMoves = 3

// topics is the truth about topics, as the store shows it.
type topics struct {
	records map[string]bool
	locks   map[string]locked
	moves   map[string]int // of each topic since the set of active brokers is what it is
	active  []bool
	changes int // of places
}

// locked is who holds an ownership lock.
type locked struct {
	by    int
	lease int64
}

func newTopics() topics {
	return topics{records: map[string]bool{}, locks: map[string]locked{}, moves: map[string]int{}}
}

// deleteTopic removes the topic's record and all its places at once.
func (f *fleet) deleteTopic(topic string) {
	ops := []*pb.RequestOp{del(f.keys.TopicRecord(topic))}
	for _, n := range f.nodes {
		ops = append(ops, del(f.keys.Assignment(n.id, topic)))
	}
	f.admin(func() { _, _ = f.store.Txn(f.life, &pb.TxnRequest{Success: ops}) })
}

// placement is what one revision does to the places and locks of topics.
type placement struct {
	got, lost map[string]int // who
	took      map[string]bool
}

func (p *placement) assigned(topic string, i int, deleted bool) {
	if p.got == nil {
		p.got, p.lost = map[string]int{}, map[string]int{}
	}
	if deleted {
		p.lost[topic] = i
	} else {
		p.got[topic] = i
	}
}

func (p *placement) locked(topic string, deleted bool) {
	if p.took == nil {
		p.took = map[string]bool{}
	}
	p.took[topic] = !deleted
}

// lock takes a change of an ownership lock. Whoever releases one does not serve its topic.
func (c *checks) lock(topic string, e memory.Event, ch memory.Change, now time.Time) {
	if !e.Deleted {
		var by int
		if at := strings.Index(e.KV.Value, `"n`); at >= 0 {
			by = int(e.KV.Value[at+2] - '0')
		}
		c.f.note("n%d: lock of %s under %x", by, topic, e.KV.Lease)
		c.topics.locks[topic] = locked{by, e.KV.Lease}
		return
	}
	had := c.topics.locks[topic]
	delete(c.topics.locks, topic)
	c.f.note("n%d: lock of %s gone: %s", had.by, topic, ch.Cause)
	w := c.nodes[had.by]
	if ch.Cause == memory.ByRequest && w.serves() && slices.Contains(w.serving, topic) && w.wellFor(now) > 2*time.Second {
		c.violated("n%d released the lock of %s, and serves it", had.by, topic)
	}
}

// placed judges what one revision did to places: by the sidecars, since nobody else
// places topics in rendezvous mode, but a person deletes them.
func (c *checks) placed(p placement, now time.Time) {
	t := &c.topics
	if p.got != nil {
		t.changes++
	}
	if c.f.settings.Failover == "" {
		return
	}
	for topic, to := range p.got {
		from, moved := p.lost[topic]
		switch {
		case p.took[topic] && c.nodes[to].heldBack(now):
			c.violated("n%d took %s during a pause", to, topic)
		case p.took[topic] && moved && c.nodes[from].registered:
			c.violated("n%d took %s from n%d, which is registered", to, topic, from)
		case p.took[topic] && moved && c.f.settings.Failover == "hold":
			c.violated("n%d took %s from n%d, which was to hold it", to, topic, from)
		case p.took[topic] && !moved && !t.records[topic]:
			c.violated("n%d took %s, which does not exist any more", to, topic)
		case !p.took[topic]:
			if by, held := t.locks[topic]; held {
				c.violated("%s was given to n%d, and its lock is n%d's", topic, to, by.by)
			}
			if w := c.nodes[from]; moved && w.serves() && slices.Contains(w.serving, topic) && w.wellFor(now) > 2*time.Second {
				c.violated("n%d gave %s to n%d, and serves it", from, topic, to)
			}
		}
		if moved && c.allTold(now) {
			if t.moves[topic]++; t.moves[topic] > manyMoves {
				c.violated("%s moved %d times while the same brokers were active", topic, t.moves[topic])
			}
		}
	}
}

// activity notes who is active, and begins to count anew when that changes.
func (c *checks) activity() {
	active := make([]bool, len(c.nodes))
	for i, w := range c.nodes {
		active[i] = w.registered && (w.mode.Mode == recovery.Active || !w.mode.Mode.Known())
	}
	if !slices.Equal(active, c.topics.active) {
		c.topics.active = active
		clear(c.topics.moves)
	}
}

// owns reports whether the topic's lock is the node's, under its registration's lease.
// Until a new lease is known, locks are under the one before.
func (c *checks) owns(i int, topic string, now time.Time) bool {
	w := c.nodes[i]
	l, held := c.topics.locks[topic]
	return held && l.by == i && (l.lease == w.lease || now.Sub(w.bound) < heard)
}

// judgeLocks looks at what one broker serves without the locks, after a change of it.
func (c *checks) judgeLocks(i int, now time.Time, cause string) {
	if !c.f.settings.Locks {
		return
	}
	w := c.nodes[i]
	if topic, loaded := strings.CutPrefix(cause, "loaded "); loaded && w.registered && !c.owns(i, topic, now) &&
		w.wellFor(now) > 2*time.Second && !unforeseen(w, now) {
		c.violated("n%d %s without its lock", i, cause)
	}
}

// judgeDouble judges a topic at the moment at which two brokers begin to serve it: the
// one without the lock must have an excuse.
func (c *checks) judgeDouble(topic string, now time.Time) {
	if !c.f.settings.Locks {
		return
	}
	for i, w := range c.nodes {
		if w.registered && w.serves() && slices.Contains(w.serving, topic) && !c.owns(i, topic, now) && !unforeseen(w, now) &&
			w.wellFor(now) > c.f.settings.margin()+4*time.Second && now.Sub(w.stood) > heard {
			c.violated("two brokers serve %s, and n%d without its lock", topic, i)
		}
	}
}

// overdueLocks finds topics that are served without their locks for too long.
func (c *checks) overdueLocks(now time.Time) {
	if !c.f.settings.Locks {
		return
	}
	for i, w := range c.nodes {
		for topic := range w.bare {
			if !slices.Contains(w.serving, topic) {
				delete(w.bare, topic)
			}
		}
		for _, topic := range w.serving {
			_, others := c.topics.locks[topic]
			// An orphan that nobody else has stays while recovery is paused.
			if !w.registered || !w.serves() || c.owns(i, topic, now) || !others && w.lately(now) {
				delete(w.bare, topic)
			} else if since, known := w.bare[topic]; !known {
				w.bare[topic] = now
			} else if w.bounded(since, now, c.f.settings) {
				c.violated("n%d has served %s for %v without its lock", i, topic, now.Sub(since))
				w.bare[topic] = now
			}
		}
	}
}

// placements counts the changes of places so far.
func (c *checks) placements() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topics.changes
}

// misplaced says which topic is not where it must be, in rendezvous mode; empty: none.
// That whoever has a place serves it is seen elsewhere.
func (c *checks) misplaced() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f.settings.Failover == "" || !slices.Contains(c.topics.active, true) {
		return ""
	}
	move := c.f.settings.Failover == "move"
	exist := maps.Clone(c.topics.records)
	all := true
	for _, w := range c.nodes {
		all = all && w.registered
		for topic := range w.assigned {
			exist[topic] = true
		}
	}
	for topic, there := range exist {
		if !there {
			continue
		}
		var at []int
		for i, w := range c.nodes {
			if w.assigned[topic] {
				at = append(at, i)
			}
		}
		switch {
		case len(at) == 0:
			return topic + " is nobody's"
		case len(at) > 1 && (move || all):
			return fmt.Sprintf("%s is assigned to the brokers %v", topic, at)
		case move && !c.topics.active[at[0]]:
			return fmt.Sprintf("%s stays with n%d, which is not active", topic, at[0])
		case len(at) == 1 && c.topics.active[at[0]] && c.topics.locks[topic] != locked{at[0], c.nodes[at[0]].lease}:
			return fmt.Sprintf("%s is n%d's without its lock", topic, at[0])
		}
	}
	return ""
}

// allTold reports whether every sidecar has had the time to read who is active.
func (c *checks) allTold(now time.Time) bool {
	return !slices.ContainsFunc(c.nodes, func(w *watched) bool { return w.netFor(now) < soon })
}
