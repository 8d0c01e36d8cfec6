package danube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
)

// topicAdmin is the admin API's part about topics.
type topicAdmin struct {
	danubepb.UnimplementedTopicAdminServer
	b *Broker
}

func (a topicAdmin) ListBrokerTopics(_ context.Context, r *danubepb.BrokerRequest) (*danubepb.TopicInfoListResponse, error) {
	list := &danubepb.TopicInfoListResponse{}
	for _, name := range a.b.cache.assigned(r.BrokerId) {
		list.Topics = append(list.Topics, &danubepb.TopicInfo{Name: name, BrokerId: r.BrokerId, Delivery: a.b.deliveryOf(name)})
	}
	return list, nil
}

func (b *Broker) deliveryOf(topic string) string {
	if d, ok := b.cache.delivery(topic); ok {
		return d
	}
	return "NonReliable"
}

// CreateTopic does not look whether there is one: the leader assigns what is there again.
func (a topicAdmin) CreateTopic(ctx context.Context, r *danubepb.NewTopicRequest) (*danubepb.TopicResponse, error) {
	delivery, ok := danubepb.DispatchStrategy_name[int32(r.DispatchStrategy)]
	if !ok {
		return nil, status.Error(codes.InvalidArgument, "invalid dispatch_strategy value")
	}
	if err := a.create(ctx, r.Name, delivery, r.SchemaSubject); err != nil {
		return nil, status.Errorf(codes.NotFound, "Unable to create the topic %s due to %v", r.Name, err)
	}
	return &danubepb.TopicResponse{Success: true}, nil
}

func (a topicAdmin) create(ctx context.Context, topic, delivery string, subject *string) error {
	if !validTopic(topic) {
		return fmt.Errorf("the topic %q has an invalid format, should be /namespace_name/topic_name", topic)
	}
	ns := namespaceOf(topic)
	if _, found, err := a.b.store.get(ctx, namespacesPrefix+ns+"/policy"); err == nil && !found {
		return fmt.Errorf("unable to find the namespace %s", ns)
	}
	// The leader may assign it before its metadata is there, which its broker waits for.
	puts := [][2]string{
		{unassignedKey(topic), "null"},
		{namespacesPrefix + ns + "/topics" + topic, "null"},
		{topicKey(topic, "delivery"), string(encode(delivery))},
	}
	if subject != nil {
		puts = append(puts, [2]string{topicKey(topic, "schema_subject"), string(encode(*subject))})
	}
	for _, p := range puts {
		if err := a.b.store.put(ctx, p[0], []byte(p[1])); err != nil {
			return err
		}
	}
	return nil
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

func (a topicAdmin) ListSubscriptions(_ context.Context, r *danubepb.TopicRequest) (*danubepb.SubscriptionListResponse, error) {
	return &danubepb.SubscriptionListResponse{Subscriptions: a.subscriptions(r.Name)}, nil
}

func (a topicAdmin) subscriptions(topic string) (subs []string) {
	prefix := topicKey(topic, "subscriptions/")
	for _, key := range a.b.cache.below(prefix) {
		sub, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		subs = append(subs, sub)
	}
	return slices.Compact(subs)
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
		answer.ResponseType = danubepb.TopicLookupResponse_Connect
		own := d.b.url(d.b.client.addr)
		answer.ConnectUrl, answer.BrokerUrl = own, own
		if d.b.cfg.Advertise != "" {
			answer.ConnectUrl = d.b.url(d.b.cfg.Advertise)
			answer.BrokerUrl = answer.ConnectUrl
		}
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
