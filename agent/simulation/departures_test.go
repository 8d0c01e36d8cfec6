package simulation

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"holdfast/cluster/memory"
)

// departing is the note of a planned stop of one node, as the store holds it.
type departing struct {
	noted   bool
	at      time.Time
	allowed bool // the node was asked to leave, its broker ran, and nobody has come back since
}

// asked takes that an operator, or whatever stops the node, asks it to leave.
func (c *checks) asked(i int) {
	c.f.note("%s is asked to leave", c.f.nodes[i].id)
	c.change(i, func(w *watched, _ time.Time) { w.leave.allowed = w.running })
}

// member takes what the member record says of a planned stop.
func (c *checks) member(i int, e memory.Event, ch memory.Change) {
	w, id := c.nodes[i], c.f.nodes[i].id
	var m struct{ Left, Suspect json.RawMessage }
	if !e.Deleted && json.Unmarshal([]byte(e.KV.Value), &m) != nil {
		c.violated("the member record of %s cannot be read", id)
	}
	if w.suspect = len(m.Suspect) > 0; !w.suspect {
		w.suspectSince = time.Time{}
	} else if w.suspectSince.IsZero() {
		w.suspectSince = time.Now()
	}
	was := w.leave.noted
	w.leave.noted = len(m.Left) > 0
	if !w.leave.noted || was || ch.Cause == memory.ByRestore {
		return
	}
	c.f.note("%s: leaves on purpose", id)
	w.leave.at = time.Now()
	switch {
	case !w.registered:
		c.violated("it is noted that %s leaves on purpose, and it is not registered", id)
	case w.mode.Mode != "active":
		c.violated("it is noted that %s leaves on purpose, and it is %s (%s)", id, w.mode.Mode, w.mode.Reason)
	case w.serves():
		c.violated("it is noted that %s leaves on purpose, and it serves %v", id, w.serving)
	case !w.leave.allowed:
		c.violated("it is noted that %s leaves on purpose, and nobody asked a broker that ran to", id)
	}
}

// leave asks the node to leave, as an operator does before a restart of the broker.
func (n *node) leave(e event) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.fleet.checks.asked(n.index)
	answer, ok := n.ask(ctx, "--control-socket", http.MethodPost, "/v1/leave", `{"timeout_seconds":3}`)
	if ok {
		n.fleet.note("%s: leave answered %d", n.id, answer.Code)
	}
	if e.Arg == 1 {
		return
	}
	n.broker.kill()
	time.Sleep(e.For)
	n.broker.start()
}

// lameDuck has the broker end by its own word. It has its time for that, and is active when it is
// back within its lease.
func (n *node) lameDuck(e event) {
	b, checks := n.broker, n.fleet.checks
	checks.unwell(n.index, 1)
	defer checks.unwell(n.index, -1)
	b.set(func() {
		b.leaving = true
		for topic := range b.topics {
			b.topics[topic] = false
		}
	})
	time.Sleep(e.For)
	b.set(func() {
		if !b.running || !b.leaving {
			checks.fail("%s said that it ends, and did not have its time for that", n.id)
		}
	})
	b.kill()
	time.Sleep(time.Duration(e.Arg) * time.Millisecond)
	b.start()
	time.Sleep(10 * time.Second)
	if s, ok := n.status(); !ok || s.Mode != "active" {
		checks.fail("%s said that it ends, and is %s when it is back", n.id, s.Mode)
	}
}
