package clustertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// ownKeys is a layout as Pulsar's, in the test's own corner: its keys lie outside of the
// prefix, and only topics that start with a b have a lock.
func ownKeys(t *testing.T) *cluster.Layout {
	const topics = "/ns/b"
	root := prefix(t) + "-own"
	l := &cluster.Layout{Registrations: root + "/brokers/", Locks: root + "/locks/"}
	l.LockKey = func(topic string) (string, bool) {
		name, ok := strings.CutPrefix(topic, topics)
		return l.Locks + name, ok
	}
	l.LockTopic = func(key string) (string, bool) {
		name, ok := strings.CutPrefix(key, l.Locks)
		return topics + name, ok
	}
	type value struct {
		URL string `json:"url"`
	}
	l.LockOwner = func(text []byte) (string, bool) {
		var v value
		if json.Unmarshal(text, &v) != nil || v.URL == "" {
			return "", false
		}
		return strings.TrimPrefix(v.URL, "x://"), true
	}
	l.LockValue = func(registration []byte) ([]byte, error) {
		var v value
		if err := json.Unmarshal(registration, &v); err != nil || v.URL == "" {
			return nil, errors.New("the registration has no url")
		}
		return json.Marshal(v)
	}
	return l
}

// registersItself is a broker that writes its own registration, under its own session.
func (s *server) registersItself(t *testing.T, c *cluster.Client, id string) (session int64, registration string) {
	t.Helper()
	session = lease(t, c, time.Minute)
	registration = fmt.Sprintf(`{"url":"x://%s"}`, id)
	s.put(t, c.Keys().Registration(id), registration, clientv3.WithLease(clientv3.LeaseID(session)))
	return session, registration
}

func openOwnKeys(t *testing.T, e *server) *cluster.Client {
	t.Helper()
	cfg := e.config(t)
	cfg.Layout = ownKeys(t)
	return open(t, cfg)
}

// joined is the claimant of a broker whose session was joined.
func (s *server) joined(t *testing.T, c *cluster.Client, id string) cluster.Claimant {
	t.Helper()
	session, _ := s.registersItself(t, c, id)
	seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), id))
	if _, err := c.Join(bounded(t), *seen.Registration, cluster.Standing{Member: cluster.Member{Incarnation: "i-" + id, At: at}}); err != nil {
		t.Fatal(err)
	}
	return cluster.Claimant{BrokerID: id, Incarnation: "i-" + id, Epoch: seen.Registration.CreateRevision, LeaseID: session, Registration: seen.Registration.Value}
}

func TestBrokersWithKeysOfTheirOwnAreSeenWhereTheyRegister(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := openOwnKeys(t, e)
		e.put(t, prefix(t)+"/cluster/register/stray", "{}") // where no such broker registers
		session, registration := e.registersItself(t, c, "h:1")
		e.registersItself(t, c, "h:2")
		s := must[cluster.Snapshot](t)(c.SnapshotOf(bounded(t), cluster.Who{Name: "h:1", Registered: "h:1", Oldest: true}))
		if r := s.Registration; r == nil || r.BrokerID != "h:1" || r.LeaseID != session || string(r.Value) != registration {
			t.Errorf("the registration was read as %+v", r)
		}
		if peer := e.get(t, c.Keys().Registration("h:2")).Kvs[0].CreateRevision; !s.AnyRegistered || s.OldestPeerRevision != peer {
			t.Errorf("the oldest peer is of revision %d, want %d", s.OldestPeerRevision, peer)
		}
		for name, owner := range map[string]string{"1": `{"url":"x://h:1"}`, "2": `{"url":"x://h:1"}`, "3": `{"url":"x://h:2"}`, "4": `{}`} {
			e.put(t, c.Keys().Owners()+name, owner)
		}
		var fleet []string
		for _, b := range must[[]cluster.FleetBroker](t)(c.Fleet(bounded(t))) {
			fleet = append(fleet, fmt.Sprintf("%s serves %d", b.BrokerID, b.Assignments))
		}
		slices.Sort(fleet)
		if !slices.Equal(fleet, []string{"h:1 serves 2", "h:2 serves 1"}) {
			t.Errorf("the fleet is %q", fleet)
		}
	})
}

func TestJoiningWritesTheMemberRecordAndNothingElse(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := openOwnKeys(t, e)
		session, _ := e.registersItself(t, c, "h:1")
		seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "h:1"))
		before := e.get(t, c.Keys().Registration("h:1")).Kvs[0]
		if _, err := c.Join(bounded(t), *seen.Registration, cluster.Standing{Member: cluster.Member{Era: 3, Revision: seen.Revision, Incarnation: "i-1", At: at}}); err != nil {
			t.Fatal(err)
		}
		after := e.get(t, c.Keys().Registration("h:1")).Kvs[0]
		if after.ModRevision != before.ModRevision || after.Version != before.Version || after.Lease != session {
			t.Errorf("the registration is %+v, was %+v", after, before)
		}
		member := e.get(t, c.Keys().Member("h:1")).Kvs[0]
		if member.Lease != 0 {
			t.Error("the member record is under a lease")
		}
		now := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "h:1"))
		if m := now.Member; m == nil || m.Era != 3 || m.Revision != seen.Revision || m.Incarnation != "i-1" || m.ModRevision != member.ModRevision {
			t.Errorf("the member record was read as %+v", m)
		}
		if now.Era.ModRevision != 0 || now.State != nil {
			t.Errorf("era %+v and state %+v, want neither written", now.Era, now.State)
		}
	})
}

func TestWhatIsNotAsSeenIsNotJoined(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, tt := range []struct {
			name   string
			change func(c *cluster.Client, key string, seen *cluster.Registration)
			want   error // nil: any
		}{
			{"it was written again", func(c *cluster.Client, key string, r *cluster.Registration) {
				e.put(t, key, string(r.Value), clientv3.WithLease(clientv3.LeaseID(r.LeaseID)))
			}, cluster.ErrChanged},
			{"it is gone", func(c *cluster.Client, key string, _ *cluster.Registration) { e.remove(t, key) }, cluster.ErrChanged},
			{"it is gone, and never was for all we know", func(c *cluster.Client, key string, r *cluster.Registration) {
				e.remove(t, key)
				r.ModRevision = 0
			}, cluster.ErrChanged},
			{"it is under no lease", func(c *cluster.Client, key string, r *cluster.Registration) { r.LeaseID = 0 }, nil},
			{"it names nobody", func(c *cluster.Client, key string, r *cluster.Registration) { r.BrokerID = "a/b" }, nil},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := openOwnKeys(t, e)
				e.registersItself(t, c, "h:1")
				seen := *must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "h:1")).Registration
				tt.change(c, c.Keys().Registration("h:1"), &seen)
				_, err := c.Join(bounded(t), seen, cluster.Standing{Member: cluster.Member{Incarnation: "i-1", At: at}})
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("joined with %v, want %v", err, tt.want)
				}
				if s := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "h:1")); s.Member != nil {
					t.Errorf("the member record is %+v", s.Member)
				}
			})
		}
	})
}

func TestABrokersOwnLocksAreToldApartByNameAndLease(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := openOwnKeys(t, e)
		keys := c.Keys()
		a, b := e.joined(t, c, "h:1"), e.joined(t, c, "h:2")
		under := func(id int64) clientv3.OpOption { return clientv3.WithLease(clientv3.LeaseID(id)) }
		old := lease(t, c, time.Minute)
		e.put(t, keys.Owner("/ns/b-mine"), `{"url":"x://h:1"}`, under(a.LeaseID))
		e.put(t, keys.Owner("/ns/b-old"), `{"url":"x://h:1"}`, under(old))
		e.put(t, keys.Owner("/ns/b-theirs"), `{"url":"x://h:2"}`, under(b.LeaseID))
		e.put(t, keys.Owner("/ns/b-garbled"), "mine!")
		owners := must[map[string]cluster.Owner](t)(c.Owners(bounded(t), []string{"/ns/b-mine", "/ns/b-old", "/ns/b-theirs", "/ns/b-garbled", "/ns/b-free", "/ns/other"}))
		for topic, want := range map[string]struct{ free, of, current bool }{
			"/ns/b-mine":    {of: true, current: true},
			"/ns/b-old":     {of: true},
			"/ns/b-theirs":  {},
			"/ns/b-garbled": {},
			"/ns/b-free":    {free: true},
			"/ns/other":     {free: true}, // it has no lock
		} {
			if o := owners[topic]; o.Free() != want.free || o.Of(a) != want.of || o.Current(a) != want.current {
				t.Errorf("%s: %+v is free %v, ours %v, now %v; want %+v", topic, o, o.Free(), o.Of(a), o.Current(a), want)
			}
		}
		if got := must[[]string](t)(c.OwnedTopics(bounded(t), a.LeaseID)); !slices.Equal(got, []string{"/ns/b-mine"}) {
			t.Errorf("under the session of h:1 are %q", got)
		}

		// Taken, the lock is as the broker itself would have written it.
		r := lock(t, c, a, take("/ns/b-free", "/ns/b-theirs")...)
		if !r[0].Done || !r[0].Owner.Current(a) || r[1].Done || !r[1].Owner.Current(b) {
			t.Errorf("taken: %+v", r)
		}
		if kv := e.get(t, keys.Owner("/ns/b-free")).Kvs[0]; string(kv.Value) != `{"url":"x://h:1"}` || kv.Lease != a.LeaseID || kv.Version != 1 {
			t.Errorf("the lock that was taken is %+v", kv)
		}
		// Rebound, its bytes stay as they were and there is no moment without it.
		before := e.get(t, keys.Owner("/ns/b-old")).Kvs[0]
		if r := lock(t, c, a, cluster.LockRequest{Act: cluster.Rebind, Topic: "/ns/b-old", Seen: owners["/ns/b-old"]}); !r[0].Done || !r[0].Owner.Current(a) {
			t.Errorf("rebound: %+v", r)
		}
		if kv := e.get(t, keys.Owner("/ns/b-old")).Kvs[0]; kv.CreateRevision != before.CreateRevision || kv.Lease != a.LeaseID || string(kv.Value) != string(before.Value) {
			t.Errorf("the lock that was rebound is %+v, was %+v", kv, before)
		}
		// Another's is refused before anything is sent.
		if _, err := c.Lock(bounded(t), a, []cluster.LockRequest{{Act: cluster.Release, Topic: "/ns/b-theirs", Seen: owners["/ns/b-theirs"]}}); err == nil {
			t.Error("another broker's lock was released")
		}
	})
}

func TestABrokersOwnLocksAreTakenOnlyBesideItsRegistration(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := openOwnKeys(t, e)
		who := e.joined(t, c, "h:1")
		without := who
		without.Registration = []byte("{}")
		if _, err := c.Lock(bounded(t), without, take("/ns/b-1")); !contains(err, "has no url") {
			t.Errorf("taken for a registration of which no lock can be made: %v", err)
		}
		if err := c.Revoke(bounded(t), who.LeaseID); err != nil {
			t.Fatal(err)
		}
		session, _ := e.registersItself(t, c, "h:1") // it is back, with another session
		if _, err := c.Lock(bounded(t), who, take("/ns/b-1")); !errors.Is(err, cluster.ErrChanged) && !errors.Is(err, cluster.ErrLeaseNotFound) {
			t.Errorf("taken for the session before: %v", err)
		}
		if got := must[[]string](t)(c.OwnedTopics(bounded(t), session)); len(got) != 0 {
			t.Errorf("locks %q came to be", got)
		}
	})
}
