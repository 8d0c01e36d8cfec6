package agent

import (
	"context"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery"
)

// What is here looks after brokers that read etcd themselves and whose watches may have died.

// registeredID is the id that the broker's keys stand under. It is safe for concurrent use.
func (a *agent) registeredID() string { return a.view.Load().registeredAs }

// assignedView is the two sides of a broker's view.
type assignedView struct {
	a *agent
	brokerapi.Viewer
}

// Compare implements recovery.ViewSource.
func (v assignedView) Compare(ctx context.Context, _ recovery.ViewOrders) (is, believed []string, err error) {
	if is, err = v.a.main.Assignments(ctx, v.a.registeredID()); err != nil {
		return nil, nil, err
	}
	believed, err = v.Believed(ctx)
	return is, believed, err
}

// storedOwners is whose the topics are by the brokers' own locks.
type storedOwners struct{ *cluster.Client }

// RecentOwners implements recovery.OwnersStore.
func (s storedOwners) RecentOwners(ctx context.Context, limit int) (recent []recovery.TopicOwner, all int64, err error) {
	found, all, err := s.Client.RecentOwners(ctx, limit)
	owners := make([]recovery.TopicOwner, len(found))
	for i, o := range found {
		owners[i] = topicOwner(o)
	}
	return owners, all, err
}

// OwnersOf implements recovery.OwnersStore.
func (s storedOwners) OwnersOf(ctx context.Context, topics []string) (map[string]recovery.TopicOwner, error) {
	found, err := s.Owners(ctx, topics)
	owners := make(map[string]recovery.TopicOwner, len(found))
	for topic, o := range found {
		if o.Malformed == "" {
			owners[topic] = topicOwner(o)
		}
	}
	return owners, err
}

func topicOwner(o cluster.Owner) recovery.TopicOwner {
	return recovery.TopicOwner{Topic: o.Topic, Owner: o.BrokerID, Revision: o.ModRevision}
}

// viewSource is where a broker shows whether its watches live; nil: it does not. Brokers that
// own topics by locks show it where the locks are in our etcd, which is theirs then.
func (a *agent) viewSource() recovery.ViewSource {
	if b, ok := a.broker.(brokerapi.Viewer); ok && a.can.View {
		return assignedView{a, b}
	}
	if b, ok := a.broker.(brokerapi.OwnerTeller); ok && a.can.Owner && a.cfg.layout() != nil {
		return &recovery.OwnersView{Self: a.registeredID, Store: storedOwners{a.main}, Broker: b}
	}
	return nil
}

// newViewer makes the part that finds a broker whose watches have died; nil: none can be found.
func (a *agent) newViewer() *recovery.Viewer {
	source := a.viewSource()
	if source == nil {
		return nil
	}
	return recovery.NewViewer(source, a.settings().AuditInterval, a.settings().LoadTimeout, a.log.With("part", "view"))
}

// orderWatching tells what may be looked after. attached: so is the broker, it answers,
// and it is the process that was decided about.
func (a *agent) orderWatching(attached bool) {
	if a.viewer != nil {
		a.viewer.SetOrders(recovery.ViewOrders{Epoch: a.memory.Epoch, Instance: a.memory.Instance, Attached: attached})
		away := a.keeper.View().FailureStreak > 0
		if a.viewAway && !away { // what watched etcd has met the same
			a.viewer.Look()
		}
		a.viewAway = away
	}
}

// staleView is what differs for too long between the broker's view and etcd; the zero one
// where it is not known.
func (a *agent) staleView() recovery.StaleView {
	if a.viewer == nil {
		return recovery.StaleView{}
	}
	return a.viewer.View()
}

// viewChanges is nil where nobody looks.
func (a *agent) viewChanges() <-chan struct{} {
	if a.viewer == nil {
		return nil
	}
	return a.viewer.Changes()
}

// noteView tells of a broker that has become blind. Nothing else is done: it may serve what
// it has, and its lease says whether it may.
func (a *agent) noteView() {
	v := a.staleView()
	if v.Stale == a.viewStale {
		return
	}
	a.viewStale = v.Stale
	if v.Stale {
		a.log.Error("the broker does not see what changes in etcd any more", "detail", v.Detail(), "since", v.Since, "epoch", a.memory.Epoch)
		a.event(Event{Kind: "broker", To: "stale_view", Reason: "stale_view", Epoch: a.memory.Epoch, Detail: v.Detail()})
		return
	}
	a.log.Info("the broker's view is not known to be stale any more", "epoch", a.memory.Epoch)
	a.event(Event{Kind: "broker", From: "stale_view", To: "view_cleared", Epoch: a.memory.Epoch})
}
