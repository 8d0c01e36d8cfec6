package clustertest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// companionsOf shows them by name: "stands", "lost", and what else is known.
func companionsOf(t *testing.T, c *cluster.Client, revision int64) map[string]string {
	t.Helper()
	seen := map[string]string{}
	for _, o := range must[[]cluster.Companion](t)(c.Companions(bounded(t), "b1", revision)) {
		said := "stands"
		if o.Lost {
			said = "lost"
		}
		if m := o.Member; m != nil && m.Left != nil {
			said += ", left"
		} else if m != nil && m.Cut != nil {
			said += fmt.Sprintf(", back at %d", m.Cut.Revision)
		}
		if o.Planned {
			said += ", planned"
		}
		if o.MemberMalformed != "" {
			said += ", " + o.MemberMalformed
		}
		seen[o.Name] = said
	}
	return seen
}

func TestCompanionsAreThoseThatWereRegisteredThenAndAreNow(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		leases := map[string]int64{}
		register := func(id string) cluster.Registered {
			req := request(t, c, id)
			leases[id] = req.LeaseID
			return must[cluster.Registered](t)(c.Register(bounded(t), req))
		}
		for _, id := range []string{"dead", "gone", "anew", "cut", "left", "turned", "stands", "torn", "b1"} {
			register(id)
		}
		// Known by one name, registered under another.
		seen := must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "named", Registered: "p1"}))
		must[cluster.Registered](t)(c.Register(bounded(t), cluster.RegisterRequest{LeaseID: lease(t, c, time.Minute), Value: []byte("{}"), Seen: seen, Member: cluster.Member{At: at}}))
		seen = must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "hidden", Registered: "p2"}))
		must[cluster.Registered](t)(c.Register(bounded(t), cluster.RegisterRequest{LeaseID: lease(t, c, time.Minute), Value: []byte("{}"), Seen: seen, Member: cluster.Member{At: at}}))
		e.put(t, c.Keys().Member("hidden"), "torn")
		e.remove(t, c.Keys().Registration("dead"))
		then := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")).Revision

		e.remove(t, c.Keys().Registration("gone"))
		e.remove(t, c.Keys().Registration("anew"))
		register("anew")
		register("joined")
		back := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "cut"))
		m := *back.Member
		m.Cut = &cluster.Cut{From: at, Until: at.Add(time.Minute), Revision: back.Revision}
		must[int64](t)(c.Keep(bounded(t), cluster.RegisterRequest{Seen: back, Member: m}))
		for _, id := range []string{"left", "turned"} {
			leaves := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), id))
			epoch := leaves.Registration.CreateRevision
			must[int64](t)(c.Leave(bounded(t), cluster.LeaveRequest{Seen: leaves, Epoch: epoch, LeaseID: leases[id], Left: cluster.Left{At: at, Epoch: epoch, Revision: 1}}))
			if err := c.Revoke(bounded(t), leases[id]); err != nil {
				t.Fatal(err)
			}
		}
		register("turned")
		e.put(t, c.Keys().Member("torn"), "torn")

		want := map[string]string{"anew": "lost", "cut": fmt.Sprintf("stands, back at %d", back.Revision),
			"turned": "lost, planned", "stands": "stands", "named": "stands", "torn": fmt.Sprintf("stands, %q at key %s", "torn", c.Keys().Member("torn")),
			"hidden": fmt.Sprintf("stands, %q at key %s", "torn", c.Keys().Member("hidden"))}
		if got := companionsOf(t, c, then); !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// In a large fleet each broker looks at as many as fill two transactions, and not at its
// neighbours only: they share a rack.
func TestCompanionsAreSpreadOverTheFleet(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		under := clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute)))
		const fleet = 4 * cluster.MostPeers
		for i := range fleet {
			e.put(t, c.Keys().Registration(fmt.Sprintf("n%03d", i)), "{}", under)
			e.put(t, c.Keys().Member(fmt.Sprintf("n%03d", i)), `{"era":1}`)
		}
		then := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "n020")).Revision
		seen := map[string]bool{}
		of := func(name string) (quarters [4]int) {
			for _, o := range must[[]cluster.Companion](t)(c.Companions(bounded(t), name, then)) {
				var i int
				fmt.Sscanf(o.Name, "n%d", &i)
				quarters[4*i/fleet]++
				seen[name+o.Name] = true
			}
			return quarters
		}
		for _, name := range []string{"n020", "n021", "n255"} {
			some, again := of(name), of(name)
			if some != again || slices.Min(some[:]) < cluster.MostPeers/16 || some[0]+some[1]+some[2]+some[3] != cluster.MostPeers || seen[name+name] {
				t.Errorf("%s looked at %v of each quarter, and at %v", name, some, again)
			}
		}
		if len(seen) != 3*cluster.MostPeers {
			t.Errorf("asked again at the same revision, they looked at others: %d", len(seen))
		}
		e.remove(t, c.Keys().Registration("n100"))
		then = must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "n020")).Revision
		if of("n020"); len(seen) == 3*cluster.MostPeers {
			t.Error("at another loss they looked at the same ones")
		}
	})
}
