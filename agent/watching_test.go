package agent

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// seen is what both sides of a view show.
type seen struct {
	mu                 sync.Mutex
	assigned, believed []string
	looks              int
}

func (s *seen) Compare(context.Context, recovery.ViewOrders) (is, believed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.assigned, s.believed, nil
}

func TestABlindBrokerIsReportedAndLeftAlone(t *testing.T) {
	s := &seen{assigned: []string{telltale}, believed: []string{telltale}}
	inLifeOf(t, brokerapi.Capabilities{View: true}, nil, func(l *sidecarLife) {
		l.viewer = recovery.NewViewer(s, l.cfg.AuditInterval, l.cfg.LoadTimeout, l.log)
	}, func(l *sidecarLife) {
		zombie := func(value string) {
			t.Helper()
			want := `# HELP holdfast_broker_zombie 1 while the broker shows this sign of a zombie: it runs unregistered, or serves topics that are not assigned to it or that another broker owns, or does not see what changes in etcd (stale_view: restart it).
# TYPE holdfast_broker_zombie gauge
holdfast_broker_zombie{kind="foreign_owner"} 0
holdfast_broker_zombie{kind="orphan_topics"} 0
holdfast_broker_zombie{kind="stale_view"} ` + value + `
holdfast_broker_zombie{kind="unregistered"} 0
`
			if err := testutil.GatherAndCompare(l.reg, strings.NewReader(want), "holdfast_broker_zombie"); err != nil {
				t.Error(err)
			}
		}
		zombie("0")
		s.mu.Lock()
		s.believed = nil
		s.mu.Unlock()
		l.until(l.age() + time.Minute)
		zombie("1")
		if causes := l.notReady(); len(causes) > 0 || l.state() != recovery.Attached || l.quiesces != 0 {
			t.Errorf("%v, %s, %d quiesces", causes, l.state(), l.quiesces)
		}
		if got := l.why("broker"); !strings.HasSuffix(got, "stale_view:stale_view") {
			t.Error(got)
		}
		if s := l.status().Summary; !strings.HasSuffix(s, "its watches have died: restart the broker.") {
			t.Error(s)
		}
		// It does not load what it does not see, which is no riddle then.
		l.reconciler.SetAssigned(true, []string{telltale, "/tenant-a/unseen"}, nil)
		l.until(l.age() + time.Minute)
		if s := l.status(); s.Topics.Missing != 1 || !strings.HasSuffix(s.Summary, "its watches have died: restart the broker.") {
			t.Errorf("%+v: %s", s.Topics, s.Summary)
		}
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Hour)
		zombie("0") // of a broker that is cut off nothing is known
	})
}

// What the broker's watches do not outlive shows when etcd is there again.
func TestTheViewIsComparedWhenEtcdIsBack(t *testing.T) {
	s := &seen{}
	looks := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.looks
	}
	inLifeOf(t, brokerapi.Capabilities{View: true}, func(c *Config) { c.AuditInterval = time.Hour }, func(l *sidecarLife) {
		l.viewer = recovery.NewViewer(s, l.cfg.AuditInterval, l.cfg.LoadTimeout, l.log)
	}, func(l *sidecarLife) {
		l.until(l.age() + time.Minute)
		before := looks()
		l.set(func() { l.away = true })
		for l.keeper.View().FailureStreak == 0 {
			l.until(l.age() + time.Second)
		}
		if n := looks() - before; n > 0 {
			t.Errorf("%d looks while etcd is away", n)
		}
		l.set(func() { l.away = false })
		for l.keeper.View().FailureStreak > 0 {
			l.until(l.age() + time.Second)
		}
		l.until(l.age() + time.Second)
		if n := looks() - before; n != 1 || l.state() == recovery.Detached {
			t.Errorf("%d looks since, %s; want 1", n, l.state())
		}
	})
}

// ownersTold is a broker that tells who owns what.
type ownersTold struct{ brokerapi.Broker }

func (ownersTold) Owners(context.Context, []string) (map[string]string, error) { return nil, nil }

func TestOwnersAreComparedOnlyWithTheBrokersOwnLocks(t *testing.T) {
	for _, row := range []struct {
		registration string
		can, want    bool
	}{{"adopt", true, true}, {"adopt", false, false}, {"own", true, false}, {"none", true, false}} {
		c := Default()
		c.Driver, c.Registration, c.PulsarCluster, c.BrokerAdmin = "pulsar", row.registration, "lab", "http://n1:8080"
		a := &agent{cfg: c.Effective(), broker: ownersTold{}, can: brokerapi.Capabilities{Owner: row.can}}
		if source := a.viewSource(); (source != nil) != row.want {
			t.Errorf("%+v: %T", row, source)
		}
	}
}

func TestTheLocksThatChangedLastAreReadFirst(t *testing.T) {
	store := etcd.New(etcd.Config{MinTTL: time.Second})
	owners := storedOwners{cluster.Over(cluster.Config{Layout: pulsarLayout()}, store.Conn(nil), slog.New(slog.DiscardHandler))}
	t.Cleanup(func() { owners.Close() })
	of := func(id string) string {
		return `{"nativeUrl":"pulsar://` + id + `","httpUrl":"http://` + id + `:8080"}`
	}
	for _, kv := range [][2]string{
		{"/namespace/public/default/0x00000000_0x40000000", of("n1")}, {"/namespace/public/default/0x40000000_0x80000000", of("n1")},
		{"/namespace/public/default/0x80000000_0xc0000000", "half of it: {"}, {"/namespace/pulsar/n1:8080/0x00000000_0xffffffff", of("n1")},
		{"/namespace/tenant/cluster/ns/0x00000000_0xffffffff", of("n1")}, {"/namespace/public/default/0x00000000_0x40000000", of("n2")},
	} {
		putRaw(t, store, kv[0], kv[1])
	}
	const moved, stayed, garbled, nobodys = "/public~default/0x00000000_0x40000000", "/public~default/0x40000000_0x80000000",
		"/public~default/0x80000000_0xc0000000", "/public~default/0xc0000000_0xffffffff"
	recent, all, err := owners.RecentOwners(t.Context(), 10)
	if err != nil || all != 5 || len(recent) != 2 || recent[0].Topic != moved || recent[0].Owner != "n2:8080" || recent[1].Topic != stayed || recent[1].Owner != "n1:8080" {
		t.Errorf("%+v, %v", recent, err)
	}
	if recent, all, err = owners.RecentOwners(t.Context(), 1); err != nil || all != 5 || len(recent) != 1 || recent[0].Topic != moved {
		t.Errorf("of one: %+v, %v", recent, err)
	}
	now, err := owners.OwnersOf(t.Context(), []string{moved, garbled, nobodys})
	if err != nil || len(now) != 2 || now[moved] != recent[0] || now[nobodys] != (recovery.TopicOwner{Topic: nobodys}) {
		t.Errorf("%+v, %v", now, err)
	}
	if none, err := owners.OwnersOf(t.Context(), nil); err != nil || len(none) > 0 {
		t.Errorf("of none: %+v, %v", none, err)
	}
}

// putRaw writes a key as somebody else.
func putRaw(t *testing.T, s *etcd.Server, key, value string) {
	t.Helper()
	if _, err := s.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		t.Fatal(err)
	}
}
