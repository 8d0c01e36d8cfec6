package clustertest

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// ailing is a broker that is registered, and the note of its health.
func ailing(t *testing.T, c *cluster.Client) cluster.HealthNote {
	t.Helper()
	req := request(t, c, "b1")
	done := must[cluster.Registered](t)(c.Register(bounded(t), req))
	return cluster.HealthNote{Who: cluster.Who{Name: "b1", Registered: "b1"}, Epoch: done.Revision, LeaseID: req.LeaseID,
		Incarnation: req.Incarnation, Health: cluster.HealthIll}
}

func TestTheHealthOfABrokerIsNotedInItsMemberRecordAndNowhereElse(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		n := ailing(t, c)
		before := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if written, err := c.NoteHealth(bounded(t), n); !written || err != nil {
			t.Fatal(written, err)
		}
		after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		m, was := *after.Member, *before.Member
		if m.Health != cluster.HealthIll || !m.WrittenWith(*after.Registration) {
			t.Errorf("the record is %+v", m)
		}
		was.Health, was.Bound, was.ModRevision = m.Health, before.Registration.ModRevision, m.ModRevision
		if !reflect.DeepEqual(m, was) || !reflect.DeepEqual(after.Registration, before.Registration) {
			t.Errorf("the record is %+v, the registration %+v; were %+v, %+v", m, after.Registration, was, before.Registration)
		}
		if written, err := c.NoteHealth(bounded(t), n); written || err != nil {
			t.Errorf("what it says already: %v, %v", written, err)
		}
		n.Health = cluster.HealthWell
		if written, err := c.NoteHealth(bounded(t), n); !written || err != nil {
			t.Errorf("well again: %v, %v", written, err)
		}
		n.Health = "" // as long as nobody can tell
		if written, err := c.NoteHealth(bounded(t), n); !written || err != nil || must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")).Member.Health != "" {
			t.Errorf("nothing is said any more: %v, %v", written, err)
		}
		// Who writes the registration since is not who is in the record.
		e.put(t, c.Keys().Registration("b1"), "{}", clientv3.WithLease(clientv3.LeaseID(n.LeaseID)))
		last := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if last.Member.WrittenWith(*last.Registration) {
			t.Errorf("%+v was not written with %+v", last.Member, last.Registration)
		}
	})
}

func TestThePeersHealthIsThatOfTheRegistered(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		if peers, _, err := c.PeersHealth(bounded(t), cluster.Who{Name: "b1", Registered: "b1"}); len(peers) > 0 || err != nil {
			t.Errorf("alone: %+v, %v", peers, err)
		}
		n := ailing(t, c)
		must[bool](t)(c.NoteHealth(bounded(t), n))
		for _, id := range []string{"b2", "b3", "gone", "garbled"} {
			must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, id)))
		}
		e.remove(t, c.Keys().Registration("gone"))
		e.put(t, c.Keys().Member("garbled"), "garbled")
		id := lease(t, c, time.Minute)
		e.put(t, c.Keys().Registration("4711"), "{}", clientv3.WithLease(clientv3.LeaseID(id)))
		e.put(t, c.Keys().Member("numbered"), `{"era":1,"registered_as":"4711","health":"well"}`)
		e.put(t, c.Keys().Registration("forever"), "{}")
		e.put(t, c.Keys().Member("forever"), `{"era":1,"health":"well"}`)
		e.put(t, c.Keys().Member("b3"), `{"era":1,"health":["of","the","future"]}`)
		peers, term, err := c.PeersHealth(bounded(t), cluster.Who{Name: "b2", Registered: "b2"})
		if err != nil || term == 0 {
			t.Fatal(term, err)
		}
		got := map[string]cluster.Health{}
		for _, p := range peers {
			got[p.Name] = p.Health
			if p.LeaseID == 0 || p.Name == "numbered" && p.LeaseID != id {
				t.Errorf("%+v", p)
			}
		}
		want := map[string]cluster.Health{"b1": cluster.HealthIll, "b3": "", "garbled": "", "numbered": cluster.HealthWell}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func TestThePeersWhoseHealthIsReadAreFew(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		under := clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute)))
		for i := range 3 * cluster.MostPeers {
			name := fmt.Sprintf("b%d", i)
			e.put(t, c.Keys().Member(name), `{"era":1,"health":"ill"}`)
			e.put(t, c.Keys().Registration(name), "{}", under)
		}
		peers, _, err := c.PeersHealth(bounded(t), cluster.Who{Name: "b1", Registered: "b1"})
		if err != nil || len(peers) != cluster.MostPeers {
			t.Errorf("%d peers, %v", len(peers), err)
		}
	})
}
