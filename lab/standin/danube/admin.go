package danube

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
)

// brokerAdmin is the admin API's part about brokers. It answers from the cache.
type brokerAdmin struct {
	danubepb.UnimplementedBrokerAdminServer
	b *Broker
}

func (a brokerAdmin) ListBrokers(context.Context, *danubepb.Empty) (*danubepb.BrokerListResponse, error) {
	c := a.b.cache
	leader, found := c.leader()
	list := &danubepb.BrokerListResponse{}
	for _, id := range c.brokers() {
		r, ok := c.registration(id)
		if !ok {
			continue
		}
		role := "None"
		if found {
			role = "Cluster_Follower"
			if id == leader {
				role = "Cluster_Leader"
			}
		}
		state, _ := c.get(stateKey(id))
		list.Brokers = append(list.Brokers, &danubepb.BrokerInfo{
			BrokerId: id, BrokerAddr: r.BrokerURL, BrokerRole: role,
			AdminAddr: r.AdminAddr, MetricsAddr: r.PromExporter, BrokerStatus: mode(state),
		})
	}
	return list, nil
}

func (a brokerAdmin) ActivateBroker(ctx context.Context, r *danubepb.ActivateBrokerRequest) (*danubepb.ActivateBrokerResponse, error) {
	if r.BrokerId == "" {
		return nil, status.Error(codes.InvalidArgument, "broker_id must be provided to activate a broker")
	}
	reason := r.Reason
	if reason == "" {
		reason = "admin_activate"
	}
	if err := a.set(ctx, r.BrokerId, modeActive, reason); err != nil {
		return nil, err
	}
	return &danubepb.ActivateBrokerResponse{Success: true}, nil
}

func (a brokerAdmin) set(ctx context.Context, id, mode, reason string) error {
	if err := a.b.store.put(ctx, stateKey(id), encode(brokerState{mode, reason})); err != nil {
		return status.Errorf(codes.Internal, "Failed to set broker state to %s: %v", mode, err)
	}
	return nil
}

// UnloadBroker is the drain. It needs another broker that is active.
func (a brokerAdmin) UnloadBroker(ctx context.Context, r *danubepb.UnloadBrokerRequest) (*danubepb.UnloadBrokerResponse, error) {
	brokers := a.b.cache.brokers()
	if len(brokers) < 2 {
		return nil, status.Error(codes.FailedPrecondition, "Cannot unload broker: single broker cluster detected.")
	}
	if r.BrokerId == "" {
		return nil, status.Error(codes.InvalidArgument, "broker_id must be provided to unload a broker")
	}
	others := 0
	for _, id := range brokers {
		if id != r.BrokerId && a.b.modeOf(ctx, id) == modeActive {
			others++
		}
	}
	if others == 0 {
		return nil, status.Error(codes.FailedPrecondition, "Cannot unload broker: no other active brokers available for reassignment.")
	}
	topics := a.b.cache.assigned(r.BrokerId)
	topics = keep(topics, r.NamespacesInclude, true)
	topics = keep(topics, r.NamespacesExclude, false)
	answer := &danubepb.UnloadBrokerResponse{Started: !r.DryRun, Total: uint32(len(topics))}
	switch {
	case r.DryRun:
		answer.Pending = answer.Total
		return answer, nil
	case len(topics) == 0:
		return answer, a.set(ctx, r.BrokerId, modeDrained, "no_topics")
	}
	if err := a.set(ctx, r.BrokerId, modeDraining, "admin_unload"); err != nil {
		return nil, err
	}
	for _, topic := range topics {
		if err := a.b.requestUnload(ctx, topic); err != nil {
			answer.Failed++
			answer.FailedTopics = append(answer.FailedTopics, fmt.Sprintf("%s: %v", topic, err))
			continue
		}
		answer.Succeeded++
	}
	return answer, nil
}

// keep leaves the topics in, or not in, one of the namespaces; all if there are none.
func keep(topics, namespaces []string, in bool) (kept []string) {
	if len(namespaces) == 0 {
		return topics
	}
	for _, topic := range topics {
		found := false
		for _, ns := range namespaces {
			found = found || strings.HasPrefix(topic, "/"+ns+"/")
		}
		if found == in {
			kept = append(kept, topic)
		}
	}
	return kept
}

// requestUnload marks the topic and deletes its assignment, in two steps. The leader may
// be between them.
func (b *Broker) requestUnload(ctx context.Context, topic string) error {
	owner, ok := b.cache.owner(topic)
	if !ok {
		return fmt.Errorf("unable to find topic %s", topic)
	}
	from := number(owner)
	if err := b.store.put(ctx, unassignedKey(topic), encode(Marker{Reason: reasonUnload, FromBroker: &from})); err != nil {
		return err
	}
	return b.store.delete(ctx, assignmentKey(owner, topic))
}

// clusterAdmin is there with Raft only.
type clusterAdmin struct {
	danubepb.UnimplementedClusterAdminServer
	b *Broker
}

func (a clusterAdmin) ClusterStatus(context.Context, *danubepb.Empty) (*danubepb.ClusterStatusResponse, error) {
	leader, _ := a.b.cache.leader()
	answer := &danubepb.ClusterStatusResponse{
		LeaderId: number(leader), CurrentTerm: 1, LastApplied: uint64(a.b.topics.loadCount()) + 1,
		SelfNodeId: number(a.b.id), RaftAddr: a.b.cfg.Metadata,
	}
	for _, key := range a.b.cache.below(nodesPrefix) {
		answer.Voters = append(answer.Voters, number(strings.TrimPrefix(key, nodesPrefix)))
	}
	return answer, nil
}
