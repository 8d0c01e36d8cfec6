package agent

import (
	"context"
	"log/slog"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file carries out what recovery.Departure says: it gathers the facts, and writes the note. That is
// written after the broker is proven to serve nothing and before its lease is revoked, and says
// that nobody needs to look at this broker when it comes back.

// lastWord is that of a process which ends by itself.
type lastWord struct{ instance, words string }

// stopAsked is called at the moment at which an orderly stop is asked for. A broker that has
// ended by then has ended by itself.
func (a *agent) stopAsked() {
	a.upAtStop.Store(a.health.Snapshot().At(time.Now()) == probes.Up && !a.brokerGone())
}

// fellOut reports whether it is detached after it was attached. Who was registered a moment ago, and
// waits for that or for its guard, has lost nothing.
func (a *agent) fellOut() bool { return a.attachment == recovery.Detached && a.everAttached }

func (a *agent) departFacts() recovery.DepartFacts {
	who, _ := a.identity.get()
	v, now := a.keeper.View(), a.clock()
	f := recovery.DepartFacts{Now: time.Duration(now), Process: who.Instance, Up: a.verdict == probes.Up, Gone: a.brokerGone(), Ended: a.processEnded(),
		UpAtStop: a.upAtStop.Load(), Mode: a.mode, Barred: a.conflict, Decided: who.Instance == a.memory.Instance,
		Leased: a.grant.LeaseID != 0, Held: a.grant.LeaseID != 0 && v.Grant.LeaseID == a.grant.LeaseID && v.Validity.HeldAt(now),
		Released: v.Grant.LeaseID == 0, Detached: a.attachment == recovery.Detached, Fell: a.fellOut(), Paused: a.paused(),
		FencesItself: a.fencesItself(), LeaveTimeout: a.cfg.LeaveTimeout, RestartGrace: a.cfg.RestartGrace}
	if said := a.identity.leaves.Load(); said != nil {
		f.Word, f.Words = said.instance, said.words
	}
	if !a.runsOut() { // else there is no answer to wait for
		f.Hears = 2 * a.cfg.Timing().AttemptTimeout()
	}
	if a.endUnprovable() {
		f.Unproven = mustStopWhy + ", and it cannot be stopped from here: the end of its process must be seen, and its process is not: give --broker-pid-file or --broker-process"
	}
	switch {
	case a.shadow != nil:
		f.Barred = "a shadow registers nothing"
	case a.presence != nil:
		f.Barred = "with --registration none there is no registration to give up"
	}
	return f
}

// depart takes an event up, in the loop.
func (a *agent) depart(e recovery.DepartEvent) {
	who, _ := a.identity.get()
	do := a.stepDeparture(e)
	if do.Unsure {
		a.unsure++
	}
	if do.Freed {
		a.remember(func(m *memory) { m.LeaseID, m.Released = 0, true })
	}
	for ; do.Answered && len(a.leavers) > 0; a.leavers = a.leavers[1:] {
		a.leavers[0] <- do.Answer // it has room for one
	}
	if do.Prove {
		a.publish() // readiness is off from here on
		a.orderSteerer(false, false)
		a.setOrders(a.orders(false))
		fence := a.reconciler.BeginFence()
		a.underway(a.leaveWithin, func(ctx context.Context) recovery.DepartEvent {
			proof, err := a.endServing(ctx, fence)
			return recovery.DepartEvent{Kind: recovery.Proved, Proof: proof, At: time.Duration(a.clock()), Err: err}
		})
	}
	if do.Note {
		d := a.departureNow(do)
		a.underway(noteTimeout, func(ctx context.Context) recovery.DepartEvent {
			return recovery.DepartEvent{Kind: recovery.NoteCame, Err: a.note(ctx, d)}
		})
	}
	if do.Look {
		a.publishLife(who)
		a.keeper.Reestablish()
	}
}

// stepDeparture does what is done at once, and all that is done when the loop has ended.
func (a *agent) stepDeparture(e recovery.DepartEvent) (do recovery.DepartActs) {
	a.departing, do = a.departing.Step(e, a.departFacts())
	if do.Cancel && a.endDepart != nil {
		a.endDepart()
	}
	if say := do.Say; say.Log != "" {
		level, attrs := slog.LevelInfo, []any{"epoch", a.grant.Epoch}
		if say.Warn {
			level = slog.LevelWarn
		}
		if say.Detail != "" {
			attrs = append(attrs, "detail", say.Detail)
		}
		a.log.Log(a.life0, level, say.Log, attrs...)
	}
	if say := do.Say; say.To != "" {
		a.event(control.Event{Kind: say.Kind, From: say.From, To: say.To, Reason: say.Reason, Epoch: a.grant.Epoch, Detail: say.Detail})
	}
	if do.Remember {
		left := &registration.LeftProcess{Instance: a.departing.Process, At: time.Now()}
		a.remember(func(m *memory) { m.Left = left })
	}
	return do
}

// underway does one thing for the departure in the background. It is published first that one is under way:
// see registration.Life.
func (a *agent) underway(within time.Duration, do func(context.Context) recovery.DepartEvent) {
	who, _ := a.identity.get()
	a.publishLife(who)
	ctx, cancel := context.WithTimeout(a.life0, within)
	a.endDepart = cancel
	a.tasks.Go(func() {
		defer cancel()
		e := do(ctx)
		a.tell(a.life0, func() { a.depart(e) })
	})
}

// departureNow is what is noted.
func (a *agent) departureNow(do recovery.DepartActs) registration.Departure {
	return registration.Departure{Who: cluster.Who{Name: a.brokerID, Registered: a.ids.registered.now()}, Grant: a.grant,
		Instance: a.memory.Instance, Data: a.memory.Data, Incarnation: a.memory.Incarnation, Stop: do.Stop, Crash: do.Crash}
}

// noteTimeout bounds the writing of a note, and by that the age of what was proven before it.
const noteTimeout = 2 * time.Second

// What follows carries 'holdfast leave' over a restart of the sidecar: whoever asked for it is
// about to stop that process of the broker, and knows nothing of sidecars that end meanwhile.

// recallLeft has the process that left under the sidecar before this one stay away for the
// rest of its time. Of a sidecar that was killed after it had noted that in etcd, and before it could
// remember it, the registrar finds the note.
func (a *agent) recallLeft(left *registration.LeftProcess) {
	if left == nil {
		return
	}
	a.stepDeparture(recovery.DepartEvent{Kind: recovery.LeftFound, Process: left.Instance, At: time.Duration(a.clock().Add(left.Rest(a.cfg)))})
	if a.departing.Process == left.Instance {
		a.remember(func(m *memory) { m.Left = left })
	}
}

// goesAway reports whether the process that is fenced has left and is to be stopped by
// somebody else, who has a while for it. It closes its admin API before it ends, and may take
// leave of its clients for minutes.
func (a *agent) goesAway() bool {
	d := &a.departing
	return d.GivenUp() && a.fencing.instance == d.Process && time.Duration(a.clock()) < d.Until
}

// carryProof has the ladder begin at what was proven before the registration was given up:
// whoever stops the broker now may be faster than another proof. A ladder without that step
// stops the broker itself.
func (a *agent) carryProof() {
	d := &a.departing
	if who, _ := a.identity.get(); a.detachedBy == recovery.WhyLeft && d.ProvenAt != 0 && a.fences(recovery.StepQuiesce) && who.Instance == d.Process {
		a.fencing.instance, a.fencing.ladder = d.Process, recovery.ProvenIdle(d.ProvenAt)
	}
}

// endsUnseen reports whether a process that has left does not say any more what it serves,
// so that the looks at it do not move the guard's moment.
func (a *agent) endsUnseen() bool {
	return a.goesAway() && a.clock().Sub(lease.Instant(a.fencing.ladder.ProvenAt())) > (recovery.ProofLooks-1)*a.lookEvery()
}

// hasLeftBehind reports whether the process that answers is one that has left: nothing may
// be served by it.
func (a *agent) hasLeftBehind() bool {
	who, _ := a.identity.get()
	return a.departing.GivenUp() && a.departing.Phase == recovery.Left && who.Instance == a.departing.Process
}

// awaitDecided waits a moment for the mode of a broker that was just taken back by a sidecar
// that has decided none yet.
func (a *agent) awaitDecided(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, activateWait)
	defer cancel()
	for s := a.view.Load(); ctx.Err() == nil && s.brokerID != "" && s.Mode.Mode == ""; s = a.view.Load() {
		probes.Sleep(ctx, 20*time.Millisecond)
	}
}
