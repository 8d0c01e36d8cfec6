package danube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/standin/danube"
)

func TestAMarkerThatTheLeaderTookAwayFirstIsNoMarker(t *testing.T) {
	s := newEtcd(t)
	leader := etcdNode(t, s, func(c *danube.Config) { c.Times.Assign = time.Nanosecond })
	await(t, "a leader", func() (bool, string) { return leader.Status().Leads, "" })
	awaitKnown(t, leader, leader.ID(), 0)
	slow := etcdNode(t, s, func(c *danube.Config) { c.Times.React = 500 * time.Millisecond })
	s.serve(slow, topic)
	_, err := s.Txn(t.Context()).Then(
		clientv3.OpPut("/cluster/unassigned"+topic, `{"reason":"unload","from_broker":`+slow.ID()+`}`),
		clientv3.OpDelete(s.keys.Assignment(slow.ID(), topic)),
	).Commit()
	if err != nil {
		t.Fatal(err)
	}
	slow.awaitDisaster(danube.Destroyed, topic)
	leader.awaitLoaded(topic)
}

func TestTheLeaderTakesEverythingFromTheDeadAndGivesItToTheLiving(t *testing.T) {
	s := newEtcd(t)
	leader := etcdNode(t, s, nil)
	await(t, "a leader", func() (bool, string) { return leader.Status().Leads, "" })
	dead := etcdNode(t, s, func(c *danube.Config) { c.Times = quick(2 * time.Second) })
	s.serve(dead, topic)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	leader.awaitLoaded(topic)
	s.await(s.keys.State(dead.ID()), "")
	s.await("/cluster/unassigned"+topic, "")
	if s.value(s.keys.Assignment(dead.ID(), topic)) != "" {
		t.Error("it is still assigned to the dead")
	}
	leader.noDisaster()
}

func TestARunningBrokerWhoseRegistrationRanOutDestroys(t *testing.T) {
	s := newEtcd(t)
	leader := etcdNode(t, s, nil)
	await(t, "a leader", func() (bool, string) { return leader.Status().Leads, "" })
	b := etcdNode(t, s, nil)
	s.serve(b, topic)
	s.remove(s.keys.Registration(b.ID()))
	b.awaitDisaster(danube.Destroyed, topic)
}

func TestTheLeaderGivesMarkedTopicsToAnotherActiveBroker(t *testing.T) {
	for _, c := range []struct{ name, marker string }{
		{"unload", `{"reason":"unload","from_broker":%[1]s}`},
		{"rebalance", `{"reason":"rebalance","from_broker":%[1]s,"to_broker":%[2]s}`},
		{"rebalance to one that is drained", `{"reason":"rebalance","from_broker":%[1]s,"to_broker":%[3]s}`},
		{"drain_redirect of one that is drained", `{"reason":"drain_redirect","from_broker":%[3]s}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEtcd(t)
			from := etcdNode(t, s, nil)
			await(t, "a leader", func() (bool, string) { return from.Status().Leads, "" })
			to, drained := etcdNode(t, s, nil), etcdNode(t, s, nil)
			s.put(s.keys.State(drained.ID()), `{"mode":"drained"}`)
			s.serve(from, "/default/load") // so that the other is the one with the fewest
			awaitKnown(t, from, from.ID(), 1)
			awaitKnown(t, from, to.ID(), 0)
			awaitKnown(t, from, drained.ID(), 0)
			s.describe(topic)
			s.put("/cluster/unassigned"+topic, fmt.Sprintf(c.marker, from.ID(), to.ID(), drained.ID()))
			to.awaitLoaded(topic)
			for _, b := range []*node{from, to, drained} {
				b.noDisaster()
			}
		})
	}
}

// awaitKnown waits until the leader counts so many topics of a broker.
func awaitKnown(t *testing.T, leader *node, id string, topics int) {
	t.Helper()
	await(t, "the leader to know broker "+id, func() (bool, string) {
		counts := leader.Status().Counts
		n, known := counts[id]
		return known && n == topics, fmt.Sprint(counts)
	})
}

func TestWithoutAnotherActiveBrokerAnUnloadedTopicStaysUnassigned(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	await(t, "a leader", func() (bool, string) { return b.Status().Leads, "" })
	s.describe(topic)
	s.put("/cluster/unassigned"+topic, `{"reason":"unload","from_broker":`+b.ID()+`}`)
	s.describe("/default/other")
	s.put("/cluster/unassigned/default/other", "null") // seen after it
	b.awaitLoaded("/default/other")
	if s.value("/cluster/unassigned"+topic) == "" {
		t.Error("it was assigned")
	}
}

func TestTheLeaderBelievesLoadReportsOfTheDead(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	await(t, "a leader", func() (bool, string) { return b.Status().Leads, "" })
	s.serve(b, "/default/load")
	s.put("/cluster/load/7", `{"resources_usage":[],"topics":[],"timestamp":1,"broker_id":7}`)
	awaitKnown(t, b, b.ID(), 1)
	awaitKnown(t, b, "7", 0)
	s.put("/cluster/unassigned"+topic, "null")
	s.await(s.keys.Assignment("7", topic), "null")
}

func TestALoadReportThatTheLeaderCannotReadIsADisaster(t *testing.T) {
	for _, c := range []struct{ name, report string }{
		{"no JSON", "x"}, {"topics as names", `{"resources_usage":[],"topics":["/default/a"],"timestamp":1,"broker_id":7}`},
		{"a topic without its numbers", `{"resources_usage":[],"topics":[{"topic_name":"/default/a"}],"timestamp":1,"broker_id":7}`},
		{"no resources", `{"topics":[],"timestamp":1,"broker_id":7}`}, {"unknown field", `{"resources_usage":[],"timestamp":1,"broker_id":7,"by":"me"}`},
		{"a time in words", `{"resources_usage":[],"timestamp":"now","broker_id":7}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEtcd(t)
			b := etcdNode(t, s, nil)
			s.put("/cluster/load/7", c.report)
			b.awaitDisaster(danube.Malformed, "")
		})
	}
}

func TestTheLoadReportTellsWhatIsLoaded(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.serve(b, topic)
	await(t, "the topic in a load report", func() (bool, string) {
		v := s.value("/cluster/load/" + b.ID())
		return strings.Contains(v, `"topics":[{"topic_name":"/default/orders",`) && strings.Contains(v, `"broker_id":`+b.ID()), v
	})
	b.noDisaster()
}
