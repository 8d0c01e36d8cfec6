package clustertest

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
