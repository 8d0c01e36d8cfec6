package cluster_test

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// What was decided beside a peer is not written without it, nor beside its next life, and
// what was decided alone is not written in company. That other peers come and go is no
// matter.
func TestARegistrationIsWrittenInTheCompanyInWhichItWasDecided(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
		keys := cluster.NewKeys("")
		kv := pb.NewKVClient(s.Conn(nil))
		remove := func(key string) {
			t.Helper()
			if _, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte(key)}); err != nil {
				t.Fatal(err)
			}
		}
		peer, other := keys.Registration("peer"), keys.Registration("zz")
		for _, step := range []struct {
			name          string
			before, after func()
			want          error
		}{
			{"alone", func() {}, func() {}, nil},
			{"alone, then a peer", func() {}, func() { put(peer) }, cluster.ErrChanged},
			{"a peer that stays", func() { put(peer) }, func() {}, nil},
			{"a peer that writes again", func() { put(peer) }, func() { put(peer) }, nil},
			{"a peer that goes", func() { put(peer) }, func() { remove(peer) }, cluster.ErrChanged},
			{"a peer that goes while another stays", func() { put(peer); put(other) }, func() { remove(peer) }, cluster.ErrChanged},
			{"another that goes while the peer stays", func() { put(peer); put(other) }, func() { remove(other) }, nil},
			{"a peer that registers anew", func() { put(peer) }, func() { remove(peer); put(peer) }, cluster.ErrChanged},
		} {
			for _, key := range []string{peer, other, keys.Registration("b1")} {
				remove(key)
			}
			step.before()
			seen, err := c.Snapshot(t.Context(), "b1")
			if err != nil {
				t.Fatal(err)
			}
			step.after()
			lease, _, err := c.Grant(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			done, err := c.Register(t.Context(), cluster.RegisterRequest{LeaseID: lease, Value: []byte("{}"), Seen: seen, Member: cluster.Member{Incarnation: "i"}})
			if !errors.Is(err, step.want) {
				t.Errorf("%s: %v, want %v", step.name, err, step.want)
			}
			if alone := seen.Peer.Key == ""; err == nil && (done.Era == seen.Era.N+1) != alone {
				t.Errorf("%s: from era %d to %d", step.name, seen.Era.N, done.Era)
			}
		}
	})
}
