package clustertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// restarted is a broker, called b1, whose process 11 is followed by process 22: both are
// registered under leases of their own, and 11 has topics.
func restarted(t *testing.T, e *server, topics []string) (*cluster.Client, func() cluster.Succession) {
	t.Helper()
	c := open(t, e.config(t))
	k := c.Keys()
	e.put(t, k.Registration("11"), `{"admin_addr":"a"}`, clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
	e.put(t, k.State("11"), `{"mode":"drained","reason":"disk swap","by":"ann"}`)
	for _, topic := range topics {
		e.put(t, k.Assignment("11", topic), `{"of":"`+topic+`"}`)
	}
	e.put(t, k.Registration("22"), `{"admin_addr":"a","n":2}`, clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
	e.put(t, k.State("22"), `{"mode":"active","reason":"boot"}`)
	return c, func() cluster.Succession {
		return cluster.Succession{
			Seen:    must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "b1", Registered: "22", Former: "11"})),
			LeaseID: lease(t, c, time.Minute), Retire: true, Move: true,
			State:  &cluster.State{Mode: cluster.ModeActive, Reason: "fast_restart", By: "holdfast", At: at},
			Member: cluster.Member{Name: "b1", Era: 3, Revision: 7, Incarnation: "i", At: at},
		}
	}
}

func TestASuccessorTakesEverythingOverInOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		topics := topicNames(100) // the most that one transaction takes
		c, plan := restarted(t, e, topics)
		k := c.Keys()
		e.put(t, k.Assignment("111", "/ns/other"), "null")
		s := plan()
		done := must[cluster.Succeeded](t)(c.Succeed(bounded(t), s, func(context.Context) error {
			t.Error("there was a second transaction")
			return nil
		}))
		if done.Moved != 100 || done.Registration.LeaseID != s.LeaseID || done.Registration.CreateRevision != s.Seen.Registration.CreateRevision {
			t.Errorf("done is %+v", done)
		}
		at := done.Registration.ModRevision
		for key, value := range map[string]string{
			k.Registration("22"):            `{"admin_addr":"a","n":2}`,
			k.State("22"):                   `{"mode":"active","reason":"fast_restart","by":"holdfast","at":"2026-01-02T03:04:05Z"}`,
			k.Member("b1"):                  fmt.Sprintf(`{"era":%d,"revision":%d,"incarnation":"i","at":"2026-01-02T03:04:05Z","registered_as":"22"}`, s.Seen.Era.N, s.Seen.Revision),
			k.Assignment("22", "/ns/t0000"): `{"of":"/ns/t0000"}`,
			k.Assignment("22", "/ns/t0099"): `{"of":"/ns/t0099"}`,
		} {
			kv := e.get(t, key).Kvs[0]
			if kv.ModRevision != at || string(kv.Value) != value {
				t.Errorf("%s is %s of revision %d, want %s of %d", key, kv.Value, kv.ModRevision, value, at)
			}
		}
		if got := e.get(t, k.Registration("22")).Kvs[0].Lease; got != s.LeaseID {
			t.Errorf("the registration is under lease %x, want %x", got, s.LeaseID)
		}
		left := must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), k.Assignments("11"), clientv3.WithPrefix()))
		if len(left.Kvs) != 0 {
			t.Errorf("the former process keeps %v", left.Kvs)
		}
		if seen := must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "b1", Registered: "22", Former: "11"})); seen.Former.Registration != nil ||
			seen.Former.StateRevision != 0 || seen.Member == nil || seen.Member.RegisteredAs != "22" || seen.OldestPeerRevision != 0 {
			t.Errorf("seen is %+v", seen)
		}
		if other := must[[]string](t)(c.Assignments(bounded(t), "111")); len(other) != 1 {
			t.Errorf("another broker is left with %v", other)
		}
	})
}

// Whoever looks at any revision finds each topic at one of the two, and never a successor
// that serves before its mode was decided.
func TestManyAssignmentsAreAtOneOfTheTwoAtEveryRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		topics := topicNames(250)
		c, plan := restarted(t, e, topics)
		k := c.Keys()
		s := plan()
		kept := 0
		done := must[cluster.Succeeded](t)(c.Succeed(bounded(t), s, func(context.Context) error { kept++; return nil }))
		if done.Moved != 250 || kept != 2 {
			t.Errorf("%d moved, the lease was looked after %d times", done.Moved, kept)
		}
		for rev := s.Seen.Revision; rev <= e.get(t, k.Registration("22")).Header.Revision; rev++ {
			all := must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), k.Brokers(), clientv3.WithPrefix(), clientv3.WithRev(rev)))
			at := map[string]int{}
			states := map[string]string{}
			moved := false
			for _, kv := range all.Kvs {
				if id, topic, ok := k.ParseAssignment(string(kv.Key)); ok {
					at[topic]++
					moved = moved || id == "22"
				} else if id, ok := k.ParseState(string(kv.Key)); ok {
					states[id] = string(kv.Value)
				}
			}
			for _, topic := range topics {
				if at[topic] != 1 {
					t.Fatalf("at revision %d %s is at %d brokers", rev, topic, at[topic])
				}
			}
			st := must[cluster.State](t)(cluster.ParseState([]byte(states["22"])))
			former := must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), k.Registration("11"), clientv3.WithRev(rev)))
			if len(former.Kvs) == 0 && slices.ContainsFunc(all.Kvs, func(kv *mvccpb.KeyValue) bool {
				id, _, ok := k.ParseAssignment(string(kv.Key))
				return ok && id == "11"
			}) {
				t.Errorf("at revision %d the former process has topics and no registration", rev)
			}
			if moved && st.Reason != "fast_restart" {
				t.Errorf("at revision %d topics are at a successor whose state is %s", rev, states["22"])
			}
		}
	})
}

func TestAnInterruptedSuccessionIsFinishedByTheNextOne(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, plan := restarted(t, e, topicNames(250))
		cut := errors.New("cut")
		if _, err := c.Succeed(bounded(t), plan(), func(context.Context) error { return cut }); !errors.Is(err, cut) {
			t.Fatal(err)
		}
		if left := must[[]string](t)(c.Assignments(bounded(t), "11")); len(left) != 150 {
			t.Fatalf("%d are left", len(left))
		}
		if done := must[cluster.Succeeded](t)(c.Succeed(bounded(t), plan(), nil)); done.Moved != 150 {
			t.Errorf("%d were moved", done.Moved)
		}
		if got := must[[]string](t)(c.Assignments(bounded(t), "22")); len(got) != 250 {
			t.Errorf("the successor has %d", len(got))
		}
	})
}

func TestAnAssignmentThatGoesMeanwhileIsNotHandedOver(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		topics := topicNames(101)
		c, plan := restarted(t, e, topics)
		last := slices.Max(topics)
		done, err := c.Succeed(bounded(t), plan(), func(context.Context) error {
			e.remove(t, c.Keys().Assignment("11", last))
			return nil
		})
		if err != nil || done.Moved != 100 || assigned(t, e, c, "22", last) != 0 {
			t.Errorf("%v, %d were moved, %s is assigned at %d", err, done.Moved, last, assigned(t, e, c, "22", last))
		}
	})
}

func TestWhatTheSuccessorHasIsNotPutAgain(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, plan := restarted(t, e, []string{"/ns/a", "/ns/b"})
		k := c.Keys()
		e.put(t, k.Assignment("22", "/ns/a"), "null")
		before := e.get(t, k.Assignment("22", "/ns/a")).Kvs[0].ModRevision
		must[cluster.Succeeded](t)(c.Succeed(bounded(t), plan(), nil))
		if kv := e.get(t, k.Assignment("22", "/ns/a")).Kvs[0]; kv.ModRevision != before {
			t.Errorf("it was put again in revision %d as %s", kv.ModRevision, kv.Value)
		}
		if left := must[[]string](t)(c.Assignments(bounded(t), "11")); len(left) != 0 {
			t.Errorf("the former process keeps %v", left)
		}
	})
}

func TestAStaleSuccessorTakesNothingButItsState(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, plan := restarted(t, e, []string{"/ns/a"})
		k := c.Keys()
		e.remove(t, k.Registration("11"))
		s := plan()
		if _, err := c.Succeed(bounded(t), s, nil); err == nil {
			t.Error("topics of the dead were moved")
		}
		s.Retire, s.Move, s.State = false, false, &cluster.State{Mode: cluster.ModeDrained, Reason: "stale_restart", By: "holdfast", At: at}
		done := must[cluster.Succeeded](t)(c.Succeed(bounded(t), s, nil))
		state, bound := e.get(t, k.State("22")).Kvs[0], e.get(t, k.Registration("22")).Kvs[0]
		if state.ModRevision != done.Registration.ModRevision || bound.ModRevision != state.ModRevision || bound.Lease != s.LeaseID {
			t.Errorf("state of revision %d, registration of %d under lease %x", state.ModRevision, bound.ModRevision, bound.Lease)
		}
		if got := must[[]string](t)(c.Assignments(bounded(t), "11")); len(got) != 1 {
			t.Errorf("left at the former process: %v", got)
		}
	})
}

func TestWhatNobodySawGoIsTakenUp(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, plan := restarted(t, e, topicNames(150))
		k := c.Keys()
		there := e.get(t, k.Registration("11")).Header.Revision
		e.remove(t, k.Registration("11"))
		gone := must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), k.Registration("11"))).Header.Revision
		for revision, want := range map[int64]bool{there: true, gone: false} {
			if got := must[bool](t)(c.RegisteredAt(bounded(t), "11", revision)); got != want {
				t.Errorf("registered at revision %d: %v", revision, got)
			}
		}
		s := plan()
		s.Retire = false
		if done := must[cluster.Succeeded](t)(c.Succeed(bounded(t), s, nil)); done.Moved != 150 {
			t.Errorf("%d moved", done.Moved)
		}
	})
}

func TestARevisionThatWasCompactedIsNoAnswer(t *testing.T) {
	cfg, _ := ownEtcd(t, nil)
	c := open(t, cluster.Config{Endpoints: []string{cfg.AdvertiseClientUrls[0].String()}})
	raw := rawClient(t, clientv3.Config{Endpoints: []string{cfg.AdvertiseClientUrls[0].String()}})
	for range 3 {
		must[*clientv3.PutResponse](t)(raw.Put(bounded(t), c.Keys().Registration("11"), "{}"))
	}
	must[*clientv3.CompactResponse](t)(raw.Compact(bounded(t), 3))
	if _, err := c.RegisteredAt(bounded(t), "11", 2); !errors.Is(err, cluster.ErrCompacted) {
		t.Errorf("got %v", err)
	}
}

func TestTheFleetNamesABrokerByItsRegistration(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, plan := restarted(t, e, []string{"/ns/a"})
		must[cluster.Succeeded](t)(c.Succeed(bounded(t), plan(), nil))
		fleet := must[[]cluster.FleetBroker](t)(c.Fleet(bounded(t)))
		if len(fleet) != 1 || fleet[0].BrokerID != "22" || fleet[0].Name != "b1" || !fleet[0].Registered || fleet[0].Mode == "" || fleet[0].Topics != 1 {
			t.Errorf("the fleet is %+v", fleet)
		}
	})
}

func TestNoRegistrationOfItsOwnIsAPeers(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c, _ := restarted(t, e, nil)
		k := c.Keys()
		look := func() cluster.Snapshot {
			return must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "b1", Registered: "22", Former: "11", Oldest: true}))
		}
		if seen := look(); seen.OldestPeerRevision != 0 || !seen.AnyRegistered {
			t.Errorf("alone: %+v", seen)
		}
		e.put(t, k.Registration("33"), "{}")
		peer := e.get(t, k.Registration("33")).Kvs[0].CreateRevision
		if seen := look(); seen.OldestPeerRevision != peer {
			t.Errorf("the oldest peer is of %d, want %d", seen.OldestPeerRevision, peer)
		}
	})
}
