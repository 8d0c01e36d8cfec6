package cluster_test

import (
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// What is seen of the others decides whether a broker that is ill is stopped: records of those
// that have gone must not stand for those that live.
func TestPeersThatLiveAreFoundBehindTheRecordsOfThoseThatHaveGone(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
		keys, kv := c.Keys(), pb.NewKVClient(s.Conn(nil))
		granted, err := s.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 60})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 * cluster.MostPeers {
			put(keys.Member(fmt.Sprintf("gone%d", i)))
		}
		want := map[string]cluster.Health{"named": cluster.HealthIll, "numbered": cluster.HealthWell}
		for name, as := range map[string]string{"named": "named", "numbered": "4711"} {
			record := fmt.Sprintf(`{"era":1,"registered_as":%q,"health":%q}`, as, want[name])
			for _, r := range []*pb.PutRequest{
				{Key: []byte(keys.Member(name)), Value: []byte(record)},
				{Key: []byte(keys.Registration(as)), Lease: granted.ID},
			} {
				if _, err := kv.Put(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		peers, _, err := c.PeersHealth(t.Context(), cluster.Who{Name: "n1", Registered: "n1"})
		if err != nil || len(peers) != len(want) {
			t.Fatalf("%+v, %v", peers, err)
		}
		for _, p := range peers {
			if p.Health != want[p.Name] {
				t.Errorf("%+v, want %s", p, want[p.Name])
			}
		}
	})
}
