package clustertest

import (
	"fmt"
	"testing"
	"time"

	"holdfast/cluster"
)

func TestAnEraWhoseKeyWasDeletedIsTheHighestThatAMemberRemembers(t *testing.T) {
	for name, tt := range map[string]struct {
		peer bool
		want int64 // that the next one registers in
	}{
		"beside others":                     {true, 7},
		"when nobody is registered anymore": {false, 8},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e *server) {
				c := open(t, e.config(t))
				e.put(t, c.Keys().Era(), `{"era":6}`)
				peer := request(t, c, "b2")
				must[cluster.Registered](t)(c.Register(bounded(t), peer))
				e.put(t, c.Keys().Member("b3"), `{"era":4}`)
				e.put(t, c.Keys().Member("b4"), `torn`)
				if !tt.peer {
					if err := c.Revoke(bounded(t), peer.LeaseID); err != nil {
						t.Fatal(err)
					}
				}
				e.remove(t, c.Keys().Era())
				first, second := request(t, c, "b1"), request(t, c, "b5")
				if got := first.Seen.Era; got != (cluster.Era{N: 7}) {
					t.Errorf("read as %+v, want what b2 remembers", got)
				}
				done := must[cluster.Registered](t)(c.Register(bounded(t), first))
				if value := string(e.get(t, c.Keys().Era()).Kvs[0].Value); done.Era != tt.want || value != fmt.Sprintf(`{"era":%d}`, tt.want) {
					t.Errorf("registered in era %d, and %s was written; want %d", done.Era, value, tt.want)
				}
				if _, err := c.Register(bounded(t), second); err == nil {
					t.Error("the era was written twice")
				}
				if done = must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b5"))); done.Era != tt.want {
					t.Errorf("the next one registered in era %d", done.Era)
				}
			})
		})
	}
}

func TestTheEraSaysUntilWhenTheFleetBeforeItWasAlive(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		register := func(id string, alive *cluster.Alive) (leaseID int64, era cluster.Era) {
			t.Helper()
			req := request(t, c, id)
			req.Alive = alive
			done := must[cluster.Registered](t)(c.Register(bounded(t), req))
			seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), id))
			if done.Era != seen.Era.N {
				t.Errorf("registered in era %d, and it is %d", done.Era, seen.Era.N)
			}
			return req.LeaseID, seen.Era
		}
		first, later := cluster.Alive{Until: at, Revision: 5}, cluster.Alive{Until: at.Add(time.Hour), Revision: 9}
		under, era := register("b1", &first)
		if era.N != 1 || era.Alive != first {
			t.Errorf("%+v", era)
		}
		one, same := register("b2", nil)
		if same != era {
			t.Errorf("%+v, was %+v: written by who knows nothing", same, era)
		}
		two, raised := register("b3", &later)
		if raised.N != 1 || raised.Alive != later || raised.ModRevision == era.ModRevision {
			t.Errorf("%+v", raised)
		}
		for _, id := range []int64{under, one, two} {
			if err := c.Revoke(bounded(t), id); err != nil {
				t.Fatal(err)
			}
		}
		if _, next := register("b1", nil); next.N != 2 || next.Alive != later {
			t.Errorf("%+v: what was known is lost", next)
		}
	})
}
