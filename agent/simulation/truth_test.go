package simulation

import (
	"slices"
	"time"

	"holdfast/recovery"
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
	alone      bool      // since then there was a moment without any registration
	brought    bool      // it stands by a backup that was restored after its loss
	revived    bool      // so did the one that went last
	renewed    time.Time // when its lease was last granted or renewed, as far as the checks looked
	mode       recovery.ModeRecord
	modeSince  time.Time
	stateGone  bool // the state key was deleted, and not written again
	forgot     bool // the sidecar's memory went back, and no state was written since
	goneAs     int  // broker process when the registration went
	// What is asked about: the first loss since the broker was no suspect.
	suspect      bool // its member record says so
	suspectSince time.Time
	lossGone     time.Time
	lossRenewed  time.Time // its last renewal before
	registrant   int       // and when it was last written
	assigned     map[string]bool
	leave        departing
	cutNoted     int64     // revision of the cut that its member record tells of; 0: of none
	cutAt        time.Time // when one was noted last
	// The broker.
	running, frozen bool // running: it has booted, too
	instance        int
	serving         []string
	// Sidecar, broker and network.
	sidecar     bool
	detached    time.Time // when it was, for sure, since the registration went; zero: it was not
	bad         trouble
	wellSince   time.Time
	netBad      int
	netSince    time.Time
	silent      int       // causes for which etcd may be silent
	silentSince time.Time // since when that number is as it is
	pausedFrom  time.Time // a maintenance pause that is in force for sure
	pausedUntil time.Time // its end; zero: there was none

	started     time.Time // when this process of the broker had booted
	forked      time.Time // when it was started
	meddled     time.Time // when hands last made something served
	asleep      trouble   // the sidecar is frozen
	lives       int       // of the sidecar, so far
	begun       time.Time // when the last of them did
	asleepAs    int       // which one of them was frozen
	unstoppable trouble
	unguarded   trouble   // the guard shares the fate of its sidecar
	standing    trouble   // the machine
	blinked     time.Time // when the machine last went on that had stood for too short to be noticed

	stubborn time.Time // until when it could not be made to quiesce

	stood  time.Time            // since when the registration stood, or had
	bound  time.Time            // since when it is under its lease
	bare   map[string]time.Time // topics that it serves without their locks, and since when
	ended  time.Time            // since when the broker's process does not run
	zombie time.Time            // since when it serves without a registration; zero: it does not
}

func (w *watched) serves() bool { return w.running && !w.frozen && len(w.serving) > 0 }

// wellFor is how long the sidecar has run and the broker has done as it was told.
func (w *watched) wellFor(now time.Time) time.Duration {
	if !w.sidecar || w.bad.count > 0 {
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
// what began at since. A registration that ran out is known by the clock alone. Of one that
// somebody took etcd tells, or the lease does at its end: no renewal is confirmed any more.
func (w *watched) bounded(since, now time.Time, s settings) bool {
	if w.wellFor(now) < soon || now.Sub(w.meddled) < relooked || now.Sub(since) < soon || w.stoodLately(now, s) {
		return false
	}
	if !w.registered && w.why == released && w.wellFor(now) < heard {
		return false // the first question to etcd may take two attempts
	}
	if !w.registered && w.why != stranger {
		// A process that never was registered is left alone as long as etcd answers.
		return w.instance == w.registrant || w.netFor(now) >= heard || min(now.Sub(since), w.wellFor(now)) >= heard
	}
	told := w.netFor(now) >= heard && now.Sub(since) >= heard && !w.lately(now)
	return told || now.Sub(later(since, later(w.gone, w.stood))) >= s.granted()+soon
}

// What the schedule and the end ask for.

type wanted struct {
	registered        bool
	create, lease     int64
	mode              string
	assigned, serving []string
	serves            bool // it runs, and clients can use it
	restored          bool // etcd was, some time ago
	left              bool // the member record says that it left on purpose
	suspect           bool // and that its drain is a suspicion
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
	return wanted{registered: w.registered, create: w.create, lease: w.lease, mode: string(w.mode.Mode), assigned: assigned, serving: w.serving, serves: w.serves(), restored: !c.restored.IsZero(), left: w.leave.noted, suspect: w.suspect}
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
