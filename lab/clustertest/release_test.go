package clustertest

import (
	"maps"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestAReleasedTopicIsMarkedAndUnassignedInOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, row := range []struct{ name, broker, marker string }{
			{"a broker that numbers itself", "18446744073709551615", `{"reason":"unload","from_broker":18446744073709551615}`},
			{"a broker with a name", "b-1", `{"reason":"unload","from_broker":"b-1"}`},
			{"a name of digits that is no number", "007", `{"reason":"unload","from_broker":"007"}`},
		} {
			t.Run(row.name, func(t *testing.T) {
				c := open(t, e.config(t))
				k := c.Keys()
				e.put(t, k.Assignment(row.broker, "/ns/a"), "null")
				e.put(t, k.Assignment(row.broker, "/ns/b"), "null")
				e.put(t, k.Registration(row.broker), "{}")
				if !must[bool](t)(c.Release(bounded(t), row.broker, "/ns/a")) {
					t.Fatal("an assigned topic was not released")
				}
				marker := e.get(t, k.Unassigned("/ns/a"))
				if string(marker.Kvs[0].Value) != row.marker || marker.Kvs[0].Lease != 0 {
					t.Errorf("the marker is %s under lease %x, want %s under none", marker.Kvs[0].Value, marker.Kvs[0].Lease, row.marker)
				}
				for rev, want := range map[int64]int64{marker.Kvs[0].ModRevision - 1: 1, marker.Kvs[0].ModRevision: 0} {
					assigned := must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), k.Assignment(row.broker, "/ns/a"), clientv3.WithRev(rev)))
					if assigned.Count != want {
						t.Errorf("marked in revision %d, at %d there are %d assignments, want %d", marker.Kvs[0].ModRevision, rev, assigned.Count, want)
					}
				}
				if left := must[[]string](t)(c.Assignments(bounded(t), row.broker)); len(left) != 1 || left[0] != "/ns/b" {
					t.Errorf("assigned is %v, want what was not released", left)
				}
			})
		}
	})
}

func TestNothingIsWrittenForATopicThatIsNotAssigned(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		e.put(t, k.Assignment("2", "/ns/a"), "null")
		e.put(t, k.Registration("1"), "{}")
		e.put(t, k.Unassigned("/ns/b"), `{"reason":"unload","from_broker":3}`)
		before := e.written(t, c)
		for _, topic := range []string{"/ns/a", "/ns/b"} {
			if must[bool](t)(c.Release(bounded(t), "1", topic)) {
				t.Errorf("%s was released by a broker that does not have it", topic)
			}
			if must[bool](t)(c.Reassign(bounded(t), "1", topic, 0)) {
				t.Errorf("%s was assigned again to a broker that does not have it", topic)
			}
		}
		if now := e.written(t, c); !maps.Equal(now, before) {
			t.Errorf("written: %v, before %v", now, before)
		}
		if kv := e.get(t, k.Unassigned("/ns/b")).Kvs[0]; kv.Version != 1 {
			t.Errorf("another one's marker was written again: %s", kv.Value)
		}
	})
}

// A request may reach etcd when the broker has been declared dead.
func TestNothingIsReleasedByABrokerThatIsNotRegistered(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		e.put(t, k.Assignment("1", "/ns/a"), "null")
		e.put(t, k.Registration("2"), "{}")
		if must[bool](t)(c.Release(bounded(t), "1", "/ns/a")) {
			t.Error("released")
		}
		left, err := e.raw.Get(bounded(t), k.Unassigned("/ns/a"))
		if err != nil || left.Count != 0 || e.get(t, k.Assignment("1", "/ns/a")).Kvs[0].Version != 1 {
			t.Errorf("written: %v, %v", left, err)
		}
	})
}

func TestAnAssignmentIsPutAgainAsItIs(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		key := c.Keys().Assignment("1", "/ns/a")
		e.put(t, key, `{"by":"leader"}`)
		before := e.get(t, key).Kvs[0]
		watch := e.raw.Watch(bounded(t), key, clientv3.WithRev(before.ModRevision+1))
		revision := must[int64](t)(c.Assigned(bounded(t), "1", "/ns/a"))
		if revision != before.ModRevision || must[int64](t)(c.Assigned(bounded(t), "1", "/ns/b")) != 0 {
			t.Errorf("assigned at %d, want %d", revision, before.ModRevision)
		}
		if must[bool](t)(c.Reassign(bounded(t), "1", "/ns/a", revision-1)) {
			t.Fatal("an assignment that was put meanwhile was put again")
		}
		if !must[bool](t)(c.Reassign(bounded(t), "1", "/ns/a", revision)) {
			t.Fatal("an assignment was not put again")
		}
		event := (<-watch).Events[0]
		if event.Type != clientv3.EventTypePut || string(event.Kv.Value) != `{"by":"leader"}` {
			t.Errorf("a watch sees %s %s", event.Type, event.Kv.Value)
		}
		if event.Kv.CreateRevision != before.CreateRevision {
			t.Errorf("created in %d, want %d: there must be no moment without it", event.Kv.CreateRevision, before.CreateRevision)
		}
	})
}

func TestNoAssignmentIsPutForABrokerThatIsNotActive(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		key, state := c.Keys().Assignment("1", "/ns/a"), c.Keys().State("1")
		e.put(t, key, "null")
		for _, row := range []struct {
			name, state string
			put         bool
		}{
			{"drained", `{"mode":"drained","reason":"operator"}`, false},
			{"draining", `{"mode":"draining"}`, false},
			{"active", `{"mode":"active","reason":"boot"}`, true},
			{"not readable, which is active", `{"mode":`, true},
		} {
			t.Run(row.name, func(t *testing.T) {
				e.put(t, state, row.state)
				before := e.get(t, key).Kvs[0].ModRevision
				put, err := c.Reassign(bounded(t), "1", "/ns/a", before)
				if put != row.put || (err == nil) != row.put || !row.put && !strings.Contains(err.Error(), row.name) {
					t.Errorf("put %v, %v", put, err)
				}
				if now := e.get(t, key).Kvs[0].ModRevision; (now != before) != row.put {
					t.Errorf("the assignment is of revision %d, was of %d", now, before)
				}
			})
		}
	})
}

func TestReleaseAndReassignTakeNoOtherKeys(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		for _, row := range []struct{ broker, topic string }{{"", "/ns/a"}, {"1/2", "/ns/a"}, {"1", "ns/a"}, {"1", "/a"}, {"1", "/state"}, {"1", "/ns/a/b"}} {
			if done, err := c.Release(bounded(t), row.broker, row.topic); done || err == nil {
				t.Errorf("release of %q at broker %q: %v, %v", row.topic, row.broker, done, err)
			}
			if _, err := c.Assigned(bounded(t), row.broker, row.topic); err == nil {
				t.Errorf("assignment of %q to broker %q was read", row.topic, row.broker)
			}
			if done, err := c.Reassign(bounded(t), row.broker, row.topic, 1); done || err == nil {
				t.Errorf("reassignment of %q at broker %q: %v, %v", row.topic, row.broker, done, err)
			}
		}
	})
}
