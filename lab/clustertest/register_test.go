package clustertest

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// request asks to register the broker as it is seen now.
func request(t *testing.T, c *cluster.Client, id string) cluster.RegisterRequest {
	t.Helper()
	return cluster.RegisterRequest{
		LeaseID: lease(t, c, time.Minute),
		Value:   []byte(`{"incarnation":"i-` + id + `"}`),
		Seen:    must[cluster.Snapshot](t)(c.Snapshot(bounded(t), id)),
		Member:  cluster.Member{Incarnation: "i-" + id, Data: "data-" + id, At: at},
	}
}

func TestRegisterIsOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		keys := c.Keys()
		req := request(t, c, "b1")
		if s := req.Seen; s.Registration != nil || s.State != nil || s.Member != nil || s.AnyRegistered || s.Era != (cluster.Era{}) || s.Revision == 0 {
			t.Fatalf("an empty cluster was read as %+v", s)
		}
		req.State = &cluster.State{Mode: cluster.ModeActive, Reason: "boot", By: "agent", At: at}
		done := must[cluster.Registered](t)(c.Register(bounded(t), req))
		for _, key := range []string{keys.Registration("b1"), keys.Member("b1"), keys.Era(), keys.State("b1")} {
			if kv := e.get(t, key).Kvs[0]; kv.ModRevision != done.Revision || kv.CreateRevision != done.Revision {
				t.Errorf("%s has create revision %d and mod revision %d, want %d", key, kv.CreateRevision, kv.ModRevision, done.Revision)
			}
		}
		for key, want := range map[string]string{
			keys.Era():              `{"era":1}`,
			keys.State("b1"):        `{"mode":"active","reason":"boot","by":"agent","at":"2026-01-02T03:04:05Z"}`,
			keys.Registration("b1"): `{"incarnation":"i-b1"}`,
		} {
			if got := string(e.get(t, key).Kvs[0].Value); got != want {
				t.Errorf("%s holds %s, want %s", key, got, want)
			}
		}
		s := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if r := s.Registration; r == nil || r.LeaseID != req.LeaseID || r.CreateRevision != done.Revision || string(r.Value) != string(req.Value) {
			t.Errorf("the registration was read as %+v", r)
		}
		if m := s.Member; m == nil || m.Era != 1 || m.Revision != req.Seen.Revision || m.ModRevision != done.Revision || m.Incarnation != "i-b1" || m.Data != "data-b1" || !m.At.Equal(at) {
			t.Errorf("the member record was read as %+v", m)
		}
		if s.State == nil || s.State.Mode != cluster.ModeActive || s.StateRevision != done.Revision || !s.AnyRegistered || s.Peer != (cluster.Peer{}) {
			t.Errorf("the snapshot after it is %+v", s)
		}
		if e.get(t, keys.Member("b1")).Kvs[0].Lease != 0 || e.get(t, keys.Era()).Kvs[0].Lease != 0 || e.get(t, keys.State("b1")).Kvs[0].Lease != 0 {
			t.Error("only the registration may be under the lease")
		}
	})
}

func TestRegisterUnderALostLeaseSaysSo(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		req := request(t, c, "b1")
		if err := c.Revoke(bounded(t), req.LeaseID); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(bounded(t), req); !errors.Is(err, cluster.ErrLeaseNotFound) || cluster.Classify(err) != cluster.ClassLeaseNotFound {
			t.Errorf("got %v", err)
		}
	})
}

func TestRebindKeepsBytesAndCreateRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, c := range []struct {
			name  string
			lease func(t *testing.T) clientv3.LeaseID
		}{
			{"under a foreign lease", func(t *testing.T) clientv3.LeaseID {
				return must[*clientv3.LeaseGrantResponse](t)(e.raw.Grant(bounded(t), 60)).ID
			}},
			{"under no lease", func(*testing.T) clientv3.LeaseID { return clientv3.NoLease }},
		} {
			t.Run(c.name, func(t *testing.T) {
				client := open(t, e.config(t))
				key, value := client.Keys().Registration("b1"), "{ \"broker_url\" :\"http://b1\"}\n"
				foreign := c.lease(t)
				e.put(t, key, value, clientv3.WithLease(foreign))
				look := must[cluster.Snapshot](t)(client.Snapshot(bounded(t), "b1"))
				look.Era.N = 3 // as it was known otherwise
				seen := *look.Registration
				if seen.LeaseID != int64(foreign) {
					t.Fatalf("seen under lease %x, want %x", seen.LeaseID, foreign)
				}
				own := lease(t, client, time.Minute)
				bound := must[int64](t)(client.Keep(bounded(t), cluster.RegisterRequest{Seen: look, LeaseID: own,
					Member: cluster.Member{Incarnation: "i", At: at},
					State:  &cluster.State{Mode: cluster.ModeDrained, Reason: "stale_restart", By: "agent", At: at}}))
				kv := e.get(t, key).Kvs[0]
				if string(kv.Value) != value || kv.CreateRevision != seen.CreateRevision || kv.Lease != own {
					t.Errorf("now %q under lease %x with create revision %d", kv.Value, kv.Lease, kv.CreateRevision)
				}
				if bound != kv.ModRevision {
					t.Errorf("returned %d for %+v", bound, kv)
				}
				after := must[cluster.Snapshot](t)(client.Snapshot(bounded(t), "b1"))
				if m := after.Member; m == nil || m.Era != 3 || m.Revision != look.Revision || m.ModRevision != kv.ModRevision || after.Era.ModRevision != 0 {
					t.Errorf("member %+v and era %+v, want a member of era 3 in the same revision and no era", m, after.Era)
				}
				if after.State == nil || after.State.Mode != cluster.ModeDrained || after.StateRevision != kv.ModRevision {
					t.Errorf("state %+v of revision %d, want drained in the same revision", after.State, after.StateRevision)
				}
				if foreign != clientv3.NoLease {
					if _, err := e.raw.Revoke(bounded(t), foreign); err != nil {
						t.Fatal(err)
					}
					e.get(t, key) // still there
				}
				if _, err := client.Keep(bounded(t), cluster.RegisterRequest{Seen: look, LeaseID: own}); !errors.Is(err, cluster.ErrChanged) {
					t.Errorf("a second time from the old view: %v, want ErrChanged", err)
				}
			})
		}
	})
}

func TestJoinTouchesNoRegistrationAndWritesTheModeWithTheMember(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		key := c.Keys().Registration("b1")
		e.put(t, key, "{}", clientv3.WithLease(must[*clientv3.LeaseGrantResponse](t)(e.raw.Grant(bounded(t), 60)).ID))
		before := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		stand := cluster.RegisterRequest{Seen: before, Member: cluster.Member{Incarnation: "i", At: at},
			State: &cluster.State{Mode: cluster.ModeDrained, Reason: "stale_restart", By: "agent", At: at}}
		joined := must[int64](t)(c.Keep(bounded(t), stand))
		after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if r := after.Registration; r == nil || r.ModRevision != before.Registration.ModRevision || r.LeaseID != before.Registration.LeaseID {
			t.Errorf("registration %+v, then %+v", before.Registration, r)
		}
		if after.Member == nil || after.Member.ModRevision != joined || after.State == nil || after.State.Mode != cluster.ModeDrained || after.StateRevision != joined {
			t.Errorf("member %+v, state %+v of revision %d: want both of %d", after.Member, after.State, after.StateRevision, joined)
		}
		// The state is another's word since then: nothing is written of either.
		stand.Seen.MemberRevision = joined
		if _, err := c.Keep(bounded(t), stand); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("over a state that was not seen: %v", err)
		}
		if now := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")); now.Member.ModRevision != joined || now.StateRevision != joined {
			t.Errorf("written all the same: %+v", now)
		}
	})
}

func TestRebindNeverCreates(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		own := lease(t, c, time.Minute)
		if _, err := c.Keep(bounded(t), cluster.RegisterRequest{LeaseID: own,
			Seen: cluster.Snapshot{Process: cluster.Process{BrokerID: "b1", Registration: &cluster.Registration{}}}}); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("got %v, want ErrChanged", err)
		}
	})
}

func TestMalformedIsNotAbsent(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		e.put(t, c.Keys().State("b1"), "asleep")
		e.put(t, c.Keys().Member("b1"), "[]")
		s := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if s.State != nil || s.StateMalformed != "asleep" || s.StateRevision == 0 || s.Member != nil || s.MemberMalformed != `"[]" at key `+c.Keys().Member("b1") {
			t.Errorf("got %+v", s)
		}
		must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b1"))) // and is no reason to refuse
	})
}

func TestASnapshotFindsAPeerWhoeverWasThereTheLastTime(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		k := c.Keys()
		for _, step := range []struct {
			name   string
			change func()
			want   string // empty: nobody
		}{
			{"nobody yet", func() {}, ""},
			{"the first", func() { e.put(t, k.Registration("m"), "{}") }, "m"},
			{"it is asked for again, although another comes before it", func() { e.put(t, k.Registration("a"), "{}") }, "m"},
			{"it goes", func() { e.remove(t, k.Registration("m")) }, "a"},
			{"our own is no peer", func() { e.put(t, k.Registration("b1"), "{}"); e.remove(t, k.Registration("a")) }, ""},
			{"after all had gone, too", func() { e.remove(t, k.Registration("b1")); e.put(t, k.Registration("z"), "{}") }, "z"},
		} {
			step.change()
			seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
			want := cluster.Peer{}
			if step.want != "" {
				want = cluster.Peer{Key: k.Registration(step.want), CreateRevision: e.get(t, k.Registration(step.want)).Kvs[0].CreateRevision}
			}
			if seen.Peer != want || seen.AnyRegistered != (seen.Registration != nil || step.want != "") || seen.OldestPeerRevision != 0 {
				t.Errorf("%s: %+v, want peer %+v", step.name, seen, want)
			}
		}
	})
}
