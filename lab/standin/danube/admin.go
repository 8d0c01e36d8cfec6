package danube

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
)

// serveAdmin opens the admin port, after everything else but with Raft. Nothing is answered before the
// broker has its metadata.
func (b *Broker) serveAdmin() error {
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		select {
		case <-b.joined:
			return handle(ctx, req)
		default:
			return nil, status.Error(codes.Unavailable, "the cluster is not joined yet")
		}
	}))
	danubepb.RegisterBrokerAdminServer(s, brokerAdmin{b: b})
	danubepb.RegisterTopicAdminServer(s, topicAdmin{b: b})
	if b.cfg.Raft {
		danubepb.RegisterClusterAdminServer(s, clusterAdmin{b: b})
	}
	return serve(b.cfg.AdminAddr, s.Serve)
}

// serve listens and serves until the process ends.
func serve(addr string, by func(net.Listener) error) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen at %q: %w", addr, err)
	}
	go func() { _ = by(l) }()
	return nil
}

// serveMetrics opens the port for Prometheus, first of all.
func (b *Broker) serveMetrics() error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintf(w, "# TYPE danube_broker_topics_owned gauge\ndanube_broker_topics_owned{broker=%q} %d\n", b.id, len(b.loadedNow()))
		fmt.Fprintf(w, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds{broker=%q} %.3f\n", b.id, float64(b.started.UnixMilli())/1000)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return serve(b.cfg.MetricsAddr, server.Serve)
}

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
	return &danubepb.ActivateBrokerResponse{Success: true}, a.set(ctx, r.BrokerId, modeActive, r.Reason)
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
	answer := &danubepb.UnloadBrokerResponse{Started: true, Total: uint32(len(topics))}
	if len(topics) == 0 {
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
		SelfNodeId: number(a.b.id), RaftAddr: a.b.cfg.Etcd,
	}
	for _, key := range a.b.cache.below(nodesPrefix) {
		answer.Voters = append(answer.Voters, number(strings.TrimPrefix(key, nodesPrefix)))
	}
	return answer, nil
}

// topicAdmin is the admin API's part about topics.
type topicAdmin struct {
	danubepb.UnimplementedTopicAdminServer
	b *Broker
}

func (a topicAdmin) ListBrokerTopics(_ context.Context, r *danubepb.BrokerRequest) (*danubepb.TopicInfoListResponse, error) {
	list := &danubepb.TopicInfoListResponse{}
	for _, name := range a.b.cache.assigned(r.BrokerId) {
		list.Topics = append(list.Topics, &danubepb.TopicInfo{Name: name, BrokerId: r.BrokerId, Delivery: "Reliable"})
	}
	return list, nil
}

// CreateTopic does not look whether there is one: the leader assigns what is there again. It may
// assign it before its metadata is there, which its broker waits for.
func (a topicAdmin) CreateTopic(ctx context.Context, r *danubepb.NewTopicRequest) (*danubepb.TopicResponse, error) {
	if !validTopic(r.Name) {
		return nil, status.Errorf(codes.NotFound, "the topic %q has an invalid format, should be /namespace_name/topic_name", r.Name)
	}
	for _, p := range [][2]string{{unassignedKey(r.Name), "null"}, {topicKey(r.Name, "delivery"), `"Reliable"`}} {
		if err := a.b.store.put(ctx, p[0], []byte(p[1])); err != nil {
			return nil, status.Errorf(codes.NotFound, "Unable to create the topic %s due to %v", r.Name, err)
		}
	}
	return &danubepb.TopicResponse{Success: true}, nil
}

func (a topicAdmin) UnloadTopic(ctx context.Context, r *danubepb.TopicRequest) (*danubepb.TopicResponse, error) {
	if len(a.b.cache.brokers()) < 2 {
		return nil, status.Error(codes.FailedPrecondition, "Cannot unload topic: single broker cluster detected.")
	}
	if err := a.b.requestUnload(ctx, r.Name); err != nil {
		return nil, status.Errorf(codes.NotFound, "Unable to unload the topic %s due to %v", r.Name, err)
	}
	return &danubepb.TopicResponse{Success: true}, nil
}

// discovery is on the clients' port.
type discovery struct {
	danubepb.UnimplementedDiscoveryServer
	b *Broker
}

// TopicLookup tells what is loaded. A topic that is assigned here and is not loaded is
// redirected, to this broker.
func (d discovery) TopicLookup(_ context.Context, r *danubepb.TopicLookupRequest) (*danubepb.TopicLookupResponse, error) {
	if !validTopic(r.Topic) {
		return nil, status.Errorf(codes.InvalidArgument, "The topic: %s has an invalid format, should be: /namespace_name/topic_name", r.Topic)
	}
	answer := &danubepb.TopicLookupResponse{RequestId: r.RequestId}
	if d.b.topics.get(r.Topic) != nil {
		own := "http://" + d.b.cfg.ClientAddr
		answer.ResponseType, answer.ConnectUrl, answer.BrokerUrl = danubepb.TopicLookupResponse_Connect, own, own
		return answer, nil
	}
	if owner, ok := d.b.cache.owner(r.Topic); ok {
		if reg, ok := d.b.cache.registration(owner); ok {
			answer.ResponseType = danubepb.TopicLookupResponse_Redirect
			answer.ConnectUrl, answer.BrokerUrl = reg.ConnectURL, reg.BrokerURL
			return answer, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Unable to find the requested topic: %s", r.Topic)
}
