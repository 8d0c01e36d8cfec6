package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// placements writes assignments in this broker's name.
type placements struct{ a *agent }

// claimant is who we are under that epoch. A registration that is another by now may
// write nothing.
func (p placements) claimant(epoch int64) (cluster.Claimant, error) {
	g := p.a.keeper.View().Grant
	if g.Epoch != epoch || g.LeaseID == 0 {
		return cluster.Claimant{}, fmt.Errorf("the registration of epoch %d is not held any more", epoch)
	}
	return cluster.Claimant{BrokerID: p.a.brokerID, Incarnation: p.a.incarnation, Epoch: epoch, LeaseID: g.LeaseID}, nil
}

// Take implements topics.PlacementStore.
func (p placements) Take(ctx context.Context, epoch int64, takes []recovery.Take) ([]string, error) {
	who, err := p.claimant(epoch)
	if err != nil {
		return nil, err
	}
	topics := make([]cluster.TakeTopic, len(takes))
	for i, t := range takes {
		topics[i] = cluster.TakeTopic{Topic: t.Topic, From: t.From.Broker, FromRevision: t.From.ModRevision}
	}
	return p.a.main.Take(ctx, who, topics)
}

// Give implements topics.PlacementStore.
func (p placements) Give(ctx context.Context, epoch int64, gives []recovery.Give) ([]string, error) {
	who, err := p.claimant(epoch)
	if err != nil {
		return nil, err
	}
	topics := make([]cluster.GiveTopic, len(gives))
	for i, g := range gives {
		topics[i] = cluster.GiveTopic{Topic: g.Topic, Revision: g.Mine.ModRevision, To: g.To, Has: g.Has}
	}
	return p.a.main.Give(ctx, who, topics)
}

// placing reports whether this sidecar decides who has which topic. It does so by the
// locks, so in shadow mode it does not.
func (a *agent) placing() bool { return a.cfg.Assignment == "rendezvous" && a.locking() }

// movesWithoutData warns of --failover move with a broker that keeps its own data.
const movesWithoutData = "topics move without their data: this broker keeps it on its own disk; leave --failover at hold unless the data is replicated"

// newPlacer makes the part that places topics; nil if others do. Its metrics are there
// in any case.
func (a *agent) newPlacer(reg prometheus.Registerer) *topics.Placer {
	var carry func(context.Context, recovery.Give) error
	if mover, _ := a.movers(); mover != nil && a.traits.LocalData {
		carry = func(ctx context.Context, g recovery.Give) error { return a.moves.Carry(ctx, g.Topic, g.To) }
	}
	p := topics.NewPlacer(topics.PlacerSettings{Carry: carry,
		Me: func() string { return a.brokerID }, Move: a.cfg.Failover == "move",
		Absence: a.cfg.LeaseTTL, Moves: a.settings().LoadConcurrency, Told: a.notePlaced,
	}, placements{a}, a.ownership, a.log.With("part", "placement"), reg)
	if !a.placing() {
		return nil
	}
	if a.cfg.Failover == "move" && a.traits.LocalData {
		a.log.Warn(movesWithoutData, "failover", "move")
	}
	return p
}

// notePlaced tells in the journal how many topics this sidecar has moved.
func (a *agent) notePlaced(taken, given int, epoch int64) {
	a.event(control.Event{Kind: "topics", To: "placed", Epoch: epoch, Detail: fmt.Sprintf("%d taken, %d given to others", taken, given)})
}

// orderPlacer tells the placer what it may do. It needs the lease itself, not only that
// we are attached: placements are written under it.
func (a *agent) orderPlacer() {
	if a.placer == nil {
		return
	}
	a.placer.SetOrders(a.placerOrders())
}

func (a *agent) placerOrders() topics.PlacerOrders {
	c := a.circumstances(a.known)
	return topics.PlacerOrders{Epoch: a.grant.Epoch, Mode: a.mode.Mode, Paused: c.Holds(recovery.Takes),
		Attached: a.attachment == recovery.Attached && a.grant.LeaseID != 0 && a.verified && !c.Holds(recovery.Places)}
}

// maxOthers bounds what a status says of brokers one by one.
const maxOthers = 50

// fleetStatus is nil where nobody here watches the fleet.
func (a *agent) fleetStatus() *control.FleetStatus {
	if a.placer == nil {
		return nil
	}
	peers, complete := a.placer.Fleet()
	if !complete {
		return nil
	}
	fleet := &control.FleetStatus{Others: []control.PeerStatus{}}
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		p := peers[id]
		active := p.Mode == recovery.Active || p.Mode == ""
		if p.Registered {
			fleet.Registered++
		}
		switch {
		case p.Registered && active:
			fleet.Active++
		case !p.Registered && p.Mode == "": // nothing is left of it
		case len(fleet.Others) < maxOthers:
			fleet.Others = append(fleet.Others, control.PeerStatus{ID: id, Registered: p.Registered, Mode: string(p.Mode)})
		}
	}
	return fleet
}
