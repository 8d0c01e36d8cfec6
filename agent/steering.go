package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/brokerapi"
	"holdfast/recovery"
)

// reasonFenced is what a broker is told that is drained by the fence.
const reasonFenced = "fenced"

// reasonReturned is what it is told that is drained again.
const reasonReturned = "topics came back"

// steered is a broker with a mode of its own.
type steered struct{ brokerapi.Steerer }

// Steer implements recovery.Steered.
func (s steered) Steer(ctx context.Context, mode recovery.Mode, reason recovery.Reason) error {
	return s.Steerer.Steer(ctx, brokerapi.Mode(mode), string(reason))
}

// givenUpWithin bounds one round of giving up what came back: lookups may bring it back for
// as long as they are asked, and that it came is to be told meanwhile.
const givenUpWithin = 5 * time.Second

// keptAway is one whose cluster can be told to place no topic on it. The fence drains without
// that: nobody would look after it while we are detached.
type keptAway struct {
	steered
	keeper brokerapi.AwayKeeper
	topics func(context.Context) (brokerapi.Held, error)
}

// Steer has the cluster choose others first: what is unloaded before that may come back. That
// it cannot be told is for Keep to say.
func (k keptAway) Steer(ctx context.Context, mode recovery.Mode, reason recovery.Reason) error {
	k.keeper.KeepAway(ctx, mode == recovery.Drained)
	return k.steered.Steer(ctx, mode, reason)
}

// Keep implements recovery.Keeper.
func (k keptAway) Keep(ctx context.Context, mode recovery.Mode) (returned []string, flaw string) {
	flaw = k.keeper.KeepAway(ctx, mode == recovery.Drained)
	if mode != recovery.Drained {
		return nil, flaw
	}
	held, err := k.topics(ctx)
	if err == nil && len(held.Serving) > 0 {
		returned = held.Serving
		ctx, cancel := context.WithTimeout(ctx, givenUpWithin)
		defer cancel()
		err = k.steered.Steer(ctx, mode, reasonReturned)
	}
	if err != nil {
		flaw = err.Error()
	}
	return returned, flaw
}

// steerable is the broker as far as it has a mode of its own; nil: it has none.
func (a *agent) steerable() brokerapi.Steerer {
	if b, ok := a.broker.(brokerapi.Steerer); ok && a.can.Steer {
		return b
	}
	return nil
}

func (a *agent) newSteerer(reg prometheus.Registerer) *recovery.Steerer {
	log := a.log.With("part", "mode")
	if b := a.steerable(); b != nil {
		if k, ok := b.(brokerapi.AwayKeeper); ok {
			return recovery.NewSteerer(keptAway{steered{b}, k, a.broker.Topics}, a.settings().LoadTimeout, log, reg)
		}
		return recovery.NewSteerer(steered{b}, a.settings().LoadTimeout, log, reg)
	}
	return recovery.NewSteerer(nil, 0, log, reg)
}

func (a *agent) newReconciler(s recovery.ReconcilerSettings, rec recovery.Records, reg prometheus.Registerer) *recovery.Reconciler {
	s.Assigns = a.can.Assigns
	if b := a.steerable(); b != nil && a.can.Assigns {
		s.Drain = func(ctx context.Context) error { return b.Steer(ctx, brokerapi.Drained, reasonFenced) }
	}
	return recovery.NewReconciler(s, quiescing{a.broker}, rec, a.log.With("part", "topics"), reg)
}

// orderSteerer tells what may be handed over to the broker. decided: the mode is about
// the process that answers; attached: it may be told.
func (a *agent) orderSteerer(decided, attached bool) {
	if !a.can.Steer {
		return
	}
	p := a.reconciler.Snapshot()
	serves := p.Served+p.Orphan > 0
	o := recovery.SteerOrders{Epoch: a.memory.Epoch, Instance: a.memory.Instance, SteerFacts: recovery.SteerFacts{
		Mode: a.mode, Decided: decided, Attached: attached, Paused: a.suspended(recovery.ActSteer),
		Assigns: a.can.Assigns, Idle: p.ServedKnown && !serves,
	}}
	if a.can.Assigns && serves {
		o.Relapsed = p.Listed
	}
	a.steerer.SetOrders(o)
}

// noteSteering tells when the broker has taken the mode, and when it does not.
func (a *agent) noteSteering() {
	v, was := a.steerer.View(), a.steering
	a.steering = v
	if v.At != was.At || v.Kept.Times != was.Kept.Times {
		a.reconciler.Kick() // what does it serve now?
	}
	if v.Kept.Times != was.Kept.Times {
		a.event(Event{Kind: "steer", To: "returned", Reason: string(a.mode.Reason), Epoch: a.memory.Epoch, Detail: cameBack(v.Kept.Returned)})
	}
	if v.Steering == was.Steering && v.To == was.To {
		return
	}
	switch v.Steering {
	case recovery.SteerDone:
		a.event(Event{Kind: "steer", To: string(v.To), Reason: string(a.mode.Reason), Epoch: a.memory.Epoch})
	case recovery.SteerFailing:
		a.event(Event{Kind: "steer", To: "failing", Reason: string(v.To), Epoch: a.memory.Epoch, Detail: v.LastError})
	}
}

// cameBack names the topics that a drained broker had again.
func cameBack(topics []string) string {
	text := plural(len(topics), "topic") + " came back to the drained broker: " + topics[0]
	if more := len(topics) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// notTaken is why the broker is not in the mode that it is to be in; empty: it is, or it
// has no mode of its own.
func notTaken(v recovery.SteerView) string {
	switch v.Steering {
	case recovery.SteerWaiting:
		return "the broker was not told its mode yet: " + string(v.Hold)
	case recovery.SteerPending:
		return "the broker is being told to be " + string(v.To)
	case recovery.SteerFailing:
		return "the broker was told to be " + string(v.To) + " and is not: " + v.LastError
	}
	return ""
}
