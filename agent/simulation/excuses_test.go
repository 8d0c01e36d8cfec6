package simulation

import "time"

// What the checks excuse, and for how long. README.md gives the reasons; a row there and
// a bound here belong together.
const (
	// soon is for what sidecar and broker have between themselves: health verdicts, the
	// identity of a new process, and a fence that is begun anew each second.
	soon = 6 * time.Second
	// heard is for what etcd has to tell: the longest pause before a lost watch or an
	// acquisition is tried again is 5 s.
	heard = 12 * time.Second
	// obeyed is for a fence of a sidecar and a broker that are well: a round that failed
	// while they were not, the pause after it, and the next one.
	obeyed = 4 * time.Second
	// relooked is for what hands bring back: the next look of the sidecar, and a quiesce.
	relooked = 4 * time.Second
	// noticed is for a sidecar whose machine stood: its probes look at the clocks by themselves.
	noticed = time.Second
	// least is what a machine must stand for to be noticed.
	least = time.Second
	// looked is for a guard on its own: its look, the kill, and the end of the process.
	looked = time.Second
	// unheard is for how long a sidecar has not beaten before its guard acts alone.
	unheard = 3 * time.Second
)

// trouble is something that goes on, or when it ended.
type trouble struct {
	count int
	ended time.Time // or when its number changed last
}

func (t *trouble) change(sign int, now time.Time) {
	t.count += sign
	t.ended = now
}

// within reports whether it goes on, or has ended less than d ago.
func (t trouble) within(d time.Duration, now time.Time) bool {
	return t.count > 0 || !t.ended.IsZero() && now.Sub(t.ended) < d
}

// excuse says why a broker may serve at the moment at which its registration runs out;
// empty: nothing excuses it.
func (w *watched) excuse(now time.Time, s settings) string {
	alone := w.wellFor(now) < obeyed // the sidecar cannot be what stops it
	left := w.instance != w.registrant && w.sidecar && w.asleep.count == 0
	switch {
	case now.Sub(w.started) < soon:
		return "a new process"
	case left && w.wellFor(now) < soon:
		return "a new process that does not answer in time"
	case left && w.netFor(now) < heard && min(now.Sub(w.started), w.wellFor(now)) < heard:
		return "a new process, while etcd does not answer"
	case now.Sub(w.meddled) < relooked || alone && now.Sub(w.meddled) < soon:
		return "brought back by hands"
	case w.stoodLately(now, s):
		return "the machine stood"
	case s.Stop && w.unstoppable.within(looked+unheard, now):
		return "it cannot be stopped"
	case s.Stop && w.unguarded.within(soon, now) && alone:
		return "its guard shared the fate of its sidecar"
	case !s.Stop && alone:
		return "nobody stops it while the sidecar or the broker is not well"
	}
	return ""
}

// stoodLately reports whether the machine stands, or stood a moment ago. A sidecar that was
// not there, or frozen, sees it when it runs; until then there is a guard, which looks at one
// clock only.
func (w *watched) stoodLately(now time.Time, s settings) bool {
	absent := !w.sidecar || w.asleep.count > 0 || now.Sub(later(w.begun, w.asleep.ended)) < soon
	return w.blinkedSince(now, s) || w.standing.within(soon, now) || absent && w.standing.within(s.granted()+soon, now)
}

// blinkedSince reports whether the machine stood, for too short to be noticed, in what may
// be the time of the lease that has run out.
func (w *watched) blinkedSince(now time.Time, s settings) bool {
	return !w.blinked.IsZero() && now.Sub(w.blinked) < s.granted() && now.Sub(w.gone) < least
}

// unfenced reports whether a guard that stands leaves a broker alone for which its
// sidecar has done nothing for so long that the guard must.
func (w *watched) unfenced(now time.Time, s settings) bool {
	if frozen := w.asleep.ended; w.forked.Before(frozen.Add(unheard)) && now.Sub(frozen) < soon {
		return false // the proof that the one before had ended counted when it came up
	}
	return s.Stop && w.why == expiry && w.asleep.count > 0 && w.asleepAs == w.lives && now.Sub(w.asleep.ended) > unheard && now.Sub(w.zombie) > looked && now.Sub(w.meddled) > soon &&
		w.sidecar && !w.unguarded.within(soon, now) && !w.unstoppable.within(looked, now) && !w.stoodLately(now, s)
}

func (c *checks) meddled(i int) {
	c.change(i, func(w *watched, now time.Time) { w.meddled = now })
}

func (c *checks) unstoppable(i, sign int) {
	c.change(i, func(w *watched, now time.Time) { w.unstoppable.change(sign, now) })
}

func (c *checks) unguarded(i, sign int) {
	c.change(i, func(w *watched, now time.Time) { w.unguarded.change(sign, now) })
}

// stood takes that the machine stands still, or goes on.
func (c *checks) stood(i, sign int, d time.Duration) {
	c.change(i, func(w *watched, now time.Time) {
		if w.standing.change(sign, now); sign < 0 && d < least {
			w.blinked = now
		}
	})
}

// asleep takes that the sidecar is frozen, or not any more.
func (c *checks) asleep(i, sign int) {
	c.change(i, func(w *watched, now time.Time) {
		if w.asleep.change(sign, now); sign > 0 {
			w.asleepAs = w.lives
		}
	})
}

// stops takes that the ladder stops a broker that the sidecar knows to be up. A process that
// just came up, and has not lost a registration since, is left alone while etcd answers, unless it
// refused to be fenced.
func (c *checks) stops(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, now := c.nodes[i], time.Now()
	if lost := !w.registered && (w.instance == w.registrant || w.instance == w.goneAs); w.running && !lost && !w.bad.within(obeyed, now) && w.netFor(now) >= heard && now.Sub(w.started) < soon {
		c.violated("%s is stopped %v after it came up, though etcd answers", c.f.nodes[i].id, now.Sub(w.started))
	}
}
