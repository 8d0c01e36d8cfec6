package agent

import (
	"context"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is what a broker's process that is proven to have ended still holds in its own cluster,
// such as the session of a Pulsar broker. It is given up after --restart-grace, so that others serve
// what it had; a process that is back before that takes it over itself.
//
// Not guaranteed: that it is given up where no process is watched, in a pause of recovery, or by a
// driver that has no Releaser. It runs out by itself then.

const (
	giveUpTimeout = 2 * time.Second
	// releaseFor is for how long it is tried: by then what a broker holds has run out.
	releaseFor = 30 * time.Second
)

// relinquish is that of one process, owned by the loop.
type relinquish struct {
	instance string        // that has ended; empty: it runs
	at       lease.Instant // the next try
	until    lease.Instant
	underway bool
	failed   bool
}

func (a *agent) tendRelease() {
	r, now := &a.relinquish, a.clock()
	who, _ := a.identity.get()
	b, ok := a.broker.(brokerapi.Releaser)
	switch {
	case !ok || a.cfg.RestartGrace == 0 || r.underway:
		return
	case !a.brokerGone() || a.verdict == probes.Up:
		*r = relinquish{}
		return
	case r.instance != who.Instance:
		*r = relinquish{instance: who.Instance, at: now.Add(a.cfg.RestartGrace), until: now.Add(a.cfg.RestartGrace + releaseFor)}
	}
	if now < r.at || now >= r.until || a.suspended(recovery.ActRevoke) {
		return
	}
	r.underway = true
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, giveUpTimeout)
		defer cancel()
		err := b.Release(ctx, who.Instance)
		a.tell(a.life0, func() {
			r.underway, r.at = false, a.clock().Add(noteRetry)
			switch {
			case err == nil:
				r.until = 0
			case !r.failed:
				r.failed = true
				a.log.Warn("what the broker's process held in its cluster is not given up yet", "err", err)
			}
		})
	})
}
