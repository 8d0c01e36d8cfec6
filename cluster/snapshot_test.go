package cluster_test

import (
	"testing"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// Whichever of its requests fails, and however many there are: what could not be read is
// never taken for absent.
func TestASnapshotWhoseReadFailsIsAnErrorAndNotAnAbsence(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
		keys := cluster.NewKeys("", "")
		put(keys.Registration("b1"))
		put(keys.Registration("b2"))
		whole, err := c.Snapshot(t.Context(), "b1")
		if err != nil || whole.Registration == nil || whole.OldestPeerRevision == 0 {
			t.Fatalf("%+v, %v", whole, err)
		}
		for failing, reached := 1, true; reached; failing++ {
			requests := 0
			s.SetFault(func(string) error {
				if requests++; requests == failing {
					return memory.ErrTimeout
				}
				return nil
			})
			got, err := c.Snapshot(t.Context(), "b1")
			if reached = requests >= failing; err == nil && (got.Registration == nil || got.OldestPeerRevision != whole.OldestPeerRevision) {
				t.Errorf("request %d failed, and the snapshot is %+v", failing, got)
			}
		}
	})
}
