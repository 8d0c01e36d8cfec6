package cluster_test

import (
	"errors"
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
