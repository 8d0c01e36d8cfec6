package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// at is a client of one member.
func at(t *testing.T, m *memory.Member) *cluster.Client {
	c := cluster.Over(cluster.Config{}, m.Conn(nil), nil)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestADeposedLeaderConfirmsRenewalsOfWhatItsClusterExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		lying, honest := s.Member(), s.Member()
		client, other := at(t, lying), at(t, honest)
		id, _ := register(t, client, "b1", 10*time.Second)
		before, err := client.KeepAlive(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		term := before.Term
		lying.Depose(0)
		for range 12 {
			time.Sleep(time.Second)
			if r, err := client.KeepAlive(t.Context(), id); err != nil || r.Granted != 10*time.Second || r.Term != term {
				t.Fatalf("the deposed leader answers %+v, %v", r, err)
			}
		}
		if _, ok := registered(s, other, "b1"); ok {
			t.Error("the registration outlived its lease")
		}
		if _, err := other.KeepAlive(t.Context(), id); !errors.Is(err, cluster.ErrLeaseNotFound) {
			t.Errorf("another member answers %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Snapshot(ctx, "b1"); err == nil {
			t.Error("the deposed leader answers a read")
		}
		lying.Rejoin()
		if _, err := client.KeepAlive(t.Context(), id); !errors.Is(err, cluster.ErrLeaseNotFound) {
			t.Errorf("the member that is back answers %v", err)
		}
	})
}

func TestAMemberWithoutAQuorumAnswersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		m := s.Member()
		client := at(t, m)
		id, _ := register(t, client, "b1", 10*time.Second)
		m.Isolate()
		if _, err := client.KeepAlive(t.Context(), id); cluster.Classify(err) != cluster.ClassNoLeader {
			t.Errorf("a renewal: %v", err)
		}
		if _, err := client.Snapshot(t.Context(), "b1"); cluster.Classify(err) != cluster.ClassNoLeader {
			t.Errorf("a read: %v", err)
		}
		m.Rejoin()
		if _, err := client.KeepAlive(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
}

func TestARestoredStoreIsTheOneOfThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		client := over(t, s, nil)
		id, done := register(t, client, "b1", 10*time.Second)
		backup := s.Content()
		register(t, client, "b2", 10*time.Second)
		time.Sleep(5 * time.Second)
		var told []memory.Change
		s.Observe(func(_ memory.View, c memory.Change) { told = append(told, c) })
		s.Rewind(backup)
		if len(told) != 1 || told[0].Cause != memory.ByRestore || told[0].Revision != backup.Revision || len(told[0].Events) == 0 {
			t.Errorf("told: %+v", told)
		}
		if kv, ok := registered(s, client, "b1"); !ok || kv.CreateRevision != done.Revision {
			t.Errorf("b1: %v %+v", ok, kv)
		}
		if _, ok := registered(s, client, "b2"); ok {
			t.Error("b2 is there, and was not then")
		}
		time.Sleep(7 * time.Second) // past the deadline that the lease had
		if r, err := client.KeepAlive(t.Context(), id); err != nil || r.Revision != backup.Revision {
			t.Errorf("the lease has not its whole TTL: %+v, %v", r, err)
		}
	})
}
