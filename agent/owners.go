package agent

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// locks are the ownership locks as package recovery sees them, in this broker's name.
type locks struct {
	client      *cluster.Client
	brokerID    func() string // known before anything is asked
	incarnation string
	log         *slog.Logger
}

func (k locks) claimant(s topics.Standing) cluster.Claimant {
	return cluster.Claimant{BrokerID: k.brokerID(), Incarnation: k.incarnation, Epoch: s.Epoch, LeaseID: s.LeaseID}
}

var lockActs = map[recovery.LockStep]cluster.LockAct{
	recovery.LockTake: cluster.Take, recovery.LockRebind: cluster.Rebind, recovery.LockRelease: cluster.Release,
}

// Lock implements topics.LockStore.
func (k locks) Lock(ctx context.Context, s topics.Standing, requests []topics.LockRequest) ([]topics.Lock, error) {
	who := k.claimant(s)
	asked := make([]cluster.LockRequest, len(requests))
	for i, r := range requests {
		asked[i] = cluster.LockRequest{Act: lockActs[r.Step], Topic: r.Topic}
		if r.Step != recovery.LockTake { // only what is ours is rebound or released
			asked[i].Seen = cluster.Owner{Topic: r.Topic, BrokerID: who.BrokerID, Incarnation: who.Incarnation, ModRevision: r.Revision}
		}
	}
	after, err := k.client.Lock(ctx, who, asked)
	answers := make([]topics.Lock, len(after))
	for i, o := range after {
		answers[i] = lockOf(o, who)
	}
	return answers, err
}

// Look implements topics.LockStore.
func (k locks) Look(ctx context.Context, s topics.Standing, asked []string) ([]topics.Lock, error) {
	owners, err := k.client.Owners(ctx, asked)
	if err != nil {
		return nil, err
	}
	answers := make([]topics.Lock, len(asked))
	for i, topic := range asked {
		answers[i] = lockOf(owners[topic], k.claimant(s))
	}
	return answers, nil
}

// Under implements topics.LockStore.
func (k locks) Under(ctx context.Context, s topics.Standing) ([]string, error) {
	return k.client.OwnedTopics(ctx, s.LeaseID)
}

// FollowFree implements topics.LockStore.
func (k locks) FollowFree(ctx context.Context, topics []string, free func([]string)) error {
	return k.client.FollowFree(ctx, topics, free, func(err error) {
		if ctx.Err() == nil {
			k.log.Warn("watch failed, listing again", "what", "ownership locks", "class", classify(err), "err", err)
		}
	})
}

// lockOf is a lock as the claimant sees it.
func lockOf(o cluster.Owner, who cluster.Claimant) topics.Lock {
	l := topics.Lock{State: recovery.LockForeign, Revision: o.ModRevision}
	switch {
	case o.Free():
		l.State = recovery.LockFree
	case o.Current(who):
		l.State, l.Owner = recovery.LockOurs, o.BrokerID
	case o.Of(who):
		l.State, l.Owner = recovery.LockStale, o.BrokerID
	case o.Malformed != "":
		l.Owner = "nobody that can be told: " + o.Malformed
	case o.BrokerID == who.BrokerID:
		l.Owner = "another incarnation of broker " + o.BrokerID
	default:
		l.Owner = "broker " + o.BrokerID
	}
	return l
}

// newOwnership makes the part that holds the locks. Its metrics are there in any case;
// without locks the part itself is not.
func (a *agent) newOwnership(reg *prometheus.Registry) *topics.Ownership {
	log := a.log.With("part", "ownership")
	k := locks{client: a.main, brokerID: func() string { return a.brokerID }, incarnation: a.memory.Incarnation, log: log}
	o := topics.NewOwnership(topics.OwnershipSettings{
		RetryInterval: a.cfg.AcquireRetryInterval, RetryWindow: a.cfg.AcquireRetryWindow,
		Watch: a.cfg.AcquireWatch, AuditInterval: a.settings().AuditInterval,
	}, k, a.reconciler, log, reg)
	if !a.locking() {
		return nil
	}
	return o
}

// locking reports whether topics need their locks. In shadow mode nothing is written, and
// a lock would keep the broker away that serves.
func (a *agent) locking() bool { return a.cfg.OwnershipLocks == "on" && !a.cfg.Shadow }

// setOrders tells what may be done to topics. The locks come first: when the reconciler
// may act again, none of them counts as ours any more that etcd has not shown to be.
func (a *agent) setOrders(o recovery.Orders) {
	if a.ownership != nil {
		a.ownership.SetOrders(topics.LockOrders{
			Standing: topics.Standing{Epoch: o.Epoch, LeaseID: a.grant.LeaseID},
			Mode:     o.Mode, Attached: o.Attached && a.grant.LeaseID != 0,
		})
	}
	if a.moves != nil {
		a.moves.SetOrders(a.moveOrders(o))
	}
	a.reconciler.SetOrders(o)
}

// setAssigned tells which topics are assigned here. The reconciler comes first: what is
// not wanted any more loses its claim, by which the reconciler knows what we gave away
// ourselves.
func (a *agent) setAssigned(revision int64, full bool, puts, deletes []string) {
	puts = a.reconciler.SetAssigned(revision, full, puts, deletes)
	if a.ownership != nil {
		a.ownership.SetWanted(full, puts, deletes)
	}
}

// lockTrouble is why topics may wait for their locks; empty: nothing is known.
func (a *agent) lockTrouble() string {
	if a.ownership == nil {
		return ""
	}
	switch lastErr, elsewhere := a.ownership.Trouble(); {
	case lastErr != "":
		return ": ownership locks cannot be asked for: " + lastErr
	case elsewhere > 0:
		return ": " + control.Plural(elsewhere, "topic") + " owned by other brokers, tried again"
	}
	return ""
}

// noteConflicts tells of topics that turned out to be another broker's.
func (a *agent) noteConflicts() {
	if a.ownership == nil {
		return
	}
	n := a.ownership.Conflicts()
	if n > a.conflicts {
		a.event(control.Event{Kind: "topics", To: "foreign_owner", Epoch: a.grant.Epoch,
			Detail: control.Plural(n-a.conflicts, "topic") + " held or served here, and owned by another broker: unloaded here"})
	}
	a.conflicts = n
}
