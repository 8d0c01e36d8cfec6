package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/recovery"
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

// Take implements recovery.PlacementStore.
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

// Give implements recovery.PlacementStore.
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
func (a *agent) newPlacer(reg prometheus.Registerer) *recovery.Placer {
	p := recovery.NewPlacer(recovery.PlacerSettings{
		Me: func() string { return a.brokerID }, Move: a.cfg.Failover == "move",
		Absence: a.cfg.LeaseTTL, Moves: a.settings().LoadConcurrency, Told: a.notePlaced,
	}, placements{a}, a.ownership, a.log.With("part", "placement"), reg)
	if !a.placing() {
		return nil
	}
	if a.cfg.Failover == "move" && a.broker.Capabilities().LocalData {
		a.log.Warn(movesWithoutData, "failover", "move")
	}
	return p
}

// notePlaced tells in the journal how many topics this sidecar has moved.
func (a *agent) notePlaced(taken, given int, epoch int64) {
	a.event(Event{Kind: "topics", To: "placed", Epoch: epoch, Detail: fmt.Sprintf("%d taken, %d given to others", taken, given)})
}

// orderPlacer tells the placer what it may do. It needs the lease itself, not only that
// we are attached: placements are written under it.
func (a *agent) orderPlacer() {
	if a.placer == nil {
		return
	}
	a.placer.SetOrders(recovery.PlacerOrders{Epoch: a.grant.Epoch, Paused: a.suspended(recovery.ActTakeTopic),
		Attached: a.attachment == recovery.Attached && a.grant.LeaseID != 0 && a.verified && !a.doubted() && a.mode.Mode.Known()})
}

// followBrokers feeds the reconciler and the placer with all brokers' states and
// assignments. Our own assignments are taken up first: a topic that was just given away
// is not wanted here any more when the placer learns of it.
func (a *agent) followBrokers(ctx context.Context, id string) error {
	keys := a.main.Keys()
	return a.main.Follow(ctx, cluster.Target{Key: keys.Brokers(), Prefix: true}, a.inOrder(ctx, func(u cluster.Update) {
		a.assignmentsSeen(id, mine(u, keys, id))
		modes := map[string]recovery.Mode{}
		var stateless []string
		var puts, deletes []recovery.Assignment
		for _, kv := range u.Puts {
			if id, topic, ok := keys.ParseAssignment(kv.Key); ok {
				puts = append(puts, recovery.Assignment{Topic: topic, Place: recovery.Place{
					Broker: id, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}})
			} else if id, ok := keys.ParseState(kv.Key); ok {
				if s, err := cluster.ParseState(kv.Value); err == nil {
					modes[id] = recovery.Mode(s.Mode)
				} else {
					modes[id] = recovery.Unreadable
				}
			}
		}
		for _, key := range u.Deletes {
			if id, topic, ok := keys.ParseAssignment(key); ok {
				deletes = append(deletes, recovery.Assignment{Topic: topic, Place: recovery.Place{Broker: id}})
			} else if id, ok := keys.ParseState(key); ok {
				stateless = append(stateless, id)
			}
		}
		a.placer.Update(func(r *recovery.Roster, now time.Time) {
			r.SetModes(u.Full, modes, stateless, now)
			r.SetPlaces(u.Full, puts, deletes)
		})
	}), a.followError(ctx, "all brokers"))
}

// maxOthers bounds what a status says of brokers one by one.
const maxOthers = 50

// fleetStatus is nil where nobody here watches the fleet.
func (a *agent) fleetStatus() *FleetStatus {
	if a.placer == nil {
		return nil
	}
	peers, complete := a.placer.Fleet()
	if !complete {
		return nil
	}
	fleet := &FleetStatus{Others: []PeerStatus{}}
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
			fleet.Others = append(fleet.Others, PeerStatus{ID: id, Registered: p.Registered, Mode: string(p.Mode)})
		}
	}
	return fleet
}

// mine is the part of an update that is about one broker.
func mine(u cluster.Update, keys cluster.Keys, id string) cluster.Update {
	part := cluster.Update{Full: u.Full, Revision: u.Revision}
	ours := func(key string) bool {
		owner, _, ok := keys.ParseAssignment(key)
		return ok && owner == id
	}
	for _, kv := range u.Puts {
		if ours(kv.Key) {
			part.Puts = append(part.Puts, kv)
		}
	}
	for _, key := range u.Deletes {
		if ours(key) {
			part.Deletes = append(part.Deletes, key)
		}
	}
	return part
}

// followFleet feeds the placer with who is registered.
func (a *agent) followFleet(ctx context.Context) error {
	keys := a.main.Keys()
	ids := func(list []string) (out []string) {
		for _, key := range list {
			if id, ok := keys.ParseRegistration(key); ok {
				out = append(out, id)
			}
		}
		return out
	}
	return a.main.Follow(ctx, cluster.Target{Key: keys.Registrations(), Prefix: true, KeysOnly: true}, func(u cluster.Update) {
		a.placer.Update(func(r *recovery.Roster, now time.Time) {
			r.SetRegistered(u.Full, ids(u.PutKeys()), ids(u.Deletes), now)
		})
	}, a.followError(ctx, "registrations"))
}

// ignoredRecord tells of a key that looks like a topic's record and is none. What lies
// below a record is others' business.
func (a *agent) ignoredRecord(key string) {
	form := a.main.Keys().TopicRecords() + "NAMESPACE/TOPIC"
	a.log.Warn("topic record ignored: want "+form, "key", key)
	a.event(Event{Kind: "topics", To: "ignored", Reason: "record", Detail: key + " does not name a topic: write " + form})
}

// followTopics feeds the placer with the topics that there are.
func (a *agent) followTopics(ctx context.Context) error {
	keys := a.main.Keys()
	topics := func(list []string) (out []string) {
		for _, key := range list {
			if topic, ok := keys.ParseTopicRecord(key); ok {
				out = append(out, topic)
			} else if !strings.Contains(strings.TrimPrefix(key, keys.TopicRecords()), "/") {
				a.ignoredRecord(key)
			}
		}
		return out
	}
	return a.main.Follow(ctx, cluster.Target{Key: keys.TopicRecords(), Prefix: true, KeysOnly: true}, func(u cluster.Update) {
		a.placer.Update(func(r *recovery.Roster, _ time.Time) {
			r.SetTopics(u.Full, topics(u.PutKeys()), topics(u.Deletes))
		})
	}, a.followError(ctx, "topics"))
}
