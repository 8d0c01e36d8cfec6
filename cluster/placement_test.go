package cluster_test

import (
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// A broker that is gone may come back between the look and the transaction.
func TestATopicIsTakenOnlyFromABrokerThatIsNotRegistered(t *testing.T) {
	for name, back := range map[string]bool{"it stays away": false, "it is back": true} {
		t.Run(name, func(t *testing.T) {
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
				theirs, err := pb.NewKVClient(s.Conn(nil)).Put(t.Context(), &pb.PutRequest{Key: []byte(c.Keys().Assignment("n2", "/ns/a")), Value: []byte("null")})
				if err != nil {
					t.Fatal(err)
				}
				if back {
					put(c.Keys().Registration("n2"))
				}
				taken, err := c.Take(t.Context(), cluster.Claimant{BrokerID: "n1", Incarnation: "i", Epoch: done.Revision, LeaseID: lease},
					[]cluster.TakeTopic{{Topic: "/ns/a", From: "n2", FromRevision: theirs.Header.Revision}})
				if err != nil || slices.Contains(taken, "/ns/a") == back {
					t.Errorf("taken %v, %v", taken, err)
				}
			})
		})
	}
}
