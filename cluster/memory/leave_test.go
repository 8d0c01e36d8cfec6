package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// The same guards as on a real etcd (lab/clustertest), for who has only this module.
func TestANoteOfAPlannedStopIsGuarded(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest) error
	}{
		{"the registration is a newer one", func(_ *testing.T, _ *cluster.Client, req *cluster.LeaveRequest) error {
			req.Epoch--
			return nil
		}},
		{"the registration is under another lease", func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest) error {
			_, err := c.Keep(t.Context(), stands(req.Seen, lease(t, c, time.Minute)))
			req.Seen.MemberRevision++ // as if the record had not been written with it
			return err
		}},
		{"an operator drained", func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest) error {
			_, err := c.PutState(t.Context(), "b1", cluster.State{Mode: cluster.ModeDrained}, req.Seen.StateRevision)
			return err
		}},
		{"the member record was written", func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest) error {
			_, err := c.Keep(t.Context(), stands(req.Seen, 0))
			return err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{})
				c := over(t, s, nil)
				id, done := register(t, c, "b1", time.Minute)
				seen := snapshot(t, c)
				req := cluster.LeaveRequest{Seen: seen, Epoch: done.Revision, LeaseID: id, Left: cluster.Left{At: time.Now(), Epoch: done.Revision}}
				if err := row.change(t, c, &req); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Leave(t.Context(), req); !errors.Is(err, cluster.ErrChanged) {
					t.Errorf("got %v", err)
				}
				if m := snapshot(t, c).Member; m.Left != nil {
					t.Errorf("it is noted all the same: %+v", m.Left)
				}
			})
		})
	}
}

// Who takes a registration up takes away the note that it saw, and no other.
func TestATakeUpIsGuardedByTheMemberRecord(t *testing.T) {
	for name, takeUp := range map[string]func(t *testing.T, c *cluster.Client, seen cluster.Snapshot) error{
		"rebind": func(t *testing.T, c *cluster.Client, seen cluster.Snapshot) error {
			_, err := c.Keep(t.Context(), stands(seen, lease(t, c, time.Minute)))
			return err
		},
		"join": func(t *testing.T, c *cluster.Client, seen cluster.Snapshot) error {
			_, err := c.Keep(t.Context(), stands(seen, 0))
			return err
		},
		"succeed": func(t *testing.T, c *cluster.Client, seen cluster.Snapshot) error {
			_, err := c.Succeed(t.Context(), cluster.Succession{Seen: seen, LeaseID: lease(t, c, time.Minute), Member: stands(seen, 0).Member}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{})
				c := over(t, s, nil)
				id, done := register(t, c, "b1", time.Minute)
				before := snapshot(t, c)
				left := cluster.Left{At: time.Now(), Epoch: done.Revision}
				if _, err := c.Leave(t.Context(), cluster.LeaveRequest{Seen: before, Epoch: done.Revision, LeaseID: id, Left: left}); err != nil {
					t.Fatal(err)
				}
				if err := takeUp(t, c, before); !errors.Is(err, cluster.ErrChanged) || snapshot(t, c).Member.Left == nil {
					t.Errorf("from a view without the note: %v", err)
				}
				if err := takeUp(t, c, snapshot(t, c)); err != nil || snapshot(t, c).Member.Left != nil {
					t.Errorf("from a view of the note: %v", err)
				}
			})
		})
	}
}

func snapshot(t *testing.T, c *cluster.Client) cluster.Snapshot {
	t.Helper()
	seen, err := c.Snapshot(t.Context(), "b1")
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func stands(seen cluster.Snapshot, lease int64) cluster.RegisterRequest {
	return cluster.RegisterRequest{Seen: seen, LeaseID: lease, Member: cluster.Member{Era: 1, Incarnation: "i"}}
}
