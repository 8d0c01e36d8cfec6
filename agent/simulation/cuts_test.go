package simulation

import (
	"encoding/json"
	"time"

	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// This file is the truth about losses that befall a fleet and not one broker.

// cutNote takes what the member record says of a cut that a registration outlived.
func (c *checks) cutNote(i int, e memory.Event, ch memory.Change, now time.Time) {
	w := c.nodes[i]
	var m struct{ Cut struct{ Revision int64 } }
	if e.Deleted || json.Unmarshal([]byte(e.KV.Value), &m) != nil || m.Cut.Revision == w.cutNoted {
		return
	}
	w.cutNoted = m.Cut.Revision
	if w.cutNoted == 0 || ch.Cause == memory.ByRestore {
		return
	}
	id := c.f.nodes[i].id
	c.f.note("%s: was cut off", id)
	w.cutAt = now
	switch well := min(w.netFor(now), w.wellFor(now)); {
	case !w.registered:
		c.violated("%s notes that it was cut off, and is not registered", id)
	case well > c.f.settings.granted()+soon && now.Sub(c.restored) > c.f.settings.granted()+soon && !w.lately(now):
		c.violated("%s notes that it was cut off, and was well for %v", id, well)
	}
}

// shared reports whether as many others lost their registrations with the node, or were cut
// off, as went through it all the while. They look the same from when a renewal of its lease can
// have been confirmed last: where answers are cut off, requests may renew it for longer.
func (c *checks) shared(i int) bool {
	w := c.nodes[i]
	if w.mode.Reason != recovery.ReasonFleetExpired && w.mode.Reason != recovery.ReasonFullClusterRestart {
		return false
	}
	since := w.lossGone.Add(-2*c.f.settings.granted() - heard)
	alike, steady := 0, 0
	for j, other := range c.nodes {
		switch {
		case j == i || other.create == 0:
		case other.gone.After(since) || other.cutAt.After(since):
			alike++
		case other.registered && other.stood.Before(since):
			steady++
		}
	}
	return alike > 0 && alike >= steady
}
