package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// This file is what the registrar is told of this sidecar, and what it asks of it.

// newRegistrar is the registrar of this sidecar. It asks nothing of the Keeper, which is made
// after it, until it is asked itself.
func (a *agent) newRegistrar() *registration.Registrar {
	d := registration.Deps{Config: a.cfg, Run: a.run, Moved: a.memory.movedTo(a.place), ByInstance: a.traits.Registers, Before: a.recalled,
		Line: a.line, Clock: a.clock, Log: a.log.With("part", "lease"), Life: a.lifeNow, Deliver: a.deliver, Handing: a.beginHandover, Beside: a.askBeside,
		Recall: func(ctx context.Context, left registration.LeftProcess) { a.tell(ctx, func() { a.recallLeft(&left) }) }}
	if !a.traits.Places {
		d.Serves = a.listOnce
	}
	return registration.New(d)
}

// lifeNow is what the loop published last, with what is asked of the broker's process at this moment.
func (a *agent) lifeNow() registration.Life {
	l := *a.life.Load()
	l.Gone, l.Silent, l.PauseEnds = a.brokerGone(), !a.answers(l.Instance), a.pauseEnds()
	return l
}

// listOnce lists what clients can use at the broker now.
func (a *agent) listOnce(ctx context.Context) ([]string, error) {
	bound := a.settings().LoadTimeout
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	held, err := a.broker.Topics(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it did not list its topics within %s (--load-timeout): %w", config.FormatDuration(bound), err)
	}
	return held.Serving, err
}

// askBeside does something beside the loop and the Keeper, and has the registrar look again.
func (a *agent) askBeside(do func(context.Context)) {
	a.tasks.Go(func() {
		if do(a.life0); a.life0.Err() == nil {
			a.keeper.Reestablish()
		}
	})
}

// noteCut remembers from when on etcd was not heard of, until that is noted in etcd.
func (a *agent) noteCut(why recovery.Why) {
	if why != recovery.WhyFencePoint && why != recovery.WhyLeaseLost {
		return
	}
	if a.cutOver = 0; !a.cutFrom.IsZero() {
		return
	}
	a.cutFrom = time.Now()
	if v := a.keeper.View().Validity; v.Known() {
		a.cutFrom = a.cutFrom.Add(-a.clock().Sub(v.SentAt))
	}
}

// noteCutOver has a cut noted that is over, and was not when its registration was looked at
// last. Until it can be, the revision of now stands for the end of the cut.
func (a *agent) noteCutOver() {
	if !a.cutFrom.IsZero() && a.cutOver == 0 {
		a.cutOver = a.keeper.View().Grant.Revision
		a.keeper.Reestablish()
	}
}

// suspected reports whether it is not known yet whether a copy of this sidecar is registered: nobody is
// stopped on a suspicion.
func (a *agent) suspected() bool { return a.conflict == "" && a.isRival() }

// isRival reports whether the process that answers is that of a copy, or may be: it may serve
// what the registered one serves. One that was registered itself has only us twice.
func (a *agent) isRival() bool {
	if a.everAttached || !a.registrar.Rival.Load() {
		return false
	}
	who, _ := a.identity.get()
	return who.Instance != "" && who.Instance != a.memory.Instance
}
