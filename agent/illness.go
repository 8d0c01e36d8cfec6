package agent

import (
	"context"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// A broker that is ill is not renewed, as one that has ended is not. Shortly before its fence
// point its sidecar looks at the others, and renews it again unless one of them is well.
//
// Guaranteed: while it is held its lease is renewed, clients are kept away and nothing is
// stopped; a look that etcd does not answer changes nothing, so the deadline rules stand. Not
// guaranteed: that a broker is held whose end nobody would see (its process is not watched, and
// its driver holds no connection to it), which was ill already when its sidecar started, which
// was detached already when it fell ill, or which notices before its peers do, where the time
// from the verdict to the fence point is shorter than theirs to notice; that a peer which is
// well is seen, where more than cluster.MostPeers others are registered. With --registration
// none there is no record of peers, and nobody is held.

// illness is that of the broker's present process, owned by the loop.
type illness struct {
	number  int // grows with each: a look that began before is dropped
	ruling  recovery.Illness
	awaits  bool          // the lease of a peer that says it is well is to be looked at once more
	looking bool          // at the others
	looked  lease.Instant // when that was done last; 0: it was not
	seen    *recovery.Witnesses
}

// sightPeers is a look at the others.
type sightPeers func(ctx context.Context) (term uint64, seen []recovery.PeerSeen, err error)

// ails reports whether the process of the broker lives while its calls fail.
func (a *agent) ails(verdict probes.Verdict) bool {
	if verdict != probes.Down || a.brokerGone() {
		return false
	}
	if a.process != nil || a.child != nil {
		return a.servingLives()
	}
	return a.reached.Load() && a.everAttached && !a.brokeSinceUp()
}

// tendIllness decides what becomes of the registration of a broker that is ill. It is called
// before the gate is set.
func (a *agent) tendIllness(verdict probes.Verdict) {
	i := &a.illness
	if verdict == probes.Unknown && !a.brokerGone() || a.sightPeers == nil {
		return
	}
	if !a.ails(verdict) {
		if i.seen != nil {
			a.rule(recovery.Illness{}, verdict == probes.Up)
			*i = illness{number: i.number + 1}
		}
		return
	}
	if i.seen == nil {
		i.seen = &recovery.Witnesses{}
	}
	facts := a.illFacts(verdict)
	a.rule(recovery.RuleIllness(facts), false)
	if facts.Held && !i.looking && a.clock() >= a.nextLook() {
		a.lookBeside()
	}
}

func (a *agent) illFacts(verdict probes.Verdict) recovery.IllFacts {
	v := a.keeper.View().Validity
	return recovery.IllFacts{
		Ill: a.ails(verdict), Before: a.illness.ruling,
		Held: a.grant.LeaseID != 0 && v.Known() && v.HeldAt(a.clock()) && a.attachment != recovery.Detached &&
			!a.leaving.holdsBack() && a.conflict == "",
	}
}

// nextLook is when the others are looked at next.
func (a *agent) nextLook() lease.Instant {
	i, v := &a.illness, a.keeper.View().Validity
	return lease.Instant(recovery.NextLook(i.ruling, i.awaits, time.Duration(i.looked), time.Duration(v.FencePoint()), a.cfg.Timing().RenewInterval, v.TTL))
}

// lookBeside looks at the others, in the background and within the bound of a renewal.
func (a *agent) lookBeside() {
	i := &a.illness
	i.looking = true
	ctx, cancel := context.WithTimeout(a.life0, a.cfg.Timing().AttemptTimeout())
	number, witnesses := i.number, i.seen
	a.tasks.Go(func() {
		defer cancel()
		term, seen, err := a.sightPeers(ctx)
		a.tell(a.life0, func() {
			if a.illness.number != number {
				return
			}
			i.looking, i.looked = false, a.clock()
			if err != nil {
				a.log.Debug("no look at the health of other brokers", "err", err)
				return
			}
			others := witnesses.Look(term, seen, time.Since(a.started))
			i.awaits = others.Well == "" && others.Awaits != ""
			facts := a.illFacts(a.verdict)
			facts.Looked, facts.Others = true, others
			a.rule(recovery.RuleIllness(facts), false)
		})
	})
}

// rule applies a ruling, and reports it when it differs from the one before.
func (a *agent) rule(next recovery.Illness, well bool) {
	before := a.illness.ruling
	a.illness.ruling = next
	if next.Care == before.Care && next.Reason == before.Reason {
		return
	}
	e := Event{Kind: "broker", From: string(before.Care), To: string(next.Care), Reason: string(next.Reason), Epoch: a.grant.Epoch, Detail: next.Detail}
	switch next.Care {
	case recovery.CareHold:
		a.log.Warn("the broker is ill and keeps its registration", "held", recovery.HeldWords(next.Reason), "detail", next.Detail, "epoch", a.grant.Epoch)
	case recovery.CareLetGo:
		a.log.Warn("the broker is ill and loses its registration", "why", next.Detail, "epoch", a.grant.Epoch)
	default:
		if before.Care != recovery.CareHold {
			return
		}
		e.To = "hold_over"
		if well {
			e.Detail = "the broker answers again"
		}
		a.log.Info("the broker is not held any more", "answers", well, "epoch", a.grant.Epoch)
	}
	a.event(e)
}

// held is why a broker that is ill keeps its registration; empty: it is not held.
func (i *illness) held() recovery.Reason {
	if i.ruling.Care != recovery.CareHold {
		return ""
	}
	return i.ruling.Reason
}
