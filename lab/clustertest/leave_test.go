package clustertest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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

func TestLeaveGuards(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, tt := range []struct {
			name   string
			change func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest)
		}{
			{"the registration has gone", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) {
				e.remove(t, c.Keys().Registration("b1"))
			}},
			{"the registration is a newer one, under the same lease", func(t *testing.T, c *cluster.Client, req *cluster.LeaveRequest) {
				e.remove(t, c.Keys().Registration("b1"))
				e.put(t, c.Keys().Registration("b1"), "{}", clientv3.WithLease(clientv3.LeaseID(req.LeaseID)))
			}},
			{"the registration is under another lease", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) {
				e.put(t, c.Keys().Registration("b1"), "{}", clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
			}},
			{"an operator drained", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) {
				e.put(t, c.Keys().State("b1"), `{"mode":"drained","reason":"disk swap","by":"operator"}`)
			}},
			{"the state key was deleted", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) { e.remove(t, c.Keys().State("b1")) }},
			{"the member record was written", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) {
				e.put(t, c.Keys().Member("b1"), `{"era":7}`)
			}},
			{"the member record was deleted", func(t *testing.T, c *cluster.Client, _ *cluster.LeaveRequest) { e.remove(t, c.Keys().Member("b1")) }},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := open(t, e.config(t))
				req, _ := leaving(t, c)
				tt.change(t, c, &req)
				if _, err := c.Leave(bounded(t), req); !errors.Is(err, cluster.ErrChanged) {
					t.Errorf("got %v", err)
				}
				if s := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")); s.Member != nil && s.Member.Left != nil {
					t.Errorf("it is noted all the same: %+v", s.Member.Left)
				}
			})
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

// Each way to take a registration up takes the note away, and only the one that was seen.
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
			for _, meanwhile := range []bool{false, true} {
				name := tt.name
				if meanwhile {
					name += ", and the member record was written meanwhile"
				}
				t.Run(name, func(t *testing.T) {
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
					seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
					if meanwhile {
						e.put(t, c.Keys().Member("b1"), `{"era":1,"left":{"at":"2026-01-02T03:04:06Z","epoch":9,"instance":"p2"}}`)
					}
					err := tt.takeUp(t, c, seen, lease(t, c, time.Minute))
					after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
					if meanwhile && (!errors.Is(err, cluster.ErrChanged) || after.Member.Left == nil) {
						t.Errorf("%v, and the note of another is %+v", err, after.Member.Left)
					}
					if !meanwhile && (err != nil || after.Member.Left != nil) {
						t.Errorf("%v, and the note is %+v", err, after.Member.Left)
					}
				})
			}
		}
	})
}

func standing(seen cluster.Snapshot, lease int64, value []byte) cluster.RegisterRequest {
	return cluster.RegisterRequest{Seen: seen, LeaseID: lease, Value: value, Member: cluster.Member{Era: seen.Era.N, Incarnation: "i", At: at}}
}
