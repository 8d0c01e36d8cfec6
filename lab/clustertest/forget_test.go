package clustertest

import (
	"errors"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// leaveBehind puts what a broker leaves that does not come back.
func (s *server) leaveBehind(t *testing.T, k cluster.Keys, id string, topics ...string) {
	t.Helper()
	s.put(t, k.Member(id), `{"era":1,"revision":7,"incarnation":"x"}`)
	s.put(t, k.State(id), `{"mode":"drained","reason":"stale_restart","by":"holdfast"}`)
	s.put(t, k.Load(id), `{}`)
	for _, topic := range topics {
		s.put(t, k.Assignment(id, topic), "null")
	}
}

// absent fails for each of the keys that is there.
func (s *server) absent(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if must[*clientv3.GetResponse](t)(s.raw.Get(bounded(t), key)).Count > 0 {
			t.Errorf("%s is still there", key)
		}
	}
}

func TestAForgottenBrokersTopicsWaitForAnother(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, row := range []struct{ name, broker, marker string }{
			{"a broker that numbers itself", "9", `{"reason":"forget","from_broker":9}`},
			{"a broker with a name", "n9", `{"reason":"forget","from_broker":"n9"}`},
		} {
			t.Run(row.name, func(t *testing.T) {
				c := open(t, e.config(t))
				k := c.Keys()
				topics := topicNames(130) // more than a transaction takes
				e.leaveBehind(t, k, row.broker, topics...)
				e.leaveBehind(t, k, row.broker+"0", "/ns/of-a-longer-id")
				e.put(t, k.Assignment("n1", topics[7]), "null")
				r := must[cluster.Remains](t)(c.Remains(bounded(t), row.broker))
				if len(r.Topics) != 130 || r.Topics[7].Also != "n1" || r.State == nil || r.State.Mode != "drained" {
					t.Fatalf("%d topics, one of %q too, state %+v", len(r.Topics), r.Topics[7].Also, r.State)
				}
				unassigned := must[[]string](t)(c.Forget(bounded(t), r))
				if want := slices.Delete(slices.Clone(topics), 7, 8); !slices.Equal(unassigned, want) {
					t.Errorf("unassigned are %d topics, want all that nobody else has", len(unassigned))
				}
				for _, topic := range unassigned {
					if marker := e.get(t, k.Unassigned(topic)).Kvs[0]; string(marker.Value) != row.marker || marker.Lease != 0 {
						t.Fatalf("%s: the marker is %s under lease %x", topic, marker.Value, marker.Lease)
					}
				}
				e.absent(t, k.Member(row.broker), k.State(row.broker), k.Load(row.broker), k.Unassigned(topics[7]))
				if left := must[[]string](t)(c.Assignments(bounded(t), row.broker)); len(left) > 0 {
					t.Errorf("still assigned: %v", left)
				}
				e.get(t, k.Assignment("n1", topics[7]))
				e.get(t, k.Assignment(row.broker+"0", "/ns/of-a-longer-id"))
				if again := must[cluster.Remains](t)(c.Remains(bounded(t), row.broker)); again.Any() {
					t.Errorf("there is still %+v", again)
				}
			})
		}
	})
}

// The id of its last start, or its name: it is one broker.
func TestABrokerWithAnotherIDAtEachStartIsForgottenByEither(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, id := range []string{"b1", "22"} {
			c := open(t, e.config(t))
			k := c.Keys()
			e.leaveBehind(t, k, "22", "/ns/a")
			e.remove(t, k.Member("22"))
			e.put(t, k.Member("b1"), `{"era":1,"registered_as":"22"}`)
			e.put(t, k.Registration("22"), "{}")
			if _, err := c.Remains(bounded(t), id); !errors.Is(err, cluster.ErrRegistered) {
				t.Errorf("%s, while it is registered: %v", id, err)
			}
			e.remove(t, k.Registration("22"))
			must[[]string](t)(c.Forget(bounded(t), must[cluster.Remains](t)(c.Remains(bounded(t), id))))
			e.absent(t, k.Member("b1"), k.State("22"), k.Assignment("22", "/ns/a"))
			e.get(t, k.Unassigned("/ns/a"))
		}
	})
}

// Locks and registration end together; a lock that still stands shows a lease that lives.
func TestABrokerWhoseLocksStandIsNotForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		e.leaveBehind(t, k, "n9", "/ns/a")
		id := lease(t, c, time.Minute)
		e.put(t, k.Owner("/ns/a"), `{"broker_id":"n9","incarnation":"x","epoch":7}`, clientv3.WithLease(clientv3.LeaseID(id)))
		if _, err := c.Remains(bounded(t), "n9"); !errors.Is(err, cluster.ErrHolds) {
			t.Errorf("its lease lives: %v", err)
		}
		if err := c.Revoke(bounded(t), id); err != nil {
			t.Fatal(err)
		}
		must[[]string](t)(c.Forget(bounded(t), must[cluster.Remains](t)(c.Remains(bounded(t), "n9"))))
	})
}
