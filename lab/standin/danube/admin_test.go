package danube_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/standin/danube"
)

func TestListsShowTheCacheAndLookupShowsWhatIsLoaded(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.put(s.keys.Assignment(b.ID(), topic), "null") // no metadata: assigned and not loaded
	await(t, "the cache to know", func() (bool, string) {
		list, err := b.topics.ListBrokerTopics(t.Context(), &danubepb.BrokerRequest{BrokerId: b.ID()})
		return err == nil && len(list.Topics) == 1 && list.Topics[0].Name == topic, fmt.Sprint(list, err)
	})
	look := func(topic string) (danubepb.TopicLookupResponse_LookupType, error) {
		a, err := b.discovery.TopicLookup(t.Context(), &danubepb.TopicLookupRequest{RequestId: 7, Topic: topic})
		if err == nil && a.RequestId != 7 {
			t.Errorf("request id %d", a.RequestId)
		}
		return a.GetResponseType(), err
	}
	if kind, err := look(topic); err != nil || kind != danubepb.TopicLookupResponse_Redirect {
		t.Errorf("assigned and not loaded: %v, %v", kind, err)
	}
	if _, err := look("/default/nobody"); status.Code(err) != codes.NotFound {
		t.Errorf("nobody's: %v", err)
	}
	s.serve(b, "/default/other")
	if kind, err := look("/default/other"); err != nil || kind != danubepb.TopicLookupResponse_Connect {
		t.Errorf("loaded: %v, %v", kind, err)
	}
	list, err := b.brokers.ListBrokers(t.Context(), &danubepb.Empty{})
	if err != nil || len(list.Brokers) != 1 {
		t.Fatal(list, err)
	}
	if i := list.Brokers[0]; i.BrokerId != b.ID() || i.BrokerAddr != "http://"+b.ClientAddr() || i.AdminAddr != "http://"+b.AdminAddr() || i.BrokerStatus != "active" {
		t.Errorf("listed as %v", i)
	}
}

func TestCreateTopicAnswersEveryErrorAsNotFound(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	for _, name := range []string{"no-slash", "/default", "/nowhere/t"} {
		if _, err := b.topics.CreateTopic(t.Context(), &danubepb.NewTopicRequest{Name: name}); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	await(t, "a leader", func() (bool, string) { return b.Status().Leads, "" })
	_, err := b.topics.CreateTopic(t.Context(), &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
	if err != nil {
		t.Fatal(err)
	}
	b.awaitLoaded(topic)
	// Created again it is assigned again, which nothing in the broker prevents.
	if _, err = b.topics.CreateTopic(t.Context(), &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable}); err != nil {
		t.Fatal(err)
	}
	b.awaitDisaster(danube.LoadedTwice, topic)
}

func TestUnloadsNeedTwoBrokers(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.serve(b, topic)
	if _, err := b.topics.UnloadTopic(t.Context(), &danubepb.TopicRequest{Name: topic}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("topic: %v", err)
	}
	if _, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: b.ID()}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("broker: %v", err)
	}
	b.noDisaster()
}

func TestUnloadBrokerMovesItsTopicsAndDrainsIt(t *testing.T) {
	s := newEtcd(t)
	objects := t.TempDir()
	share := func(c *danube.Config) { c.Objects = objects }
	b := etcdNode(t, s, share)
	await(t, "a leader", func() (bool, string) { return b.Status().Leads, "" })
	other := etcdNode(t, s, share)
	s.serve(b, topic)
	b.produce(topic, 4)
	if got, err := b.Consume(t.Context(), topic, "sub", 3); err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	awaitBrokers(t, b, 2)
	awaitKnown(t, b, other.ID(), 0)
	dry, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: b.ID(), DryRun: true})
	if err != nil || dry.Started || dry.Pending != 1 {
		t.Errorf("dry run: %v, %v", dry, err)
	}
	done, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: b.ID()})
	if err != nil || !done.Started || done.Total != 1 || done.Succeeded != 1 {
		t.Fatalf("unload: %v, %v", done, err)
	}
	other.awaitLoaded(topic)
	s.await(s.keys.State(b.ID()), `{"mode":"drained","reason":"drain_complete"}`)
	if got, err := other.Consume(t.Context(), topic, "sub", 10); err != nil || len(got) != 1 || got[0].Offset != 3 {
		t.Errorf("the consumer went on with %v, %v; want offset 3", got, err)
	}
	if at, err := other.Produce(t.Context(), topic, []byte("x")); err != nil || at != 4 {
		t.Errorf("produced at %d, %v; want 4", at, err)
	}
	if _, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: other.ID()}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("unload of the last active one: %v", err)
	}
	if _, err := b.brokers.ActivateBroker(t.Context(), &danubepb.ActivateBrokerRequest{BrokerId: b.ID(), Reason: "checked"}); err != nil {
		t.Fatal(err)
	}
	s.await(s.keys.State(b.ID()), `{"mode":"active","reason":"checked"}`)
	b.noDisaster()
	other.noDisaster()
}

func awaitBrokers(t *testing.T, b *node, n int) {
	t.Helper()
	await(t, "brokers to be listed", func() (bool, string) {
		list, err := b.brokers.ListBrokers(t.Context(), &danubepb.Empty{})
		return err == nil && len(list.Brokers) == n, fmt.Sprint(list, err)
	})
}

func TestUnloadBrokerWithoutTopicsDrainsAtOnce(t *testing.T) {
	s := newEtcd(t)
	b, _ := etcdNode(t, s, nil), etcdNode(t, s, nil)
	awaitBrokers(t, b, 2)
	if _, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: b.ID()}); err != nil {
		t.Fatal(err)
	}
	s.await(s.keys.State(b.ID()), `{"mode":"drained","reason":"no_topics"}`)
}

func TestAnUnknownFieldInARequestIsAnError(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	r := &danubepb.BrokerRequest{BrokerId: b.ID()}
	r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	if _, err := b.topics.ListBrokerTopics(t.Context(), r); status.Code(err) != codes.InvalidArgument {
		t.Errorf("admin: %v", err)
	}
	l := &danubepb.TopicLookupRequest{Topic: topic}
	l.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	if _, err := b.discovery.TopicLookup(t.Context(), l); status.Code(err) != codes.InvalidArgument {
		t.Errorf("discovery: %v", err)
	}
}

func TestClusterAdminIsNotThereInRelease07(t *testing.T) {
	b := etcdNode(t, newEtcd(t), nil)
	if _, err := b.cluster.ClusterStatus(t.Context(), &danubepb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

func TestMetricsNameTheBrokerAndItsStart(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.serve(b, topic)
	res, err := http.Get("http://" + b.MetricsAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("\nprocess_start_time_seconds{broker=%q} ", b.ID()),
		fmt.Sprintf("\ndanube_broker_topics_owned{broker=%q} 1\n", b.ID()),
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%q is not in\n%s", want, body)
		}
	}
}
