package cluster_test

import (
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// A topic is n2's, who is gone, and n1 takes it; or it is n1's, and goes to n2. What happens between
// the look and the transaction, to that topic alone, has it stay where it is.
func TestATopicGoesOnlyAsItWasSeen(t *testing.T) {
	const topic = "/ns/a"
	type change func(k cluster.Keys) string // puts that key
	for _, one := range []struct {
		name        string
		owner       string
		registered  bool // n2
		meanwhile   change
		wantItGoing bool
	}{
		{"taken", "n2", false, nil, true},
		{"taken from one that is back", "n2", false, func(k cluster.Keys) string { return k.Registration("n2") }, false},
		{"taken, and put anew", "n2", false, func(k cluster.Keys) string { return k.Assignment("n2", topic) }, false},
		{"taken, and locked", "n2", false, func(k cluster.Keys) string { return k.Owner(topic) }, false},
		{"taken, and the taker's already", "n2", false, func(k cluster.Keys) string { return k.Assignment("n1", topic) }, false},
		{"given", "n1", true, nil, true},
		{"given to one that is not registered", "n1", false, nil, false},
		{"given, and put anew", "n1", true, func(k cluster.Keys) string { return k.Assignment("n1", topic) }, false},
		{"given, and locked", "n1", true, func(k cluster.Keys) string { return k.Owner(topic) }, false},
	} {
		t.Run(one.name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
				lease, _, err := c.Grant(t.Context(), time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				seen, err := c.Snapshot(t.Context(), "n1")
				if err != nil {
					t.Fatal(err)
				}
				done, err := c.Register(t.Context(), cluster.RegisterRequest{LeaseID: lease, Value: []byte("{}"), Seen: seen, Member: cluster.Member{Incarnation: "i"}})
				if err != nil {
					t.Fatal(err)
				}
				if one.registered {
					put(c.Keys().Registration("n2"))
				}
				as, err := pb.NewKVClient(s.Conn(nil)).Put(t.Context(), &pb.PutRequest{Key: []byte(c.Keys().Assignment(one.owner, topic)), Value: []byte("null")})
				if err != nil {
					t.Fatal(err)
				}
				if one.meanwhile != nil {
					put(one.meanwhile(c.Keys()))
				}
				n1 := cluster.Claimant{BrokerID: "n1", Incarnation: "i", Epoch: done.Revision, LeaseID: lease}
				var gone []string
				if one.owner == "n2" {
					gone, err = c.Take(t.Context(), n1, []cluster.TakeTopic{{Topic: topic, From: "n2", FromRevision: as.Header.Revision}})
				} else {
					gone, err = c.Give(t.Context(), n1, []cluster.GiveTopic{{Topic: topic, Revision: as.Header.Revision, To: "n2"}})
				}
				if err != nil || slices.Contains(gone, topic) != one.wantItGoing {
					t.Errorf("%v went, %v", gone, err)
				}
			})
		})
	}
}
