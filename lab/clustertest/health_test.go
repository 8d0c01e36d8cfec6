package clustertest

import (
	"fmt"
	"reflect"
	"strings"
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

// Records of brokers that have gone stand until somebody forgets them: of a fleet that replaces
// its machines there are many more of them than of those that live.
func TestThePeersHealthIsFoundAmongManyWhoHaveGone(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, tt := range []struct {
			name string
			as   string // what "living" is registered as
			gone int
		}{
			{"by name", "living", 8 * cluster.MostPeers},
			{"under another id", "4711", 8 * cluster.MostPeers},
			{"behind more than are listed", "living", 1100},
		} {
			t.Run(tt.name, func(t *testing.T) {
				cfg := e.config(t)
				cfg.Prefix += "/" + strings.ReplaceAll(tt.name, " ", "-")
				c := open(t, cfg)
				for i := range tt.gone {
					e.put(t, c.Keys().Member(fmt.Sprintf("gone%04d", i)), `{"era":1,"health":"well"}`)
				}
				id := lease(t, c, time.Minute)
				under := clientv3.WithLease(clientv3.LeaseID(id))
				e.put(t, c.Keys().Member("living"), fmt.Sprintf(`{"era":1,"registered_as":%q,"health":"well"}`, tt.as))
				e.put(t, c.Keys().Registration(tt.as), "{}", under)
				e.put(t, c.Keys().Registration("without-a-sidecar"), "{}", under)
				e.put(t, c.Keys().Registration("1"), "{}", under)
				peers, _, err := c.PeersHealth(bounded(t), cluster.Who{Name: "b1", Registered: "1"})
				want := []cluster.PeerHealth{{Name: "living", Health: cluster.HealthWell, LeaseID: id}}
				if err != nil || !reflect.DeepEqual(peers, want) {
					t.Errorf("%+v, %v", peers, err)
				}
			})
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
