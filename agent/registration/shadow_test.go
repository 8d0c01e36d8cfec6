package registration

import (
	"testing"

	"holdfast/cluster"
)

// What is supposed stands until its lease ends or somebody really writes.
func TestWhatAShadowSupposesYieldsToWhatIsWritten(t *testing.T) {
	empty := cluster.Snapshot{Process: cluster.Process{BrokerID: "n1"}, Revision: 100}
	supposing := func() *Supposed {
		s := &Supposed{}
		s.over(empty, true)
		s.register(empty, 7, []byte("ours"), "inc")
		s.SetState("n1", cluster.State{Mode: "active"}, 0)
		return s
	}
	later := func(change func(*cluster.Snapshot)) cluster.Snapshot {
		seen := empty
		seen.Revision = 200
		if change != nil {
			change(&seen)
		}
		return seen
	}
	foreign := &cluster.Registration{BrokerID: "n1", Value: []byte("theirs"), LeaseID: 9, CreateRevision: 150, ModRevision: 150}
	for _, row := range []struct {
		name         string
		seen         cluster.Snapshot
		lives        bool
		registration string
		mode         string
		era          int64
	}{
		{"nobody wrote anything", later(nil), true, "ours", "active", 1},
		{"the lease has ended", later(nil), false, "", "active", 1},
		{"somebody registered", later(func(s *cluster.Snapshot) { s.Registration = foreign }), true, "theirs", "active", 1},
		{"a person drained", later(func(s *cluster.Snapshot) { s.State, s.StateRevision = &cluster.State{Mode: "drained"}, 160 }), true, "ours", "drained", 1},
		{"the era has grown", later(func(s *cluster.Snapshot) { s.Era.N = 5 }), true, "ours", "active", 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := supposing().over(row.seen, row.lives)
			registration, mode := "", ""
			if got.Registration != nil {
				registration = string(got.Registration.Value)
			}
			if got.State != nil {
				mode = got.State.Mode
			}
			if registration != row.registration || mode != row.mode || got.Era.N != row.era {
				t.Errorf("registration %q, mode %q, era %d", registration, mode, got.Era.N)
			}
			if got.Member == nil || got.Member.Incarnation != "inc" {
				t.Errorf("member %+v", got.Member)
			}
		})
	}
}

func TestASupposedEpochGrowsThoughTheStoreDoesNot(t *testing.T) {
	s := &Supposed{}
	seen := cluster.Snapshot{Process: cluster.Process{BrokerID: "n1"}, Revision: 100}
	first := s.register(s.over(seen, true), 7, nil, "inc")
	second := s.register(s.over(seen, false), 8, nil, "inc")
	if first <= seen.Revision || second <= first {
		t.Errorf("epochs %d, %d at revision %d", first, second, seen.Revision)
	}
}
