package agent

import "holdfast/brokerapi"

// unable is why clients are not well served by a broker whose process is well; nil: they are, or
// nobody can tell. It decides readiness alone: what the broker needs for it may fail all brokers.
func (a *agent) unable() error {
	who, _ := a.identity.get()
	return who.Unable
}

// staleView says that the broker does not see what changes in its cluster any more, with the
// remedy; empty: it does, or does not tell.
func (a *agent) staleView() string {
	who, _ := a.identity.get()
	for _, n := range who.Notes {
		if n.Kind == brokerapi.StaleView {
			return n.Text
		}
	}
	return ""
}

// noteView tells of a broker that has become blind. Nothing else is done: it may serve what
// it has, and its lease says whether it may.
func (a *agent) noteView() {
	detail := a.staleView()
	if (detail != "") == a.viewStale {
		return
	}
	a.viewStale = detail != ""
	if a.viewStale {
		a.log.Error("the broker does not see what changes in etcd any more", "detail", detail, "epoch", a.memory.Epoch)
		a.event(Event{Kind: "broker", To: "stale_view", Reason: "stale_view", Epoch: a.memory.Epoch, Detail: detail})
		return
	}
	a.log.Info("the broker's view is not known to be stale any more", "epoch", a.memory.Epoch)
	a.event(Event{Kind: "broker", From: "stale_view", To: "view_cleared", Epoch: a.memory.Epoch})
}
