package clustertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

func TestOthersAreSeenAtOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		for _, id := range []string{"b1", "b2", "b3"} {
			must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, id)))
		}
		left := request(t, c, "b4")
		gone := must[cluster.Registered](t)(c.Register(bounded(t), left))
		seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b4"))
		must[int64](t)(c.Leave(bounded(t), cluster.LeaveRequest{Seen: seen, Epoch: gone.Revision, LeaseID: left.LeaseID, Left: cluster.Left{At: at, Epoch: gone.Revision}}))
		if err := c.Revoke(bounded(t), left.LeaseID); err != nil {
			t.Fatal(err)
		}
		e.put(t, c.Keys().Registration("forever"), "{}")
		e.put(t, c.Keys().Registration("77"), "{}", clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
		e.put(t, c.Keys().Registration("bare"), "{}", clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
		e.put(t, c.Keys().Member("numbered"), `{"era":1,"registered_as":"77"}`)
		e.put(t, c.Keys().Member("b3"), "garbled")
		names := must[[]string](t)(c.OthersOf(bounded(t), cluster.Who{Name: "b1", Registered: "b1"}, "seed"))
		slices.Sort(names)
		if !slices.Equal(names, []string{"77", "b2", "b3", "b4", "bare", "forever", "numbered"}) {
			t.Fatal(names)
		}
		others, revision, term, err := c.Others(bounded(t), append(names, "absent"))
		if err != nil || term == 0 || revision < seen.Revision {
			t.Fatalf("revision %d in term %d, %v", revision, term, err)
		}
		said := ""
		for _, o := range others {
			said += fmt.Sprintf("%s %v %v %v; ", o.Name, o.Epoch != 0, o.Member != nil, o.Malformed != "")
		}
		if want := "b2 true true false; b3 true false true; b4 false true false; bare true false false; numbered true true false; "; said != want {
			t.Errorf("%s, want %s", said, want)
		}
	})
}

// Each broker has an order of its own, in which neighbours by name are no neighbours.
func TestOthersAreDrawn(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		for i := range 4 * cluster.MostPeers {
			e.put(t, c.Keys().Member(fmt.Sprintf("n%03d", i)), `{"era":1}`)
		}
		list := func(seed string) []string {
			names := must[[]string](t)(c.OthersOf(bounded(t), cluster.Who{Name: "n128", Registered: "n128"}, seed))
			if len(names) != cluster.MostPeers || slices.Contains(names, "n128") {
				t.Errorf("by %s: %v", seed, names)
			}
			return names
		}
		one, other := list("one"), list("other")
		if slices.IsSorted(one) || slices.Equal(one, other) || !slices.Equal(one, list("one")) {
			t.Errorf("%v, then %v", one, other)
		}
		behind := 0
		for _, name := range one {
			if name > "n128" {
				behind++
			}
		}
		if behind < cluster.MostPeers/4 || behind > 3*cluster.MostPeers/4 {
			t.Errorf("of %d, %d are of the second half: %v", cluster.MostPeers, behind, one)
		}
		if others, _, _, err := c.Others(bounded(t), one); err != nil || len(others) != cluster.MostPeers {
			t.Errorf("read %d, %v", len(others), err)
		}
	})
}

// sinks waits until so much of a lease is gone.
func sinks(t *testing.T, c *cluster.Client, id int64, below time.Duration) cluster.LeaseLeft {
	t.Helper()
	for ctx := bounded(t); ; {
		left := must[cluster.LeaseLeft](t)(c.LeaseLeft(ctx, id))
		if !left.Found || left.Unknown || left.Term == 0 {
			t.Fatalf("%+v", left)
		}
		if left.Left < below {
			return left
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still %v left", left.Left)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A new leader gives every lease its whole time again, that of the dead too, and only the
// term shows it.
func TestALeaderThatIsElectedLiftsTheLeasesOfTheDead(t *testing.T) {
	check := func(t *testing.T, c *cluster.Client, elect func() *cluster.Client) {
		id := lease(t, c, time.Minute)
		_, _, before, err := c.Others(bounded(t), []string{"b1"})
		low := sinks(t, c, id, 58*time.Second)
		c = elect()
		_, _, after, err2 := c.Others(bounded(t), []string{"b1"})
		high := must[cluster.LeaseLeft](t)(c.LeaseLeft(bounded(t), id))
		if err != nil || err2 != nil || low.Term != before || high.Term != after || after <= before || high.Left <= low.Left {
			t.Errorf("%+v in term %d (%v), then %+v in term %d (%v)", low, before, err, high, after, err2)
		}
	}
	t.Run("etcd", func(t *testing.T) {
		server, stop := ownEtcd(t, nil)
		config := cluster.Config{Endpoints: []string{server.AdvertiseClientUrls[0].String()}}
		check(t, open(t, config), func() *cluster.Client {
			stop()
			again, err := start(server)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(again.Close)
			return open(t, config)
		})
	})
	t.Run("memory", func(t *testing.T) {
		store := memory.New(memory.Config{})
		c := cluster.Over(cluster.Config{}, store.Conn(nil), nil)
		check(t, c, func() *cluster.Client { store.ChangeLeader(0); return c })
	})
}

// Some versions of etcd ask for the right to read every key of a lease, others only of whom
// wants to see the keys, which we do not.
func TestWhoMayReadRegistrationsIsToldHowLongTheirLeasesLast(t *testing.T) {
	server, _ := ownEtcd(t, nil)
	endpoint := server.AdvertiseClientUrls[0].String()
	register := "/cluster/register/"
	users(t, rawClient(t, clientv3.Config{Endpoints: []string{endpoint}}), map[string]map[string]clientv3.PermissionType{"some": {register: mayRead}})
	root, some, ctx := open(t, as(t, endpoint, "root", "root")), open(t, as(t, endpoint, "some", "some")), bounded(t)
	done := request(t, root, "b1")
	must[cluster.Registered](t)(root.Register(ctx, done))
	if left, err := some.LeaseLeft(ctx, done.LeaseID); err != nil || !left.Found {
		t.Errorf("%+v, %v; want to be told of a lease whose keys it may read", left, err)
	}
	who := cluster.Claimant{BrokerID: "b1", Incarnation: "i", Epoch: must[cluster.Snapshot](t)(root.Snapshot(ctx, "b1")).Registration.CreateRevision, LeaseID: done.LeaseID}
	must[[]cluster.Owner](t)(root.Lock(ctx, who, []cluster.LockRequest{{Act: cluster.Take, Topic: "/ns/t"}}))
	if left, err := some.LeaseLeft(ctx, done.LeaseID); !left.Found && !cluster.Denied(err) {
		t.Errorf("%+v, %v; want to be told, or refused because of %s", left, err, root.Keys().Owner("/ns/t"))
	}
	if _, _, _, err := some.Others(ctx, []string{"b1"}); !cluster.Denied(err) {
		t.Errorf("member records: %v, want to be refused", err)
	}
	seen := must[cluster.Snapshot](t)(root.Snapshot(ctx, "b1"))
	if err := some.MayRegister(ctx, seen); !cluster.Denied(err) || !strings.Contains(err.Error(), "permission denied to write "+register+"b1: etcdctl role grant-permission") {
		t.Errorf("%v, want the right to register to be named", err)
	}
	if err := root.MayRegister(ctx, seen); err != nil || must[cluster.Snapshot](t)(root.Snapshot(ctx, "b1")).Revision != seen.Revision {
		t.Errorf("%v, or something was written", err)
	}
}
