package agent

import (
	"context"
	"time"
)

// newRegistrar is the registrar of this sidecar. It asks nothing of the Keeper, which is made
// after it, until it is asked itself.
func (a *agent) newRegistrar() *registrar {
	r := &registrar{cfg: a.cfg, run: a.run, moved: a.memory.movedTo(a.place), rival: a.rival.Store, awaits: a.awaits.Store, line: a.line, clock: a.clock, log: a.log.With("part", "lease"),
		life: func() life { return *a.life.Load() }, deliver: a.deliver, paused: a.paused,
		up: a.answers, gone: a.brokerGone, byInstance: a.traits.Registers, handing: a.beginHandover, pauseEnds: a.pauseEnds, hasty: hasty(a.cfg, a.traits), before: a.recalled,
		later:  func(d time.Duration) { time.AfterFunc(d, a.keeper.Reestablish) },
		recall: func(ctx context.Context, left leftProcess) { a.tell(ctx, func() { a.recallNoted(left) }) }}
	if !a.traits.Places {
		r.serves = a.listOnce
	}
	return r
}
