package danube_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
