package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// Bounds of what cannot be prevented, from the moment on at which all is well.
const (
	// soon is for what sidecar and broker have between themselves: health verdicts, the
	// identity of a new process, and a fence that is begun anew each second.
	soon = 6 * time.Second
	// heard is for what etcd has to tell: the longest pause before a lost watch or an
	// acquisition is tried again is 5 s.
	heard = 12 * time.Second
)

// Causes for which a registration goes.
const (
	expiry   = "expiry"
	stranger = "stranger" // revoked or deleted by somebody else
	released = "released" // by the sidecar itself
)

// watched is the truth about one node, as the checks saw it happen.
type watched struct {
	// The store.
	registered bool
	create     int64 // of the registration, or of the last one
	lease      int64
	gone       time.Time // since when it is not registered
	why        string
	alone      bool // since then there was a moment without any registration
	mode       recovery.ModeRecord
	modeSince  time.Time
	stateGone  bool // the state key was deleted, and not written again
	forgot     bool // the sidecar's memory went back, and no state was written since
	goneAs     int  // broker process when the registration went
	assigned   map[string]bool
	// The broker.
	running, frozen bool
	instance        int
	serving         []string
	// Sidecar, broker and network.
	sidecar      bool
	sidecarSince time.Time
	attached     bool // for sure, in this life of the sidecar
	detached     bool // for sure, since the registration went
	guarded      int  // broker process for which there was a guard, armed, for sure
	bad          int
	wellSince    time.Time
	netBad       int
	netSince     time.Time

	stubborn time.Time // until when it could not be made to quiesce

	stood  time.Time // since when the registration stood, or had
	ended  time.Time // since when the broker's process does not run
	zombie time.Time // since when it serves without a registration; zero: it does not
}

func (w *watched) serves() bool { return w.running && !w.frozen && len(w.serving) > 0 }

// wellFor is how long the sidecar has run and the broker has done as it was told.
func (w *watched) wellFor(now time.Time) time.Duration {
	if !w.sidecar || w.bad > 0 {
		return 0
	}
	return now.Sub(w.wellSince)
}

func (w *watched) netFor(now time.Time) time.Duration {
	if w.netBad > 0 {
		return 0
	}
	return now.Sub(w.netSince)
}

// bounded reports whether the node has had the time to end what it could not prevent and
// what began at since.
func (w *watched) bounded(since, now time.Time, s settings) bool {
	if w.wellFor(now) < soon || now.Sub(since) < soon {
		return false
	}
	// Etcd could be asked, or whatever a lease was worth is over. A sidecar that has just
	// started waits for the end of its predecessor's lease.
	patience := s.TTL + soon
	return w.netFor(now) >= heard && now.Sub(since) >= heard ||
		now.Sub(w.sidecarSince) >= patience && now.Sub(w.gone) >= patience && now.Sub(since) >= patience
}

// overripe is bounded for what is served without a registration: a sidecar that was
// attached knows the end of its lease by itself, and fences what starts after it.
func (w *watched) overripe(now time.Time, s settings) bool {
	return w.bounded(w.zombie, now, s) ||
		w.attached && w.why != stranger && min(w.wellFor(now), now.Sub(w.zombie)) >= soon
}

// checks holds the rules against what happens.
type checks struct {
	f    *fleet
	poke chan struct{}

	mu         sync.Mutex
	nodes      []*watched
	doubles    map[string]time.Time // topics that two brokers serve, and since when
	refreshed  time.Time            // when a new leader gave all leases their whole TTL
	violations []string
	told       map[string]bool
}

func newChecks(f *fleet) *checks {
	return &checks{f: f, poke: make(chan struct{}, 1), doubles: map[string]time.Time{}, told: map[string]bool{}}
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
		c.nodes = append(c.nodes, &watched{assigned: map[string]bool{}})
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
			w.sidecarSince, w.wellSince, w.attached, w.detached = now, now, false, false
		}
	})
}

func (c *checks) leaving(i int) { c.f.note("%s is asked to stop", c.f.nodes[i].id) }

func (c *checks) unwell(i, sign int) {
	c.change(i, func(w *watched, now time.Time) { w.bad += sign; w.wellSince = now })
}

func (c *checks) network(i, sign int) {
	c.change(i, func(w *watched, now time.Time) { w.netBad += sign; w.netSince = now })
}

func (c *checks) networks(sign int) {
	for i := range c.f.nodes {
		c.network(i, sign)
	}
}

// broker takes what changed in a broker, which is locked.
func (c *checks) broker(i int, b *broker, why string) {
	c.f.note("%s: %s", b.id, why)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	w := c.nodes[i]
	w.running, w.frozen, w.serving = b.running, b.frozen.isShut(), b.serving()
	if w.instance != b.instance {
		w.instance, w.wellSince = b.instance, now
	}
	if !w.running {
		w.ended = now
	}
	c.judge(i, now, why)
}

// stored takes each revision of the store, which is locked.
func (c *checks) stored(_ memory.View, ch memory.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	keys := c.f.keys
	returned := map[int]bool{}
	before := map[int]recovery.ModeRecord{}
	for _, e := range ch.Events {
		if id, ok := keys.ParseRegistration(e.KV.Key); ok {
			i := c.index(id)
			c.registration(i, e, ch, now)
			returned[i] = !e.Deleted && e.KV.CreateRevision == ch.Revision
		} else if id, ok := keys.ParseState(e.KV.Key); ok {
			i := c.index(id)
			before[i] = c.nodes[i].mode
			c.state(i, e, now)
		} else if id, topic, ok := keys.ParseAssignment(e.KV.Key); ok {
			i := c.index(id)
			c.f.note("%s: %s assigned: %v", id, topic, !e.Deleted)
			if e.Deleted {
				delete(c.nodes[i].assigned, topic)
			} else {
				c.nodes[i].assigned[topic] = true
			}
		}
	}
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
		c.transition(i, had, returned[i], peers-1)
		if returned[i] {
			w.alone = false
		}
	}
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

func (c *checks) index(id string) int { return int(id[1] - '0') }

func (c *checks) registration(i int, e memory.Event, ch memory.Change, now time.Time) {
	w, id := c.nodes[i], c.f.nodes[i].id
	if !e.Deleted {
		if e.KV.CreateRevision < w.create {
			c.violated("the epoch of %s went from %d back to %d", id, w.create, e.KV.CreateRevision)
		}
		if !w.registered {
			c.f.note("%s: registered, epoch %d", id, e.KV.CreateRevision)
			w.stood, w.detached = now, false
		}
		w.registered, w.create, w.lease = true, e.KV.CreateRevision, e.KV.Lease
		c.judge(i, now, "")
		return
	}
	w.registered, w.lease, w.gone, w.goneAs, w.alone = false, 0, now, w.instance, false
	switch {
	case ch.Cause == memory.ByExpiry:
		w.why = expiry
	case c.f.stranger.Load() || ch.Cause == memory.ByRequest:
		w.why = stranger
	default:
		w.why = released
	}
	c.f.note("%s: registration gone: %s", id, w.why)
	c.judge(i, now, "registration gone")
}

func (c *checks) state(i int, e memory.Event, now time.Time) {
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
	}
	w.mode, w.stateGone, w.forgot = next, false, false
	c.f.note("%s: %s (%s) by %s", id, s.Mode, s.Reason, s.By)
}

// transition judges one revision of one broker: what its mode was before and is now, and
// whether it registered in it.
func (c *checks) transition(i int, had recovery.ModeRecord, returned bool, peers int) {
	w, id := c.nodes[i], c.f.nodes[i].id
	if !w.mode.Mode.Known() {
		return
	}
	again := returned && w.why != "" // it was registered before, and that was lost
	livedOn := !w.alone && peers > 0 // somebody was registered all the while
	person := w.mode.By != recovery.ByHoldfast
	if had.Mode.Known() && had.Mode != recovery.Active && w.mode.Mode == recovery.Active && !person {
		c.violated("%s was %s (%s) by %s, and no person made it active (%s)", id, had.Mode, had.Reason, had.By, w.mode.Reason)
	}
	if had.By == recovery.ByOperator && had.Mode == recovery.Drained && w.mode != had && !person {
		c.violated("a person's drain of %s was made %s (%s)", id, w.mode.Mode, w.mode.Reason)
	}
	forgiving := c.f.settings.Policy == "reconnect" && w.goneAs == w.instance
	if again && livedOn && w.mode.Mode == recovery.Active && !forgiving {
		c.violated("%s is registered and active (%s) after a loss (%s) during which others lived on", id, w.mode.Reason, w.why)
	}
	byRecovery := w.mode.Reason == recovery.ReasonRegistrationExpired || w.mode.Reason == recovery.ReasonStaleRestart
	if had.Mode.Known() && had.Mode != recovery.Drained && w.mode.Mode == recovery.Drained && !person && byRecovery && !(again && livedOn) {
		c.violated("%s was drained (%s) though it was not declared dead by a living cluster (lost: %v, peers: %d, empty meanwhile: %v)",
			id, w.mode.Reason, again, peers, w.alone)
	}
}

// judge looks at one node after a change of it. cause is what a broker did, or that the
// registration went.
func (c *checks) judge(i int, now time.Time, cause string) {
	w, id := c.nodes[i], c.f.nodes[i].id
	c.judgeDoubles(now)
	if w.registered || w.why == "" || !w.serves() {
		w.zombie = time.Time{}
		return
	}
	well := w.wellFor(now)
	// The orderly end of a lease, or the sidecar's own: everything was known in time.
	foreseen := w.why != stranger
	held := well > c.f.settings.margin()+4*time.Second && now.Sub(w.sidecarSince) > c.f.settings.TTL+time.Second
	if w.why == released { // not one that was taken back because its answer was lost
		held = well > 4*time.Second && now.Sub(w.stood) > soon
	}
	switch {
	case cause == "registration gone" && foreseen && (held || c.f.settings.Stop && w.why == expiry && w.guarded == w.instance):
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

// run looks at what only time makes wrong.
func (c *checks) run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
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
		if w.registered && min(w.wellFor(now), w.netFor(now), now.Sub(w.stood)) >= heard {
			w.attached, w.guarded = true, w.instance
		}
		if !w.zombie.IsZero() && w.overripe(now, s) {
			c.violated("%s has served %v for %v without a registration (%s)", id, w.serving, now.Sub(w.zombie), w.why)
			w.zombie = now // once is enough
		}
		if w.registered && w.mode.Mode == recovery.Drained && w.serves() &&
			min(w.wellFor(now), w.netFor(now), now.Sub(w.modeSince)) > heard {
			c.violated("%s is drained (%s) and serves %v", id, w.mode.Reason, w.serving)
			w.modeSince = now
		}
		if w.registered && !w.running && !w.ended.IsZero() && w.sidecar && w.bad == 0 && now.Sub(later(later(w.ended, c.refreshed), w.wellSince)) > s.TTL+soon+heard {
			c.violated("%s is registered, and its broker does not run since %v", id, now.Sub(w.ended))
			w.ended = now
		}
	}
	for topic, since := range c.doubles {
		excused := false
		for _, w := range c.nodes {
			if w.serves() && slices.Contains(w.serving, topic) {
				excused = excused || !w.bounded(since, now, s)
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
		if !detached && w.detached {
			c.violated("%s came back although its registration has been gone all the while (%s)", id, w.why)
		}
		// What a stranger takes may have been looked at just before.
		w.detached = detached && (w.why != stranger || now.Sub(w.gone) > heard)
	}
	if !ready {
		c.mu.Unlock()
		return
	}
	if !w.registered && (w.why != stranger || w.bounded(w.gone, now, c.f.settings)) {
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

// What the schedule and the end ask for.

type wanted struct {
	registered        bool
	create, lease     int64
	mode              string
	assigned, serving []string
}

func (c *checks) wanted(i int) wanted {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.nodes[i]
	var assigned []string
	for topic := range w.assigned {
		assigned = append(assigned, topic)
	}
	slices.Sort(assigned)
	return wanted{registered: w.registered, create: w.create, lease: w.lease, mode: string(w.mode.Mode), assigned: assigned, serving: w.serving}
}

// owner is whom the topic is assigned to; -1: nobody.
func (c *checks) owner(topic string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.IndexFunc(c.nodes, func(w *watched) bool { return w.assigned[topic] })
}

// reached reports whether the node has been told by etcd all that happened until then,
// or is not registered.
func (c *checks) reached(i int, then time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, now := c.nodes[i], time.Now()
	return !w.registered || min(w.wellFor(now), w.netFor(now), now.Sub(then)) > soon
}

// stranded is the topics of brokers that were registered and are not any more.
func (c *checks) stranded() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := map[string]string{}
	for i, w := range c.nodes {
		if w.registered || w.why == "" {
			continue
		}
		for topic := range w.assigned {
			list[topic] = c.f.nodes[i].id
		}
	}
	return list
}

// taker is some broker, from the given one on, that is registered and active.
func (c *checks) taker(from int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.nodes {
		i := (from + k) % len(c.nodes)
		if w := c.nodes[i]; w.registered && w.mode.Mode == recovery.Active {
			return c.f.nodes[i].id
		}
	}
	return ""
}
