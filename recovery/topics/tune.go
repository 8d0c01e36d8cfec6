package topics

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// Settings that may change while the parts run. Each Tune takes effect at once: a pause
// that is longer than the new one ends, and what is in flight keeps the bound it began
// with.

// Tune takes the concurrency, rate, timeout, audit interval and mass-change share of s, and
// nothing else of it. Loads in flight beyond a lower concurrency are not cut short.
func (r *Reconciler) Tune(s ReconcilerSettings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.settings.Rate != s.Rate {
		r.limiter, r.load.rateAt = newLimiter(s.Rate), time.Time{}
	}
	r.settings.Concurrency, r.settings.Rate = s.Concurrency, s.Rate
	r.settings.LoadTimeout, r.settings.AuditInterval, r.settings.MassChangeShare = s.LoadTimeout, s.AuditInterval, s.MassChangeShare
	if at := now.Add(s.AuditInterval); at.Before(r.list.at) {
		r.list.at = at
	}
	r.planSoon(now)
	r.poke()
}

// newLimiter is nil without a limit.
func newLimiter(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/20)))
}

func (r *Reconciler) auditInterval() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settings.AuditInterval
}

func (r *Reconciler) concurrency() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settings.Concurrency
}

// Tune sets how long one call may take, and the time between two while a mode lasts.
func (s *Steerer) Tune(bound, audit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound, s.audit = cmp.Or(max(bound, 0), 30*time.Second), cmp.Or(max(audit, 0), 30*time.Second)
}

// Tune sets the audit interval.
func (o *Ownership) Tune(every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settings.AuditInterval = every
	latest := time.Now().Add(o.settings.AuditInterval)
	if latest.Before(o.auditAt) {
		o.auditAt = latest
	}
	for l := range o.open {
		if latest.Before(l.next) {
			l.next = latest
		}
	}
	o.poke()
}

// Tune sets how many topics are given away at the same time.
func (p *Placer) Tune(moves int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set.Moves = cmp.Or(max(moves, 0), 16)
}
