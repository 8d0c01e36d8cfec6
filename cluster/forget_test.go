package cluster_test

import (
	"errors"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// gone is a broker that will not come back: member record, state, load report and two topics.
type gone struct {
	t *testing.T
	*cluster.Client
	keys cluster.Keys
	kv   pb.KVClient
}

func forgetting(t *testing.T, claim func(g *gone)) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, _ func(string)) {
		g := &gone{t, c, c.Keys(), pb.NewKVClient(s.Conn(nil))}
		g.put(g.keys.Member("n9"), `{"era":1,"revision":7,"incarnation":"x"}`)
		g.put(g.keys.State("n9"), `{"mode":"drained","reason":"stale_restart","by":"holdfast"}`)
		g.put(g.keys.Load("n9"), `{"broker_id":"n9"}`)
		g.put(g.keys.Assignment("n9", "/ns/a"), "null")
		g.put(g.keys.Assignment("n9", "/ns/b"), "null")
		g.put(g.keys.Registration("n1"), "{}")
		claim(g)
	})
}

func (g *gone) put(key, value string) {
	g.t.Helper()
	if _, err := g.kv.Put(g.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gone) value(key string) (value string, present bool) {
	g.t.Helper()
	answer, err := g.kv.Range(g.t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		return string(kv.Value), true
	}
	return "", false
}

func (g *gone) remains() cluster.Remains {
	g.t.Helper()
	r, err := g.Remains(g.t.Context(), "n9")
	if err != nil || len(r.Topics) != 2 || r.Member == nil || r.State == nil {
		g.t.Fatalf("%+v, %v", r, err)
	}
	return r
}

// stands checks that the broker is known as it was.
func (g *gone) stands() {
	g.t.Helper()
	for _, key := range []string{g.keys.Member("n9"), g.keys.State("n9"), g.keys.Load("n9")} {
		if _, present := g.value(key); !present {
			g.t.Errorf("%s is gone", key)
		}
	}
}

// Whatever happens between the look and the writes is not overwritten, and the member record
// stands for the next look.
func TestNothingIsForgottenOfABrokerThatIsNotAsItWasSeen(t *testing.T) {
	for name, row := range map[string]struct {
		meanwhile  func(g *gone)
		unassigned []string
	}{
		"it registers":                    {func(g *gone) { g.put(g.keys.Registration("n9"), "{}") }, nil},
		"its member record is written":    {func(g *gone) { g.put(g.keys.Member("n9"), `{"era":2}`) }, nil},
		"a topic is assigned to it anew":  {func(g *gone) { g.put(g.keys.Assignment("n9", "/ns/b"), "{}") }, []string{"/ns/a"}},
		"a topic's lock is taken":         {func(g *gone) { g.put(g.keys.Owner("/ns/a"), `{"broker_id":"n1"}`) }, []string{"/ns/b"}},
		"another topic is assigned to it": {func(g *gone) { g.put(g.keys.Assignment("n9", "/ns/c"), "null") }, []string{"/ns/a", "/ns/b"}},
		"an operator drains it":           {func(g *gone) { g.put(g.keys.State("n9"), `{"mode":"drained"}`) }, []string{"/ns/a", "/ns/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			forgetting(t, func(g *gone) {
				seen := g.remains()
				row.meanwhile(g)
				unassigned, err := g.Forget(g.t.Context(), seen)
				if !errors.Is(err, cluster.ErrChanged) || !slices.Equal(unassigned, row.unassigned) {
					t.Errorf("unassigned %v, %v; want %v, changed", unassigned, err, row.unassigned)
				}
				g.stands()
				for _, topic := range []string{"/ns/a", "/ns/b"} {
					_, waits := g.value(g.keys.Unassigned(topic))
					_, assigned := g.value(g.keys.Assignment("n9", topic))
					if forgotten := slices.Contains(row.unassigned, topic); waits != forgotten || assigned == forgotten {
						t.Errorf("%s: waits %t, assigned %t", topic, waits, assigned)
					}
				}
			})
		})
	}
}

func TestABrokerThatMayLiveIsNotForgotten(t *testing.T) {
	for name, row := range map[string]struct {
		before func(g *gone)
		want   error
	}{
		"registered": {func(g *gone) { g.put(g.keys.Registration("n9"), "{}") }, cluster.ErrRegistered},
		"registered under the id of its last start": {func(g *gone) {
			g.put(g.keys.Member("n9"), `{"era":1,"registered_as":"22"}`)
			g.put(g.keys.Registration("22"), "{}")
		}, cluster.ErrRegistered},
		"its lock stands":                     {func(g *gone) { g.put(g.keys.Owner("/ns/b"), `{"broker_id":"n9"}`) }, cluster.ErrHolds},
		"a lock that cannot be read":          {func(g *gone) { g.put(g.keys.Owner("/ns/b"), "?") }, cluster.ErrHolds},
		"a member record that cannot be read": {func(g *gone) { g.put(g.keys.Member("n9"), "?") }, cluster.ErrUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			forgetting(t, func(g *gone) {
				row.before(g)
				if r, err := g.Remains(g.t.Context(), "n9"); !errors.Is(err, row.want) {
					t.Errorf("%+v, %v; want %v", r, err, row.want)
				}
			})
		})
	}
}
