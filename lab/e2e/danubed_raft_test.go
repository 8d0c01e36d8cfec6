package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
	standin "holdfast/lab/standin/danube"
)

// raftNode is a broker of release 0.8 whose topics a client creates. Its sidecar registers it in
// the etcd that Holdfast has for itself.
type raftNode struct {
	danubeBroker
}

// Assign is a client that creates the topics; the brokers' leader chooses.
func (b raftNode) Assign(ctx context.Context, _ string, topics ...string) error {
	for _, topic := range topics {
		_, err := b.Topics.CreateTopic(ctx, &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return err
		}
	}
	return nil
}

func (b raftNode) Driver() []string {
	return append(b.danubeBroker.Driver(), "--registration", "own")
}

func raftKindWith(m *standin.Metadata, change func(*harness.DanubeOptions)) kind {
	return kind{name: "danube with Raft", prepare: func(s *stage, o brokerOptions) (broker, error) {
		d, err := newDanubed(s, o, func(d *harness.DanubeOptions) {
			d.Etcd, d.Metadata = "", m.Addr
			if change != nil {
				change(d)
			}
		})
		if err != nil {
			return nil, err
		}
		return raftNode{danubeBroker{d, filepath.Join(s.Dir, o.ID+".pid")}}, nil
	}}
}

// newRaftStage is a stage whose brokers are of that release. They are in it by name.
func newRaftStage(t *testing.T, change func(*harness.DanubeOptions)) *stage {
	t.Helper()
	long(t)
	s := newStageOf(t, kind{})
	m, err := s.StartDanubeMetadata()
	s.must(err)
	s.kind = raftKindWith(m, change)
	return s
}

// alone makes a node and creates its topics while there is no other that could have them.
func (s *stage) alone(id string, o nodeOptions) *node {
	s.t.Helper()
	// Nothing in etcd tells when the brokers' cluster gives one a topic.
	o.Flags = append(o.Flags, "--audit-interval", "1s")
	n := s.prepare(id, o)
	n.start()
	n.awaitReady()
	n.equip()
	return n
}

// bare makes a node without topics.
func (s *stage) bare(id string) *node {
	s.t.Helper()
	return s.alone(id, nodeOptions{Topics: []string{}})
}

// statusOf is the mode of a broker as another one lists it.
func (n *node) statusOf(other *node) string {
	n.t.Helper()
	id, err := other.danubed().ID(n.ctx)
	n.must(err)
	list, err := n.danubed().Brokers.ListBrokers(n.ctx, &danubepb.Empty{})
	n.must(err)
	for _, b := range list.Brokers {
		if b.BrokerId == id {
			return b.BrokerStatus
		}
	}
	return "unknown"
}

// awaitStatusOf waits until the node lists the other in that mode.
func (n *node) awaitStatusOf(other *node, mode string) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, other.id+" to be listed as "+mode, func(context.Context) (bool, string) {
		now := n.statusOf(other)
		return now == mode, now
	}))
}

// awaitLoaded waits until the node's broker serves the topics.
func (n *node) awaitLoaded(topics ...string) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, fmt.Sprint(n.id, " to serve ", topics), func(ctx context.Context) (bool, string) {
		st, err := n.danubed().Status(ctx)
		for _, topic := range topics {
			if !slices.Contains(st.Loaded, topic) {
				return false, fmt.Sprint(st.Loaded, err)
			}
		}
		return true, ""
	}))
}

func TestDanubeRaftRestartPastTheTTLIsDrainedThoughTheBrokerCallsItselfActive(t *testing.T) {
	// The broker's own registration outlives ours, so it comes back with its topics.
	s := newRaftStage(t, func(o *harness.DanubeOptions) {
		o.TTL, o.Args = 30*time.Second, append(o.Args, "--report", "200ms") // the leader gives a topic only to who reported since it started
	})
	n := s.alone("n1", nodeOptions{})
	n.produces(3)
	peer := s.bare("n2")
	peer.awaitStatusOf(n, "active")
	from := s.revision()
	s.must(n.broker.Kill())
	unready := n.awaitNotReady()
	n.awaitExpiry(from)
	s.must(n.broker.Start(s.ctx)) // and serves, as it believes
	again, err := s.history.Await(s.ctx, bound, "the registration", from+1, harness.PutKey(s.keys.Registration(n.id)))
	s.must(err)
	n.withState(again, "drained", "stale_restart")
	peer.awaitStatusOf(n, "drained")
	n.await("drained", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Reason == "stale_restart" && st.Attachment == "attached" && st.Topics.Served == 0
	})
	n.awaitEvent(unready, "steer", "drained")
	peer.awaitLoaded(n.topics...)
	peer.keeps(n.topics, 3)
	n.neverReady(unready)
	n.onlyDrained(from)
	peer.alwaysReady(unready)

	n.activate()
	peer.awaitStatusOf(n, "active")
	contains(t, n.says("status"), "mode          active (e2e)")
}

func TestDanubeRaftDrainAndActivateAreHandedOver(t *testing.T) {
	s := newRaftStage(t, nil)
	n := s.alone("n1", nodeOptions{})
	n.produces(3)
	peer := s.bare("n2")
	peer.awaitStatusOf(n, "active")
	said := n.says("drain", "--reason", "new disks")
	contains(t, said, "mode drained (new disks)")
	if got := peer.statusOf(n); got != "drained" {
		t.Errorf("the broker is %s when drain returns", got)
	}
	peer.awaitLoaded(n.topics...)
	peer.keeps(n.topics, 3)
	unready := n.awaitNotReady()

	t.Log("it stays drained when its broker is restarted, which then calls itself active")
	s.must(n.broker.Kill())
	s.must(n.broker.Start(s.ctx))
	n.awaitEvent(unready, "steer", "drained")
	peer.awaitStatusOf(n, "drained")
	n.neverReady(unready)

	n.activate()
	if got := peer.statusOf(n); got != "active" {
		t.Errorf("the broker is %s when it is ready", got)
	}
	s.must(raftNode{danubeBroker{n.danubed(), ""}}.Assign(s.ctx, "", "/default/x", "/default/y", "/default/z"))
	s.must(harness.Await(s.ctx, bound, "a new topic", func(ctx context.Context) (bool, string) {
		st, err := n.danubed().Status(ctx)
		return len(st.Loaded) > 0, fmt.Sprint(st, err)
	}))
}
