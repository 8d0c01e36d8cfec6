package cluster_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// Whichever of its requests fails, and however many there are: what could not be read is
// never taken for absent.
func TestASnapshotWhoseReadFailsIsAnErrorAndNotAnAbsence(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
		keys := cluster.NewKeys("")
		put(keys.Registration("b1"))
		put(keys.Registration("b2"))
		kv := pb.NewKVClient(s.Conn(nil))
		last := "b2" // peer that is registered
		for _, look := range []struct {
			name   string
			oldest bool
			moves  string // the peer of the last snapshot has gone, and this one came
		}{{name: "the oldest peer", oldest: true}, {name: "the last peer"}, {name: "another peer than the last", moves: "b3"}} {
			for failing, reached := 1, true; reached; failing++ {
				who := cluster.Who{Name: "b1", Registered: "b1", Oldest: look.oldest}
				if _, err := c.SnapshotOf(t.Context(), who); err != nil { // which knows the peer
					t.Fatal(err)
				}
				if look.moves != "" {
					if _, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte(keys.Registration(last))}); err != nil {
						t.Fatal(err)
					}
					last, look.moves = look.moves, last
					put(keys.Registration(last))
				}
				requests := 0
				s.SetFault(func(string) error {
					if requests++; requests == failing {
						return memory.ErrTimeout
					}
					return nil
				})
				got, err := c.SnapshotOf(t.Context(), who)
				s.SetFault(nil)
				if reached = requests >= failing; err == nil && (got.Registration == nil || !got.AnyRegistered || got.Peer.Key != keys.Registration(last) || look.oldest != (got.OldestPeerRevision != 0)) {
					t.Errorf("%s: request %d failed, and the snapshot is %+v", look.name, failing, got)
				}
			}
		}
	})
}
