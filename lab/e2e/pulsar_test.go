package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// pulsarCouple is one stand-in of a Pulsar broker and its sidecar.
type pulsarCouple struct {
	*harness.Sidecar
	s      *stand
	broker *harness.Pulsar
}

// takesLong leaves a test out of a short run.
func takesLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes several seconds")
	}
}

func (s *stand) pulsar(name string) *harness.Pulsar {
	s.Helper()
	return s.pulsarWithSession(name, standTTL)
}

func (s *stand) pulsarWithSession(name string, timeout time.Duration) *harness.Pulsar {
	s.Helper()
	p, err := s.lab.NewPulsar(harness.PulsarOptions{Name: name, Etcd: s.etcd.Endpoint(), SessionTimeout: timeout})
	s.ok(err)
	s.ok(p.Start(s.ctx))
	return p
}

// besidePulsar starts a sidecar and waits until it is ready.
func (s *stand) besidePulsar(p *harness.Pulsar, flags ...string) *pulsarCouple {
	s.Helper()
	c := s.nextToPulsar(p, s.etcd.Endpoint(), flags...)
	s.ok(c.Start())
	s.ok(c.AwaitReady(s.ctx, bound))
	return c
}

// nextToPulsar prepares a sidecar without starting it.
func (s *stand) nextToPulsar(p *harness.Pulsar, endpoint string, flags ...string) *pulsarCouple {
	s.Helper()
	c := &pulsarCouple{s: s, broker: p}
	var err error
	c.Sidecar, err = s.lab.NewSidecar(harness.SidecarOptions{
		Name: p.Name + "-sidecar", Endpoints: []string{endpoint},
		Flags: append(append(quickFlags(), "--driver", "pulsar", "--broker-admin", p.URL(), "--pulsar-cluster", harness.PulsarCluster,
			"--pulsar-status-file", p.StatusFile), flags...),
	})
	s.ok(err)
	return c
}

func pulsarRegistration(p *harness.Pulsar) string { return "/loadbalance/brokers/" + p.Advertised() }

// pulsarLock is the key of the bundle that the topic is in.
func pulsarLock(topic string) string {
	_, namespace := harness.PulsarTopic(topic)
	return "/namespace/" + namespace + "/" + harness.PulsarBundle(topic)
}

// key is a key as it stands; its lease is 0 if it is not there.
func (s *stand) key(key string) (kv struct {
	Value                    string
	Lease, Create, Mod, Vers int64
}) {
	s.Helper()
	answer, err := s.etcd.Client().Get(s.ctx, key)
	s.ok(err)
	for _, found := range answer.Kvs {
		kv.Value, kv.Lease = string(found.Value), found.Lease
		kv.Create, kv.Mod, kv.Vers = found.CreateRevision, found.ModRevision, found.Version
	}
	return kv
}

func (s *stand) awaitThat(what string, ok func() bool) {
	s.Helper()
	s.ok(harness.Await(s.ctx, bound, what, func(context.Context) (bool, string) { return ok(), "not yet" }))
}

func TestAPulsarBrokerIsKeptRegisteredUnderAKeyOfOurOwn(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.besidePulsar(s.pulsar("p1"), "--audit-interval", "500ms")
	s.ok(c.broker.Publish(s.ctx, "/default/orders", []byte("one")))
	reg := s.key(s.keys.Registration(c.broker.Advertised()))
	if reg.Lease == 0 || !strings.Contains(reg.Value, "incarnation") {
		t.Errorf("registration %+v, want our own", reg)
	}
	s.awaitThat("the bundle to be listed", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Topics.Served == 1 && st.Topics.Orphan == 0
	})
}

// topics in different bundles of one namespace.
func topicsApart(n int) (topics []string) {
	taken := map[string]bool{}
	for i := 0; len(topics) < n; i++ {
		topic := fmt.Sprintf("/default/topic-%d", i)
		if b := harness.PulsarBundle(topic); !taken[b] {
			taken[b] = true
			topics = append(topics, topic)
		}
	}
	return topics
}

func TestAPulsarBrokersSessionIsKeptAliveAndNothingOfItIsWritten(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	reg, lock := s.key(pulsarRegistration(p)), s.key(pulsarLock(topic))
	c := s.besidePulsar(p, "--registration", "adopt")
	st, err := c.Status(s.ctx)
	s.ok(err)
	if !st.Registration.Adopted || st.Epoch != reg.Create {
		t.Errorf("registration %+v at epoch %d, want the broker's of %d, adopted", st.Registration, st.Epoch, reg.Create)
	}

	var fleet []struct {
		ID     string `json:"broker_id"`
		Topics int
	}
	res := s.command("fleet", "-o", "json", "--driver", "pulsar", "--registration", "adopt", "--etcd-endpoints", s.etcd.Endpoint())
	if err := json.Unmarshal([]byte(res.Stdout), &fleet); err != nil || len(fleet) != 1 || fleet[0].ID != p.Advertised() || fleet[0].Topics != 1 {
		t.Errorf("the fleet is %s%s, %v; want one broker with one bundle", res.Stdout, res.Stderr, err)
	}

	// The broker's own way to etcd is cut for longer than its session lasts.
	s.ok(p.Fault(s.ctx, "cut-etcd", "on"))
	time.Sleep(standTTL + standTTL/2) // what is shown is that nothing happens
	if now := s.key(pulsarRegistration(p)); now != reg {
		t.Errorf("registration %+v, want it untouched: %+v", now, reg)
	}
	if now := s.key(pulsarLock(topic)); now != lock {
		t.Errorf("bundle %+v, want it untouched: %+v", now, lock)
	}
	s.ok(p.PublishHere(s.ctx, topic, []byte("two")))
	s.ok(p.Fault(s.ctx, "cut-etcd", "off"))

	// Without its sidecar the broker goes on under its own registration.
	s.ok(c.Stop(s.ctx))
	if now := s.key(pulsarRegistration(p)); now != reg {
		t.Errorf("after the sidecar's end: registration %+v, want it untouched: %+v", now, reg)
	}
	s.ok(p.PublishHere(s.ctx, topic, []byte("three")))
}

func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// TestBundlesAfterALostSession is PIP-57's list of what may have become of a bundle.
func TestBundlesAfterALostSession(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	// Long, since what is shown needs the sidecar to be frozen, thawed and registered again
	// well before its fence point, and before it has waited for that in vain: from then on it
	// gives all bundles away, as it should.
	const session, window = 30 * time.Second, 5 * time.Second
	p, peer := s.pulsarWithSession("p1", session), s.pulsarWithSession("p2", session)
	apart := topicsApart(3)
	free, old, taken := apart[0], apart[1], apart[2]
	for _, topic := range apart {
		s.ok(p.Publish(s.ctx, topic, []byte("one")))
	}
	before := s.key(pulsarRegistration(p))
	value := s.key(pulsarLock(free)).Value
	c := s.besidePulsar(p, "--registration", "adopt", "--session-expired-policy", "reconnect", "--audit-interval", "1s",
		"--lease-ttl", session.String(), "--detachment-recover-window", window.String())
	s.awaitThat("the bundles to be known", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Topics.Served == 3
	})

	s.ok(p.Fault(s.ctx, "cut-etcd", "on")) // so that only the sidecar can do anything
	s.ok(c.Freeze())
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(before.Lease))
	s.ok(err)
	if owner, err := peer.Owner(s.ctx, taken); err != nil || owner != peer.URL() {
		t.Fatalf("the peer owns %q, %v", owner, err)
	}
	stale, err := s.etcd.Client().Grant(s.ctx, 600)
	s.ok(err)
	_, err = s.etcd.Client().Put(s.ctx, pulsarLock(old), value, clientv3.WithLease(stale.ID))
	s.ok(err)
	left := s.key(pulsarLock(old))
	s.ok(c.Thaw())

	s.awaitThat("the registration to be written again", func() bool { return s.key(pulsarRegistration(p)).Lease != 0 })
	lease := s.key(pulsarRegistration(p)).Lease
	if lease == before.Lease {
		t.Error("registered under the lease that was revoked")
	}
	defer func() {
		if t.Failed() {
			st, _ := c.Status(context.Background())
			for _, k := range []string{pulsarRegistration(p), pulsarLock(free), pulsarLock(old), pulsarLock(taken)} {
				answer, _ := s.etcd.Client().Get(context.Background(), k)
				t.Logf("%s: %v", k, answer.Kvs)
			}
			t.Logf("topics %+v, lease %s", st.Topics, st.Lease.ID)
		}
	}()
	s.awaitThat("the free bundle to be taken back", func() bool { k := s.key(pulsarLock(free)); return k.Lease == lease && sameJSON(k.Value, value) })
	s.awaitThat("the bundle of the old session to be rebound", func() bool { return s.key(pulsarLock(old)).Lease == lease })
	if now := s.key(pulsarLock(old)); now.Create != left.Create || now.Vers != left.Vers+1 || now.Value != value {
		t.Errorf("rebound to %+v, want the key of %+v without a gap", now, left)
	}
	s.awaitThat("the peer's bundle to be unloaded", func() bool { return p.PublishHere(s.ctx, taken, []byte("too late")) != nil })
	if k := s.key(pulsarLock(taken)); !strings.Contains(k.Value, peer.Advertised()) {
		t.Errorf("the peer's bundle is %+v", k)
	}
	for _, topic := range []string{free, old} {
		s.ok(p.PublishHere(s.ctx, topic, []byte("two")))
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	if t.Failed() {
		return
	}

	// The broker comes back to etcd with a session of its own, and all is under that.
	s.ok(p.Fault(s.ctx, "cut-etcd", "off"))
	s.awaitThat("all keys to be under the broker's next session", func() bool {
		now := s.key(pulsarRegistration(p)).Lease
		return now != 0 && now != lease && s.key(pulsarLock(free)).Lease == now && s.key(pulsarLock(old)).Lease == now
	})
	s.ok(c.AwaitReady(s.ctx, bound))
	s.awaitThat("the session to be joined", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Lease.ID == fmt.Sprintf("%x", s.key(pulsarRegistration(p)).Lease)
	})
	for _, topic := range []string{free, old} {
		s.ok(p.PublishHere(s.ctx, topic, []byte("three")))
	}
}

// A broker takes back what was written for it by a deletion and a put of its own, which
// fails if anybody writes between them; it then ends.
func TestAPulsarBrokerThatTakesItsRegistrationBackIsNotForestalled(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	s.pulsar("p2") // a peer that lives on
	before := s.key(pulsarRegistration(p))
	c := s.besidePulsar(p, "--registration", "adopt", "--session-expired-policy", "reconnect")
	s.ok(c.AwaitReady(s.ctx, bound))
	s.ok(p.Fault(s.ctx, "cut-etcd", "on")) // the test takes it back, slowly
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(before.Lease))
	s.ok(err)
	s.awaitThat("the registration to be written again", func() bool { l := s.key(pulsarRegistration(p)).Lease; return l != 0 && l != before.Lease })
	s.awaitThat("the sidecar to know it", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Lease.ID == fmt.Sprintf("%x", s.key(pulsarRegistration(p)).Lease)
	})
	own, err := s.etcd.Client().Grant(s.ctx, 30)
	s.ok(err)
	key := pulsarRegistration(p)
	_, err = s.etcd.Client().Delete(s.ctx, key)
	s.ok(err)
	<-time.After(300 * time.Millisecond) // how slow the broker is
	put, err := s.etcd.Client().Txn(s.ctx).If(clientv3.Compare(clientv3.Version(key), "=", 0)).
		Then(clientv3.OpPut(key, before.Value, clientv3.WithLease(own.ID))).Commit()
	s.ok(err)
	if !put.Succeeded {
		t.Fatal("somebody wrote the broker's registration before it could")
	}
	s.awaitThat("the broker's session to be joined", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Lease.ID == fmt.Sprintf("%x", own.ID) && st.Mode == "active"
	})
}
