package clustertest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"holdfast/cluster"
)

// leaving is a broker that is registered and active, and what it asks for when it leaves.
func leaving(t *testing.T, c *cluster.Client) (req cluster.LeaveRequest, registered cluster.RegisterRequest) {
	t.Helper()
	registered = request(t, c, "b1")
	registered.State = &cluster.State{Mode: cluster.ModeActive, Reason: "boot", By: "holdfast", At: at}
	done := must[cluster.Registered](t)(c.Register(bounded(t), registered))
	seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
	return cluster.LeaveRequest{Seen: seen, Epoch: done.Revision, LeaseID: registered.LeaseID,
		Left: cluster.Left{At: at, Epoch: done.Revision, Instance: "p1", Revision: seen.Revision}}, registered
}

func TestLeavingNotesItInTheMemberRecordAndNowhereElse(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		req, _ := leaving(t, c)
		if _, err := c.Leave(bounded(t), req); err != nil {
			t.Fatal(err)
		}
		after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		m, was := after.Member, req.Seen.Member
		if m == nil || m.Left == nil || *m.Left != req.Left {
			t.Fatalf("the member record is %+v", m)
		}
		if m.Era != was.Era || m.Revision != was.Revision || m.Incarnation != was.Incarnation || !m.At.Equal(was.At) {
			t.Errorf("the rest of it is %+v, was %+v", m, was)
		}
		if !reflect.DeepEqual(after.Registration, req.Seen.Registration) || !reflect.DeepEqual(after.State, req.Seen.State) {
			t.Errorf("registration %+v, state %+v, were %+v, %+v", after.Registration, after.State, req.Seen.Registration, req.Seen.State)
		}
	})
}

// A broker without a member record was never registered by Holdfast: its note would be all
// that there is of it.
func TestNobodyLeavesWithoutAMemberRecord(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		req, _ := leaving(t, c)
		e.put(t, c.Keys().Member("b1"), "torn")
		req.Seen = must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if _, err := c.Leave(bounded(t), req); err == nil || errors.Is(err, cluster.ErrChanged) {
			t.Errorf("got %v", err)
		}
		if got := string(e.get(t, c.Keys().Member("b1")).Kvs[0].Value); got != "torn" {
			t.Errorf("the member record holds %s", got)
		}
	})
}

// Each way to take a registration up takes the note away: only the one that was seen, as package guardtest has it.
func TestEveryTakeUpTakesTheNoteAway(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, tt := range []struct {
			name   string
			takeUp func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, leaseID int64) error
		}{
			{"register", func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, id int64) error {
				_, err := c.Register(bounded(t), cluster.RegisterRequest{LeaseID: id, Value: []byte("{}"), Seen: seen, Member: cluster.Member{Incarnation: "i", At: at}})
				return err
			}},
			{"rebind", func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, id int64) error {
				_, err := c.Keep(bounded(t), standing(seen, id, nil))
				return err
			}},
			{"rewrite", func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, id int64) error {
				_, err := c.Keep(bounded(t), standing(seen, id, []byte(`{"run":"2"}`)))
				return err
			}},
			{"join", func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, _ int64) error {
				_, err := c.Keep(bounded(t), standing(seen, 0, nil))
				return err
			}},
			{"succeed", func(t *testing.T, c *cluster.Client, seen cluster.Snapshot, id int64) error {
				_, err := c.Succeed(bounded(t), cluster.Succession{Seen: seen, LeaseID: id, Member: standing(seen, 0, nil).Member}, nil)
				return err
			}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := open(t, e.config(t))
				req, registered := leaving(t, c)
				if _, err := c.Leave(bounded(t), req); err != nil {
					t.Fatal(err)
				}
				if tt.name == "register" {
					if err := c.Revoke(bounded(t), registered.LeaseID); err != nil {
						t.Fatal(err)
					}
				}
				err := tt.takeUp(t, c, must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")), lease(t, c, time.Minute))
				if after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")); err != nil || after.Member.Left != nil {
					t.Errorf("%v, and the note is %+v", err, after.Member.Left)
				}
			})
		}
	})
}

func standing(seen cluster.Snapshot, lease int64, value []byte) cluster.RegisterRequest {
	return cluster.RegisterRequest{Seen: seen, LeaseID: lease, Value: value, Member: cluster.Member{Era: seen.Era.N, Incarnation: "i", At: at}}
}
