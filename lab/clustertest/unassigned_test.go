package clustertest

import (
	"testing"

	"holdfast/cluster"
)

func TestAMarkerIsPutAgainUnchangedAndOnlyIfItStands(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		const bytes = `{"reason":"drain_redirect","from_broker":7}`
		e.put(t, k.Unassigned("/ns/a"), bytes)
		e.put(t, k.Unassigned("/ns/b"), "null")
		e.put(t, k.Waiting()+"not-a-topic", "null")
		seen := must[[]cluster.WaitingTopic](t)(c.WaitingTopics(bounded(t)))
		if len(seen) != 2 || seen[0].Topic != "/ns/a" || seen[1].Topic != "/ns/b" {
			t.Fatalf("waiting: %v", seen)
		}
		if !must[bool](t)(c.PutWaitingAgain(bounded(t), seen[0])) {
			t.Fatal("it stood, and was not put")
		}
		kv := e.get(t, k.Unassigned("/ns/a")).Kvs[0]
		if string(kv.Value) != bytes || kv.Version != 2 || kv.Lease != 0 || kv.ModRevision == seen[0].ModRevision {
			t.Errorf("now %s, version %d, lease %x, revision %d after %d", kv.Value, kv.Version, kv.Lease, kv.ModRevision, seen[0].ModRevision)
		}
		if must[bool](t)(c.PutWaitingAgain(bounded(t), seen[0])) {
			t.Error("it was another by now, and was put")
		}
		e.remove(t, k.Unassigned("/ns/b"))
		if must[bool](t)(c.PutWaitingAgain(bounded(t), seen[1])) {
			t.Error("it was gone, and was put")
		}
		if left := must[[]cluster.WaitingTopic](t)(c.WaitingTopics(bounded(t))); len(left) != 1 {
			t.Errorf("a marker that somebody took is back: %v", left)
		}
	})
}

// As a leader leaves it that ends between its two writes.
func TestAMarkerOfAnAssignedTopicDoesNotWait(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		e.put(t, k.Unassigned("/ns/a"), "null")
		e.put(t, k.Unassigned("/ns/b"), "null")
		e.put(t, k.Unassigned("/ns/state"), "null")
		e.put(t, k.State("8"), `{"mode":"active"}`)
		e.put(t, k.Assignment("8", "/ns/a"), "null")
		e.put(t, k.Assignment("8", "/ns/b/c"), "null")
		seen := must[[]cluster.WaitingTopic](t)(c.WaitingTopics(bounded(t)))
		if len(seen) != 2 || seen[0].Topic != "/ns/b" || seen[1].Topic != "/ns/state" {
			t.Errorf("waiting: %v", seen)
		}
	})
}

func TestTheBrokersOwnLeader(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		for _, row := range []struct{ name, value, want string }{
			{"none", "", ""},
			{"a number", "18446744073709551615", "18446744073709551615"},
			{"with a line end", "7\n", "7"},
			{"no number", `{"leader":7}`, ""},
			{"negative", "-7", ""},
		} {
			t.Run(row.name, func(t *testing.T) {
				if row.value != "" {
					e.put(t, c.Keys().Leader(), row.value)
				}
				if got := must[string](t)(c.LeaderID(bounded(t))); got != row.want {
					t.Errorf("%q, want %q", got, row.want)
				}
			})
		}
	})
}

func TestWhetherAnyBrokerMayTakeTopics(t *testing.T) {
	for _, row := range []struct {
		name string
		keys func(k cluster.Keys) map[string]string
		want bool
	}{
		{"nobody is registered", func(k cluster.Keys) map[string]string { return map[string]string{k.State("1"): `{"mode":"active"}`} }, false},
		{"one is active", func(k cluster.Keys) map[string]string {
			return map[string]string{k.Registration("1"): "{}", k.State("1"): `{"mode":"active"}`}
		}, true},
		{"one is drained", func(k cluster.Keys) map[string]string {
			return map[string]string{k.Registration("1"): "{}", k.State("1"): `{"mode":"drained"}`}
		}, false},
		{"one has no state", func(k cluster.Keys) map[string]string { return map[string]string{k.Registration("1"): "{}"} }, true},
		{"one has a state that cannot be read", func(k cluster.Keys) map[string]string {
			return map[string]string{k.Registration("1"): "{}", k.State("1"): "?"}
		}, true},
		{"one drained and one active", func(k cluster.Keys) map[string]string {
			return map[string]string{k.Registration("1"): "{}", k.State("1"): `{"mode":"drained"}`, k.Registration("2"): "{}", k.State("2"): `{"mode":"active"}`}
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e *server) {
				c := open(t, e.config(t))
				for key, value := range row.keys(c.Keys()) {
					e.put(t, key, value)
				}
				if got := must[bool](t)(c.AnyActive(bounded(t))); got != row.want {
					t.Errorf("%v, want %v", got, row.want)
				}
			})
		})
	}
}
