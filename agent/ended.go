package agent

import (
	"context"
	"time"

	"holdfast/brokerapi"
	"holdfast/probes"
)

// This file is what a broker's process that is proven to have ended still holds in its own cluster,
// such as the session of a Pulsar broker. It is given up after --restart-grace, so that others serve
// what it had; a process that is back before that takes it over itself.
//
// Not guaranteed: that it is given up where no process is watched, in a pause of recovery, or by a
// driver that has no Releaser. It runs out by itself then.

const (
	giveUpTimeout = 2 * time.Second
	giveUpAgain   = time.Second
	// releaseFor is for how long it is tried: by then what a broker holds has run out.
	releaseFor = 30 * time.Second
)

// tendRelease follows the end of the broker's process. A pause begins the grace anew.
func (a *agent) tendRelease() {
	b, ok := a.broker.(brokerapi.Releaser)
	ended := ok && a.cfg.RestartGrace > 0 && a.brokerGone() && a.verdict != probes.Up && !a.paused()
	switch {
	case ended && a.endRelease == nil:
		who, _ := a.identity.get()
		grace := a.cfg.RestartGrace
		ctx, cancel := context.WithTimeout(a.life0, grace+releaseFor)
		a.endRelease = cancel
		a.tasks.Go(func() { a.relinquish(ctx, b, who.Instance, grace) })
	case !ended && a.endRelease != nil:
		a.endRelease()
		a.endRelease = nil
	}
}

func (a *agent) relinquish(ctx context.Context, b brokerapi.Releaser, instance string, pause time.Duration) {
	for failed := false; ; pause = giveUpAgain {
		if probes.Sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		trying, cancel := context.WithTimeout(ctx, giveUpTimeout)
		err := b.Release(trying, instance)
		cancel()
		if err == nil {
			return
		}
		if !failed {
			failed = true
			a.log.Warn("what the broker's process held in its cluster is not given up yet", "err", err)
		}
	}
}
