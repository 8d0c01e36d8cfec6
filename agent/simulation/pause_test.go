package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"holdfast/agent/control"
)

// pause has a person pause recovery. What is known of it is what was answered.
func (n *node) pause(d time.Duration) {
	n.fleet.checks.unpaused(n.index) // the one before is replaced, whatever is answered
	body := fmt.Sprintf(`{"owner":"drill","reason":"drill","for_seconds":%v}`, d.Seconds())
	if answer, ok := n.setPause("pause", body); ok && answer.Pause != nil {
		n.fleet.checks.paused(n.index, answer.Pause.Until)
	}
}

func (n *node) resume() {
	n.fleet.checks.unpaused(n.index)
	n.setPause("resume", "")
}

func (n *node) setPause(verb, body string) (a control.PauseAnswer, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, ok := n.ask(ctx, "--control-socket", http.MethodPost, "/v1/"+verb, body)
	if !ok {
		return a, false
	}
	n.fleet.note("%s: %s answered %d", n.id, verb, answer.Code)
	return a, answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &a) == nil
}

func (c *checks) paused(i int, until time.Time) {
	c.change(i, func(w *watched, now time.Time) { w.pausedFrom, w.pausedUntil = now, until })
}

// unpaused takes it that a pause may be over, or be forgotten.
func (c *checks) unpaused(i int) {
	c.change(i, func(w *watched, now time.Time) {
		if now.Before(w.pausedUntil) {
			w.pausedUntil = now
		}
	})
}

// paused reports whether recovery has been paused for longer than d, and is.
func (w *watched) paused(now time.Time, d time.Duration) bool {
	return now.Before(w.pausedUntil) && now.Sub(w.pausedFrom) > d
}

// lately reports whether a pause may have held something back that is not yet caught up.
func (w *watched) lately(now time.Time) bool {
	return !w.pausedUntil.IsZero() && now.Sub(w.pausedUntil) < heard
}

// inFlight is how long a request that was sent before a pause may take to be carried out.
const inFlight = 8 * time.Second

// heldBack reports whether nothing that a pause holds back may reach etcd: what was sent
// before it has arrived.
func (w *watched) heldBack(now time.Time) bool {
	lasted := now.Sub(w.pausedFrom)
	return w.paused(now, time.Second) && w.bad.count == 0 && (w.netFor(now) > lasted+inFlight || min(w.netFor(now), lasted) > inFlight)
}
