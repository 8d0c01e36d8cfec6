package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// reasonFenced is what a broker is told that is drained by the fence.
const reasonFenced = "fenced"

// steered is a broker with a mode of its own.
type steered struct{ brokerapi.ModeSetter }

// SetMode implements topics.Steered.
func (s steered) SetMode(ctx context.Context, mode recovery.Mode, reason recovery.Reason) error {
	err := s.ModeSetter.SetMode(ctx, brokerapi.Mode(mode), string(reason))
	if errors.Is(err, brokerapi.ErrRemains) {
		return fmt.Errorf("%w: %w", topics.ErrRemains, err)
	}
	return err
}

// steerable is the broker as far as it has a mode of its own; nil: it has none.
func (a *agent) steerable() brokerapi.ModeSetter {
	b, _ := a.broker.(brokerapi.ModeSetter)
	return b
}

func (a *agent) newSteerer(reg prometheus.Registerer) *topics.Steerer {
	s, log := a.settings(), a.log.With("part", "mode")
	if b := a.steerable(); b != nil {
		return topics.NewSteerer(steered{b}, s.LoadTimeout, s.AuditInterval, log, reg)
	}
	return topics.NewSteerer(nil, 0, 0, log, reg)
}

// listed is a broker as the reconciler sees it.
type listed struct {
	brokerapi.Broker
	keeps *atomic.Bool // see agent
}

// Topics implements topics.Broker.
func (b listed) Topics(ctx context.Context) (topics.Held, error) {
	held, err := b.Broker.Topics(ctx)
	return topics.Held{Serving: held.Serving, Withdrawn: held.Withdrawn, Unreadable: held.Unreadable}, err
}

// Serve implements topics.Broker.
func (b listed) Serve(ctx context.Context, topic string, record []byte) error {
	err := b.Broker.Serve(ctx, topic, record)
	if errors.Is(err, brokerapi.ErrRefused) {
		return brokerapi.Errorf(topics.ErrRefused, "%v", err)
	}
	return err
}

// Withdraw implements topics.Broker.
func (b listed) Withdraw(ctx context.Context, topic string) error {
	err := b.Broker.Withdraw(ctx, topic)
	if errors.Is(err, errors.ErrUnsupported) {
		b.keeps.Store(true)
	}
	return err
}

func (a *agent) newReconciler(s topics.ReconcilerSettings, rec topics.Records, reg prometheus.Registerer) *topics.Reconciler {
	mover, _ := a.movers() // moves that a cluster makes by itself hold nothing
	s.Assigns, s.Moves = a.traits.Places, mover != nil
	if b := a.steerable(); b != nil && a.traits.Places {
		s.Drain = func(ctx context.Context) error { return b.SetMode(ctx, brokerapi.Drained, reasonFenced) }
	}
	return topics.NewReconciler(s, listed{a.broker, &a.keeps}, rec, a.log.With("part", "topics"), reg)
}

// orderSteerer tells what may be handed over to the broker. decided: the mode is about
// the process that answers; attached: it may be told.
func (a *agent) orderSteerer(decided, attached bool) {
	if a.steerable() == nil {
		return
	}
	p := a.reconciler.Snapshot()
	a.steerer.SetOrders(topics.SteerOrders{Epoch: a.memory.Epoch, Instance: a.memory.Instance, SteerFacts: recovery.SteerFacts{
		Mode: a.mode, Decided: decided, Attached: attached, Paused: a.paused(),
		Assigns: a.traits.Places, Idle: p.ServedKnown && p.Served+p.Orphan == 0,
	}})
}

// noteSteering tells when the broker has taken the mode, and when it does not.
func (a *agent) noteSteering() {
	v, was := a.steerer.View(), a.steering
	a.steering = v
	if v.At != was.At {
		a.reconciler.Kick() // what does it serve now?
	}
	if v.Steering == was.Steering && v.To == was.To {
		return
	}
	switch v.Steering {
	case recovery.SteerDone:
		a.event(control.Event{Kind: "steer", To: string(v.To), Reason: string(a.mode.Reason), Epoch: a.memory.Epoch})
	case recovery.SteerFailing:
		a.event(control.Event{Kind: "steer", To: "failing", Reason: string(v.To), Epoch: a.memory.Epoch, Detail: v.LastError})
	}
}

// notTaken is why the broker is not in the mode that it is to be in; empty: it is, or it
// has no mode of its own.
func notTaken(v topics.SteerView) string {
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
