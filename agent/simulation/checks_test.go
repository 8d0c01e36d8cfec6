package simulation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// checks holds the rules against what happens.
type checks struct {
	f    *fleet
	poke chan struct{}

	mu         sync.Mutex
	nodes      []*watched
	doubles    map[string]time.Time // topics that two brokers serve, and since when
	restored   time.Time            // when etcd went back
	refreshed  time.Time            // when a new leader gave all leases their whole TTL
	topics     topics
	violations []string
	told       map[string]bool
}

func newChecks(f *fleet) *checks {
	return &checks{f: f, poke: make(chan struct{}, 1), doubles: map[string]time.Time{}, told: map[string]bool{}, topics: newTopics()}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *checks) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.f.nodes {
		c.nodes = append(c.nodes, &watched{assigned: map[string]bool{}, bare: map[string]time.Time{}})
	}
}

func (c *checks) found() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// fail notes a violation.
func (c *checks) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violated(format, args...)
}

func (c *checks) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.told[text] {
		return
	}
	c.told[text] = true
	c.f.note("VIOLATION %s", text)
	c.violations = append(c.violations, fmt.Sprintf("%.3fs: %s", time.Since(c.f.born).Seconds(), text))
}

func (c *checks) elected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshed = time.Now()
}

// forgot takes it that a sidecar's state file is an older one, or that it may not have
// heard of the newest mode.
func (c *checks) forgot(i int) {
	c.change(i, func(w *watched, _ time.Time) {
		w.forgot = true
		w.nobodyKnows()
	})
}

// nobodyKnows voids the mode if the store has lost it and the sidecar has, too.
func (w *watched) nobodyKnows() {
	if w.stateGone && w.forgot {
		w.mode = recovery.ModeRecord{}
	}
}

// The inputs. Each changes the truth and judges it.

func (c *checks) change(i int, f func(w *watched, now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	f(c.nodes[i], now)
	c.judge(i, now, "")
}

func (c *checks) sidecar(i int, runs bool) {
	c.change(i, func(w *watched, now time.Time) {
		w.sidecar = runs
		if runs {
			w.wellSince, w.detached = now, time.Time{}
			w.lives++
			w.begun = now
		}
	})
}

func (c *checks) unwell(i, sign int) {
	c.change(i, func(w *watched, now time.Time) { w.bad.change(sign, now); w.wellSince = now })
}

// network takes that something is wrong with the way to etcd, or not any more. silent:
// what is asked may not be answered at all.
func (c *checks) network(i, sign int, silent bool) {
	c.change(i, func(w *watched, now time.Time) {
		w.netBad += sign
		w.netSince = now
		if silent {
			w.silent += sign
			w.silentSince = now
		}
	})
}

func (c *checks) networks(sign int, silent bool) {
	for i := range c.f.nodes {
		c.network(i, sign, silent)
	}
}

// broker takes what changed in a broker, which is locked.
func (c *checks) broker(i int, b *broker, why string) {
	c.f.note("%s: %s", b.id, why)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	w := c.nodes[i]
	thawed := w.frozen && !b.frozen.isShut()
	w.running, w.frozen, w.serving = b.answers(), b.frozen.isShut(), b.serving()
	if thawed && w.instance != w.registrant {
		w.started = now // it has not answered before
	}
	if w.instance != b.instance && w.running {
		w.instance, w.started, w.forked, w.wellSince = b.instance, now, b.started, now
	}
	if !w.running {
		w.ended = now
	}
	c.judge(i, now, why)
}

// stored takes each revision of the store, which is locked.
func (c *checks) stored(v memory.View, ch memory.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	keys := c.f.keys
	returned := map[int]bool{}
	noted := map[int]bool{} // before this revision
	for i, w := range c.nodes {
		noted[i] = w.leave.noted
	}
	before := map[int]recovery.ModeRecord{}
	var placing placement
	if ch.Cause == memory.ByRestore {
		c.f.note("etcd goes back to revision %d", ch.Revision)
		c.restored, c.refreshed = now, now
		for _, w := range c.nodes {
			if !w.registered {
				w.create = 0
			}
		}
	}
	suspected, cuts := make([]bool, len(c.nodes)), []func(){}
	for i, w := range c.nodes {
		suspected[i] = w.suspect
	}
	for _, e := range ch.Events {
		if id, ok := keys.ParseRegistration(e.KV.Key); ok {
			i := c.index(id)
			c.registration(i, e, ch, noted[i], now)
			returned[i] = !e.Deleted && e.KV.CreateRevision == ch.Revision
		} else if id, ok := keys.ParseState(e.KV.Key); ok {
			i := c.index(id)
			before[i] = c.nodes[i].mode
			c.state(i, e, ch.Cause, now)
		} else if id, ok := keys.ParseMember(e.KV.Key); ok {
			i := c.index(id)
			c.member(i, e, ch)
			cuts = append(cuts, func() { c.cutNote(i, e, ch, now) })
		} else if id, topic, ok := keys.ParseAssignment(e.KV.Key); ok {
			i := c.index(id)
			c.f.note("%s: %s assigned: %v", id, topic, !e.Deleted)
			if e.Deleted {
				delete(c.nodes[i].assigned, topic)
			} else {
				c.nodes[i].assigned[topic] = true
			}
			placing.assigned(topic, i, e.Deleted)
		} else if topic, ok := keys.ParseOwner(e.KV.Key); ok {
			c.lock(topic, e, ch, now)
			placing.locked(topic, e.Deleted)
		} else if topic, ok := keys.ParseTopicRecord(e.KV.Key); ok {
			c.f.note("record of %s: %v", topic, !e.Deleted)
			c.topics.records[topic] = !e.Deleted
		}
	}
	for _, note := range cuts { // which may come with the registration
		note()
	}
	if ch.Cause != memory.ByRestore { // else nobody did it
		c.placed(placing, now)
	}
	c.activity()
	c.renewals(v)
	peers := 0
	for _, w := range c.nodes {
		if w.registered {
			peers++
		}
	}
	for i, w := range c.nodes {
		if peers == 0 {
			w.alone = true
		}
		had, changed := before[i]
		if !changed {
			had = w.mode
		}
		if ch.Cause != memory.ByRestore {
			c.transition(i, had, returned[i], noted[i], suspected[i], peers-1)
		}
		if (returned[i] || suspected[i]) && !w.suspect {
			w.alone = false
		}
	}
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

func (c *checks) index(id string) int { return int(id[1] - '0') }

// registration takes a change of a registration; planned: after the broker left on purpose, from
// which it comes back during a pause, too.
func (c *checks) registration(i int, e memory.Event, ch memory.Change, planned bool, now time.Time) {
	w, id := c.nodes[i], c.f.nodes[i].id
	if !e.Deleted {
		if ch.Cause != memory.ByRestore {
			w.registrant = w.instance
		}
		if e.KV.CreateRevision == ch.Revision && w.heldBack(now) && !planned && ch.Cause != memory.ByRestore {
			c.violated("%s was registered during a pause", id)
		}
		if e.KV.Lease != w.lease {
			w.bound = now
		}
		if e.KV.CreateRevision < w.create && ch.Cause != memory.ByRestore {
			c.violated("the epoch of %s went from %d back to %d", id, w.create, e.KV.CreateRevision)
		}
		if !w.registered {
			c.f.note("%s: registered, epoch %d", id, e.KV.CreateRevision)
			w.stood, w.detached = now, time.Time{}
			w.brought = ch.Cause == memory.ByRestore
		}
		w.registered, w.create, w.lease = true, e.KV.CreateRevision, e.KV.Lease
		c.judge(i, now, "")
		return
	}
	if ch.Cause == memory.ByRestore {
		w.create = 0
	}
	w.revived, w.brought = w.brought, false
	if !w.suspect {
		w.lossGone, w.lossRenewed, w.alone = now, w.renewed, false
	}
	w.registered, w.lease, w.gone, w.goneAs = false, 0, now, w.instance
	switch {
	case ch.Cause == memory.ByExpiry:
		w.why = expiry
	case c.f.stranger.Load() || ch.Cause == memory.ByRequest || ch.Cause == memory.ByRestore:
		w.why = stranger
	default:
		w.why = released
	}
	c.f.note("%s: registration gone: %s", id, w.why)
	c.judge(i, now, "registration gone")
}

func (c *checks) state(i int, e memory.Event, cause memory.Cause, now time.Time) {
	w, id := c.nodes[i], c.f.nodes[i].id
	if e.Deleted {
		c.f.note("%s: state deleted", id)
		w.stateGone = true
		w.nobodyKnows()
		return
	}
	var s struct{ Mode, Reason, By string }
	if err := json.Unmarshal([]byte(e.KV.Value), &s); err != nil {
		c.violated("state of %s cannot be read: %v", id, err)
	}
	next := recovery.ModeRecord{Mode: recovery.Mode(s.Mode), Reason: recovery.Reason(s.Reason), By: s.By}
	if next.Mode != w.mode.Mode {
		w.modeSince = now
		if next.By == recovery.ByHoldfast && cause != memory.ByRestore && w.heldBack(now) {
			c.violated("%s was made %s (%s) during a pause", id, next.Mode, next.Reason)
		}
	}
	w.mode, w.stateGone, w.forgot = next, false, false
	c.f.note("%s: %s (%s) by %s", id, s.Mode, s.Reason, s.By)
}

// transition judges one revision of one broker: what its mode was before and is now, and
// whether it registered in it; planned: after it left on purpose; suspected: it was a suspect before.
func (c *checks) transition(i int, had recovery.ModeRecord, returned, planned, suspected bool, peers int) {
	w, id := c.nodes[i], c.f.nodes[i].id
	if !w.mode.Mode.Known() {
		return
	}
	again := returned && w.why != "" // it was registered before, and that was lost
	livedOn := !w.alone && peers > 0 && !planned && c.surelyLived(i, time.Now())
	kept := c.shared(i) // but did not fare better
	if returned && w.leave.noted {
		c.violated("%s is registered, and it is still noted that it left on purpose", id)
	}
	person := w.mode.By != recovery.ByHoldfast
	lifted := suspected && !w.suspect && had.Mode == recovery.Drained && had.By == recovery.ByHoldfast && w.mode.Mode == recovery.Active && !person
	if had.Mode.Known() && had.Mode != recovery.Active && w.mode.Mode == recovery.Active && !person && !lifted && !(suspected && returned) {
		c.violated("%s was %s (%s) by %s, and no person made it active (%s)", id, had.Mode, had.Reason, had.By, w.mode.Reason)
	}
	if had.By == recovery.ByOperator && had.Mode == recovery.Drained && w.mode != had && !person {
		c.violated("a person's drain of %s was made %s (%s)", id, w.mode.Mode, w.mode.Reason)
	}
	if c.restored.After(w.gone) || !c.restored.IsZero() && !c.restored.Before(w.lossGone) || w.revived {
		return // a backup does not tell who lived meanwhile
	}
	forgiving := c.f.settings.Policy == "reconnect" && w.goneAs == w.instance
	if (again || lifted) && livedOn && w.mode.Mode == recovery.Active && !forgiving && !kept {
		c.violated("%s is registered and active (%s) after a loss (%s) during which others lived on", id, w.mode.Reason, w.why)
	}
	byRecovery := w.mode.Reason == recovery.ReasonRegistrationExpired || w.mode.Reason == recovery.ReasonStaleRestart
	switch drained := w.mode.Mode == recovery.Drained && !person && byRecovery; {
	case w.suspect && !drained && !person: // a person's word ends it with the next look
		c.violated("%s is a suspect, and %s (%s)", id, w.mode.Mode, w.mode.Reason)
	case drained && had.Mode.Known() && had.Mode != recovery.Drained && !w.suspect:
		c.violated("%s was drained for good (%s) before it was asked whether somebody lived on", id, w.mode.Reason)
	case w.suspect && !suspected && !again:
		c.violated("%s is a suspect (%s), and was not lost", id, w.mode.Reason)
	case drained && suspected && !w.suspect && !c.somebodyLived(i):
		c.violated("%s stays drained (%s) though nobody lived on (empty meanwhile: %v)", id, w.mode.Reason, w.alone)
	}
}

// judge looks at one node after a change of it. cause is what a broker did, or that the
// registration went.
func (c *checks) judge(i int, now time.Time, cause string) {
	w, id := c.nodes[i], c.f.nodes[i].id
	c.judgeDoubles(now)
	c.judgeLocks(i, now, cause)
	if strings.HasPrefix(cause, "loaded") && w.paused(now, time.Second) && w.bad.count == 0 {
		c.violated("%s %s during a pause", id, cause)
	}
	if w.registered || w.why == "" || !w.serves() {
		w.zombie = time.Time{}
		return
	}
	well := w.wellFor(now)
	// The orderly end of a lease, or the sidecar's own: everything was known in time.
	foreseen := w.why != stranger
	switch {
	case cause == "registration gone" && (w.why == expiry && w.excuse(now, c.f.settings) == "" || w.why == released && well > obeyed):
		c.violated("%s serves %v although its registration is gone (%s)", id, w.serving, w.why)
	case strings.HasPrefix(cause, "loaded") && foreseen && well > 2*time.Second:
		c.violated("%s %s although its registration is gone (%s)", id, cause, w.why)
	}
	if w.zombie.IsZero() {
		w.zombie = now
	}
}

// judgeDoubles notes which topics two brokers serve.
func (c *checks) judgeDoubles(now time.Time) {
	count := map[string]int{}
	for _, w := range c.nodes {
		if w.serves() {
			for _, topic := range w.serving {
				count[topic]++
			}
		}
	}
	for topic, n := range count {
		if _, known := c.doubles[topic]; n > 1 && !known {
			c.doubles[topic] = now
			c.f.note("%s is served by %d brokers", topic, n)
			c.judgeDouble(topic, now)
			select {
			case c.poke <- struct{}{}:
			default:
			}
		}
	}
	for topic := range c.doubles {
		if count[topic] < 2 {
			delete(c.doubles, topic)
		}
	}
}
