package danube_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/standin/danube"
)

func newMetadata(t *testing.T) *danube.Metadata {
	t.Helper()
	t.Parallel()
	m, err := danube.StartMetadata("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func raftConfig(t *testing.T, m *danube.Metadata) danube.Config {
	return danube.Config{Metadata: m.Addr, DataDir: t.TempDir(), Times: quick(400 * time.Millisecond), Stderr: io.Discard}
}

func raftNode(t *testing.T, cfg danube.Config) *node {
	t.Helper()
	b, err := danube.Raft(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return attach(t, b, cfg.DataDir)
}

func awaitKey(t *testing.T, m *danube.Metadata, key, value string) {
	t.Helper()
	await(t, key+" to be "+value, func() (bool, string) { v := m.Keys()[key]; return v == value, v })
}

func stateOf(n *node) string { return "/cluster/brokers/" + n.ID() + "/state" }

// create creates the topic through the admin API and waits until the broker serves it.
func (n *node) create(topic string) {
	n.t.Helper()
	await(n.t, "the topic to be created", func() (bool, string) {
		_, err := n.topics.CreateTopic(n.t.Context(), &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
		return err == nil, fmt.Sprint(err)
	})
	n.awaitLoaded(topic)
}

func leading(t *testing.T, n *node) *node {
	t.Helper()
	await(t, "a leader", func() (bool, string) { return n.Status().Leads, "" })
	return n
}

func TestWithRaftTheIdIsForLifeAndAssignedTopicsAreLoadedAtTheStart(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	cfg.Times = quick(bound)
	first := leading(t, raftNode(t, cfg))
	first.create(topic)
	first.produce(topic, 3)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if id, err := os.ReadFile(filepath.Join(cfg.DataDir, "node_id")); err != nil || string(id) != first.ID() {
		t.Errorf("node_id %s, %v; want %s", id, err, first.ID())
	}
	second := raftNode(t, cfg)
	if second.ID() != first.ID() {
		t.Errorf("id %s, then %s", first.ID(), second.ID())
	}
	second.awaitLoaded(topic)
	if n, err := second.Count(t.Context(), topic); err != nil || n.Here != 3 {
		t.Errorf("%+v, %v", n, err)
	}
	second.noDisaster()
}

func TestWithRaftARestartPastTheTTLComesBackActive(t *testing.T) {
	m := newMetadata(t)
	peer := leading(t, raftNode(t, raftConfig(t, m)))
	cfg := raftConfig(t, m)
	b := raftNode(t, cfg)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	awaitKey(t, m, "/cluster/register/"+b.ID(), "")
	awaitKey(t, m, stateOf(b), "")
	raftNode(t, cfg)
	awaitKey(t, m, stateOf(b), `{"mode":"active","reason":"boot"}`)
	peer.noDisaster()
}

func TestWithRaftADrainedBrokerIsActiveAfterARestart(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	b, _ := raftNode(t, cfg), raftNode(t, raftConfig(t, m))
	awaitBrokers(t, b, 2)
	if _, err := b.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: b.ID()}); err != nil {
		t.Fatal(err)
	}
	awaitKey(t, m, stateOf(b), `{"mode":"drained","reason":"no_topics"}`)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	raftNode(t, cfg)
	awaitKey(t, m, stateOf(b), `{"mode":"active","reason":"boot"}`)
}

func TestWithRaftJoinStartsDrained(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	cfg.Join = true
	b := raftNode(t, cfg)
	awaitKey(t, m, stateOf(b), `{"mode":"drained","reason":"join"}`)
	if _, err := b.brokers.ActivateBroker(t.Context(), &danubepb.ActivateBrokerRequest{BrokerId: b.ID()}); err != nil {
		t.Fatal(err)
	}
	awaitKey(t, m, stateOf(b), `{"mode":"active","reason":"admin_activate"}`)
}

func TestWithRaftTheAdminPortIsOpenBeforeTheClusterIsJoined(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	cfg.JoinDelay = bound
	launched, err := danube.LaunchRaft(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := attach(t, launched, cfg.DataDir)
	await(t, "an answer", func() (bool, string) {
		_, err := b.cluster.ClusterStatus(t.Context(), &danubepb.Empty{})
		return status.Code(err) == codes.Unavailable && status.Convert(err).Message() == "the cluster is not joined yet", fmt.Sprint(err)
	})
	joined := raftNode(t, raftConfig(t, m))
	leading(t, joined)
	await(t, "the leader to be told", func() (bool, string) {
		st, err := joined.cluster.ClusterStatus(t.Context(), &danubepb.Empty{})
		return err == nil && fmt.Sprint(st.SelfNodeId) == joined.ID() && st.LeaderId == st.SelfNodeId && len(st.Voters) == 1, fmt.Sprint(st, err)
	})
}

func TestWithRaftUnloadBrokerDrainsOnlyIfAnotherIsActive(t *testing.T) {
	m := newMetadata(t)
	objects := t.TempDir()
	cfg, other := raftConfig(t, m), raftConfig(t, m)
	cfg.Times, other.Times = quick(bound), quick(bound)
	cfg.Times.Assign, other.Times.Assign = 0, 0 // the leader waits for the broker that unloads
	cfg.Times.React = 100 * time.Millisecond
	cfg.Objects, other.Objects = objects, objects
	b := leading(t, raftNode(t, cfg))
	b.create(topic)
	b.produce(topic, 2)
	unload := func(n *node) error {
		_, err := n.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: n.ID()})
		return err
	}
	if err := unload(b); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("alone: %v", err)
	}
	second := raftNode(t, other)
	awaitBrokers(t, b, 2)
	awaitKnown(t, b, second.ID(), 0)
	if err := unload(b); err != nil {
		t.Fatal(err)
	}
	second.awaitLoaded(topic)
	awaitKey(t, m, stateOf(b), `{"mode":"drained","reason":"drain_complete"}`)
	if at, err := second.Produce(t.Context(), topic, nil); err != nil || at != 2 {
		t.Errorf("produced at %d, %v; want 2", at, err)
	}
	awaitBrokers(t, second, 2)
	if err := unload(second); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("beside a drained one: %v", err)
	}
	b.noDisaster()
	second.noDisaster()
}

func TestWithRaftUnloadTopicNeedsTwoBrokers(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	cfg.Times = quick(bound)
	b := leading(t, raftNode(t, cfg))
	b.create(topic)
	unload := func() error {
		_, err := b.topics.UnloadTopic(t.Context(), &danubepb.TopicRequest{Name: topic})
		return err
	}
	if err := unload(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("alone: %v", err)
	}
	other := cfg
	other.DataDir = t.TempDir()
	second := raftNode(t, other)
	awaitBrokers(t, b, 2)
	awaitKnown(t, b, second.ID(), 0)
	if err := unload(); err != nil {
		t.Fatal(err)
	}
	second.awaitLoaded(topic)
	b.noDisaster()
}

func TestWithRaftARegistrationThatRanOutComesBackDrainedAndItsTopicsAreDestroyed(t *testing.T) {
	m := newMetadata(t)
	steady := raftConfig(t, m)
	steady.Times = quick(bound)
	peer := leading(t, raftNode(t, steady))
	front := newFrontOf(t, m.Addr)
	cfg := raftConfig(t, m)
	cfg.Times = quick(time.Second)
	cfg.Metadata = front.Addr()
	b := raftNode(t, cfg)
	awaitBrokers(t, peer, 2)
	awaitKnown(t, peer, b.ID(), 0)
	// A drained peer leaves the topic to the other.
	if _, err := peer.brokers.UnloadBroker(t.Context(), &danubepb.UnloadBrokerRequest{BrokerId: peer.ID()}); err != nil {
		t.Fatal(err)
	}
	_, err := peer.topics.CreateTopic(t.Context(), &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
	if err != nil {
		t.Fatal(err)
	}
	b.awaitLoaded(topic)
	if _, err := peer.brokers.ActivateBroker(t.Context(), &danubepb.ActivateBrokerRequest{BrokerId: peer.ID()}); err != nil {
		t.Fatal(err)
	}
	front.SetDown(true)
	awaitKey(t, m, "/cluster/register/"+b.ID(), "")
	peer.awaitLoaded(topic)
	cut := time.Now()
	await(t, "the broker to have failed past its TTL", func() (bool, string) { return time.Since(cut) > cfg.Times.TTL*2, "" })
	front.SetDown(false)
	b.awaitDisaster(danube.Destroyed, topic)
	awaitKey(t, m, stateOf(b), `{"mode":"drained","reason":"registration_expired"}`)
	peer.noDisaster()
}

func TestWithRaftLeasesRunOutOnlyWhileSomebodyIsThere(t *testing.T) {
	m := newMetadata(t)
	cfg := raftConfig(t, m)
	b := raftNode(t, cfg)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	await(t, "twice the TTL to pass", func() (bool, string) { return time.Since(down) > 2*cfg.Times.TTL, "" })
	if m.Keys()["/cluster/register/"+b.ID()] == "" {
		t.Error("the registration ran out while nobody was there to notice")
	}
	raftNode(t, raftConfig(t, m))
	awaitKey(t, m, "/cluster/register/"+b.ID(), "")
}
