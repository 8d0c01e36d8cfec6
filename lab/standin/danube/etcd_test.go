package danube_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
	"holdfast/lab/standin/danube"
)

const topic = "/default/orders"

func TestABrokerRegistersUnderALeaseWithAnIdThatChangesAtEveryStart(t *testing.T) {
	s := newEtcd(t)
	dir := t.TempDir()
	reuse := func(c *danube.Config) { c.DataDir = dir }
	first := etcdNode(t, s, reuse)
	r, err := s.Get(t.Context(), s.keys.Registration(first.ID()))
	if err != nil || len(r.Kvs) != 1 || r.Kvs[0].Lease == 0 {
		t.Fatalf("registration: %v, %v", r, err)
	}
	var value map[string]string
	if err := json.Unmarshal(r.Kvs[0].Value, &value); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"admin_addr": "http://" + first.AdminAddr(), "broker_url": "http://" + first.ClientAddr(),
		"connect_url": "http://" + first.ClientAddr(), "prom_exporter": first.MetricsAddr(),
	}
	if fmt.Sprint(value) != fmt.Sprint(want) {
		t.Errorf("registration %v, want %v", value, want)
	}
	if got := s.value(s.keys.State(first.ID())); got != `{"mode":"active","reason":"boot"}` {
		t.Errorf("state %s", got)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := etcdNode(t, s, reuse)
	if second.ID() == first.ID() {
		t.Error("the id is the same")
	}
	if s.value(s.keys.Registration(first.ID())) == "" {
		t.Error("the end of a broker took its registration away; it lingers in life")
	}
}

func TestTheLeaseOfTheRegistrationIsRenewed(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, func(c *danube.Config) { c.Times = quick(30 * time.Second); c.Times.Renew = 100 * time.Millisecond })
	r, err := s.Get(t.Context(), s.keys.Registration(b.ID()))
	if err != nil || len(r.Kvs) != 1 {
		t.Fatal(r, err)
	}
	await(t, "a lease that is younger than the broker", func() (bool, string) {
		age := time.Since(b.Started())
		left, err := s.TimeToLive(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
		if err != nil {
			return false, err.Error()
		}
		return age > 2*time.Second && left.TTL >= 29, fmt.Sprintf("%v old, %d s left", age, left.TTL)
	})
}

func TestALeaseThatHasGoneIsNotNoticed(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, func(c *danube.Config) { c.Times = quick(time.Second) })
	r, err := s.Get(t.Context(), s.keys.Registration(b.ID()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	reported := s.value("/cluster/load/" + b.ID())
	await(t, "a load report after the loss", func() (bool, string) {
		now := s.value("/cluster/load/" + b.ID())
		return now != reported, now // the timestamp has whole seconds: several renewals pass
	})
	if s.value(s.keys.Registration(b.ID())) != "" {
		t.Error("the broker registered again")
	}
}

func TestAnInterruptionEndsWatchesAndRenewalForGood(t *testing.T) {
	for _, resumes := range []bool{false, true} {
		t.Run(fmt.Sprintf("resumes=%v", resumes), func(t *testing.T) {
			s := newEtcd(t)
			front := newFront(t, s)
			b := etcdNode(t, s, func(c *danube.Config) {
				c.Times = quick(3 * time.Second)
				c.Etcd, c.Resumes = "http://"+front.Addr(), resumes
			})
			s.serve(b, topic)
			front.SetDown(true)
			if !resumes {
				await(t, "watches and renewal to die", func() (bool, string) {
					st := b.Status()
					return st.WatchesDied && st.RenewalDied, fmt.Sprintf("%+v", st)
				})
			} else {
				// The connection is closed before SetDown returns.
				s.describe("/default/while")
				s.put(s.keys.Assignment(b.ID(), "/default/while"), "null")
			}
			front.SetDown(false)
			if resumes {
				b.awaitLoaded(topic, "/default/while")
				return
			}
			await(t, "the registration to run out", func() (bool, string) {
				return s.value(s.keys.Registration(b.ID())) == "", ""
			})
			// Nobody leads with living watches, so the topic stays; a new one is not seen.
			s.describe("/default/new")
			s.put(s.keys.Assignment(b.ID(), "/default/new"), "null")
			reported := s.value("/cluster/load/" + b.ID())
			await(t, "a load report after the interruption", func() (bool, string) {
				now := s.value("/cluster/load/" + b.ID())
				return now != reported, now
			})
			b.awaitLoaded(topic)
			list, err := b.topics.ListBrokerTopics(t.Context(), &danubepb.BrokerRequest{BrokerId: b.ID()})
			if err != nil || len(list.Topics) != 1 {
				t.Errorf("the admin API shows %v, %v; want what the cache knew before", list, err)
			}
			b.noDisaster()
		})
	}
}

func TestKeysThatWereThereBeforeAreNotLookedAt(t *testing.T) {
	s := newEtcd(t)
	s.describe("/default/stuck")
	s.put("/cluster/unassigned/default/stuck", "null")
	b := etcdNode(t, s, nil)
	await(t, "a leader that knows a broker", func() (bool, string) {
		st := b.Status()
		return st.Leads && len(st.Counts) == 1, fmt.Sprintf("%+v", st)
	})
	s.describe(topic)
	s.put("/cluster/unassigned"+topic, "null") // assigned after the stuck one would have been
	b.awaitLoaded(topic)
	if s.value("/cluster/unassigned/default/stuck") == "" {
		t.Error("the topic from before was assigned")
	}
	s.put("/cluster/unassigned/default/stuck", "null")
	b.awaitLoaded(topic, "/default/stuck")
	b.noDisaster()
}

func TestAnAssignmentFromBeforeTheStartIsNotLoadedUntilItIsPutAgain(t *testing.T) {
	s := newEtcd(t)
	dir := t.TempDir()
	reuse := func(c *danube.Config) { c.DataDir = dir }
	first := etcdNode(t, s, reuse)
	s.serve(first, topic)
	first.produce(topic, 3)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := etcdNode(t, s, reuse)
	s.serve(second, "/default/later")
	s.put(s.keys.Assignment(second.ID(), topic), "null")
	second.awaitLoaded("/default/later", topic)
	if n, err := second.Count(t.Context(), topic); err != nil || n.Here != 3 {
		t.Errorf("%+v messages, %v; want the 3 of the first life", n, err)
	}
	second.noDisaster()
}

func TestASecondPutOfALoadedTopicIsADisaster(t *testing.T) {
	s := newEtcd(t)
	var printed bytes.Buffer
	b := etcdNode(t, s, func(c *danube.Config) { c.Stderr = &printed })
	s.serve(b, topic)
	s.put(s.keys.Assignment(b.ID(), topic), "null")
	b.awaitDisaster(danube.LoadedTwice, topic)
	if st, err := b.Client.Status(t.Context()); err != nil || len(st.Disasters) != 1 {
		t.Errorf("the lab's API tells %+v, %v", st, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(printed.String(), "DISASTER: loaded_twice "+topic) {
		t.Errorf("printed %q", printed.String())
	}
}

func TestADeleteWithAMarkerUnloads(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.serve(b, topic)
	b.produce(topic, 5)
	if _, err := b.Consume(t.Context(), topic, "sub", 2); err != nil {
		t.Fatal(err)
	}
	_, err := s.Txn(t.Context()).Then(
		clientv3.OpPut("/cluster/unassigned"+topic, `{"reason":"unload","from_broker":`+b.ID()+`}`),
		clientv3.OpDelete(s.keys.Assignment(b.ID(), topic)),
	).Commit()
	if err != nil {
		t.Fatal(err)
	}
	b.awaitLoaded()
	if _, err := b.Produce(t.Context(), topic, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("produced to an unloaded topic: %v", err)
	}
	var state struct {
		Sealed bool    `json:"sealed"`
		Last   *uint64 `json:"last_committed_offset"`
		Broker uint64  `json:"broker_id"`
	}
	value := s.value("/danube-data/storage/topics" + topic + "/state")
	if err := json.Unmarshal([]byte(value), &state); err != nil || !state.Sealed || state.Last == nil || *state.Last != 4 || fmt.Sprint(state.Broker) != b.ID() {
		t.Errorf("sealed as %s, %v", value, err)
	}
	s.await("/topics"+topic+"/subscriptions/sub/cursor", "2")
	b.noDisaster()
}

func TestADeleteWithoutAMarkerDestroysMetadataAndCursors(t *testing.T) {
	for _, c := range []struct{ name, marker string }{
		{"no marker", ""}, {"null", "null"}, {"another reason", `{"reason":"rebalance","from_broker":1}`}, {"malformed", "unload"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEtcd(t)
			b := etcdNode(t, s, func(c *danube.Config) { c.Times.Assign = bound })
			s.put("/danube-data/storage/topics"+topic+"/state", `{"sealed":true,"last_committed_offset":0}`)
			s.serve(b, topic)
			b.produce(topic, 1)
			if _, err := b.Consume(t.Context(), topic, "sub", 1); err != nil {
				t.Fatal(err)
			}
			s.await("/topics"+topic+"/subscriptions/sub/cursor", "2")
			ops := []clientv3.Op{clientv3.OpDelete(s.keys.Assignment(b.ID(), topic))}
			if c.marker != "" {
				ops = append(ops, clientv3.OpPut("/cluster/unassigned"+topic, c.marker))
			}
			if _, err := s.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			b.awaitDisaster(danube.Destroyed, topic)
			s.await("/topics"+topic+"/subscriptions/sub/cursor", "")
			s.await("/danube-data/storage/topics"+topic+"/state", "")
		})
	}
}

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

func TestADeleteOfWhatIsNotLoadedDestroysNothing(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, nil)
	s.put(s.keys.Assignment(b.ID(), topic), "null") // no metadata: not loaded
	s.remove(s.keys.Assignment(b.ID(), topic))
	s.serve(b, "/default/other")
	b.noDisaster()
}

func TestATopicWithoutMetadataHoldsUpThoseBehindItAndIsNotLoaded(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, func(c *danube.Config) { c.Times.MetadataWait = 300 * time.Millisecond })
	s.put(s.keys.Assignment(b.ID(), topic), "null")
	before := time.Now()
	s.serve(b, "/default/behind")
	if waited := time.Since(before); waited < 500*time.Millisecond {
		t.Errorf("loaded after %v, before the one in front was given up", waited)
	}
	s.describe(topic) // too late
	s.describe("/default/last")
	s.put(s.keys.Assignment(b.ID(), "/default/last"), "null")
	b.awaitLoaded("/default/behind", "/default/last")
	b.noDisaster()
}

func TestABrokerThatIsNotActiveBouncesWhatItIsGiven(t *testing.T) {
	for _, c := range []struct {
		name, state string
		bounces     bool
	}{
		{"draining", `{"mode":"draining"}`, true}, {"drained", `{"mode":"drained","reason":"x","by":"holdfast"}`, true},
		{"active", `{"mode":"active","by":"me"}`, false}, {"missing", "", false}, {"malformed", `drained`, false}, {"no mode", `{}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEtcd(t)
			b := etcdNode(t, s, func(c *danube.Config) { c.Times.LeaderCheck = bound; c.Times.Assign = bound })
			if c.state == "" {
				s.remove(s.keys.State(b.ID()))
			} else {
				s.put(s.keys.State(b.ID()), c.state)
			}
			s.describe(topic)
			s.put(s.keys.Assignment(b.ID(), topic), "null")
			if !c.bounces {
				b.awaitLoaded(topic)
				return
			}
			s.await("/cluster/unassigned"+topic, `{"reason":"drain_redirect","from_broker":`+b.ID()+`}`)
			if s.value(s.keys.Assignment(b.ID(), topic)) != "" {
				t.Error("the assignment is still there")
			}
			b.noDisaster()
		})
	}
}

func TestABounceOfALoadedTopicDestroysIt(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, func(c *danube.Config) { c.Times.Assign = bound })
	s.serve(b, topic)
	s.put(s.keys.State(b.ID()), `{"mode":"drained","reason":"registration_expired"}`)
	s.put(s.keys.Assignment(b.ID(), topic), "null")
	b.awaitDisaster(danube.Destroyed, topic)
}

func TestADrainedBrokerServesOnWhatItHas(t *testing.T) {
	s := newEtcd(t)
	b := etcdNode(t, s, func(c *danube.Config) { c.Times.Assign = bound })
	s.serve(b, topic)
	s.put(s.keys.State(b.ID()), `{"mode":"drained"}`)
	s.describe("/default/other")
	s.put(s.keys.Assignment(b.ID(), "/default/other"), "null")
	s.await(s.keys.Assignment(b.ID(), "/default/other"), "") // bounced: it has seen the mode
	b.produce(topic, 1)
	b.noDisaster()
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

func TestRegistrationMayTakeAWhile(t *testing.T) {
	s := newEtcd(t)
	b, err := danube.LaunchEtcd(danube.Config{Etcd: s.url, DataDir: t.TempDir(), Times: danube.Times{Register: bound}})
	if err != nil {
		t.Fatal(err)
	}
	n := attach(t, b, "")
	await(t, "the broker to be on its way", func() (bool, string) {
		res, err := http.Get("http://" + b.MetricsAddr() + "/metrics")
		if err != nil {
			return false, err.Error()
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK, res.Status
	})
	http.DefaultClient.CloseIdleConnections()
	if s.value(s.keys.Registration(n.ID())) != "" {
		t.Error("registered at once")
	}
}

func TestMessagesAreInFilesThatSurviveTheBroker(t *testing.T) {
	s := newEtcd(t)
	dir := t.TempDir()
	small := func(c *danube.Config) { c.DataDir, c.SegmentBytes = dir, 64 }
	b := etcdNode(t, s, small)
	s.serve(b, topic)
	b.produce(topic, 20)
	files, err := filepath.Glob(filepath.Join(dir, "wal", "default", "orders", "*.wal"))
	if err != nil || len(files) < 3 {
		t.Errorf("segments %v, %v", files, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := etcdNode(t, s, small)
	s.serve(again, topic)
	got, err := again.Consume(t.Context(), topic, "sub", 100)
	if err != nil || len(got) != 20 || string(got[19].Data) != "19" || got[19].Offset != 19 {
		t.Errorf("%d messages, %v", len(got), err)
	}
	again.noDisaster()
}

func newFront(t *testing.T, s *store) *harness.Front {
	return newFrontOf(t, strings.TrimPrefix(s.url, "http://"))
}

func newFrontOf(t *testing.T, target string) *harness.Front {
	t.Helper()
	f, err := harness.NewFront(harness.ForTest(t), target)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
