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

	// It gave its session up. The next one is followed, and nobody was declared dead.
	s.ok(p.Fault(s.ctx, "cut-etcd", "off"))
	s.awaitThat("the broker's next session", func() bool { l := s.key(pulsarRegistration(p)).Lease; return l != 0 && l != reg.Lease })
	reg = s.key(pulsarRegistration(p))
	st, err = c.Await(s.ctx, bound, "the session to be joined", func(st harness.Status) bool {
		return st.Lease.ID == fmt.Sprintf("%x", reg.Lease) && st.Attachment == "attached"
	})
	s.ok(err)
	if st.Mode != "active" || st.Reason == "registration_expired" || st.Epoch != reg.Create {
		t.Errorf("%s, want it active at epoch %d", st, reg.Create)
	}

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

// A connected broker whose session has ended makes no other one. It goes on when the session does.
func TestALostSessionOfAPulsarBrokerGoesOn(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	s.pulsar("p2") // could take what is free
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	reg, lock := s.key(pulsarRegistration(p)), s.key(pulsarLock(topic))
	c := s.besidePulsar(p, "--registration", "adopt")
	s.awaitThat("the bundle to be known", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Topics.Served == 1
	})
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(reg.Lease))
	s.ok(err)
	s.awaitThat("registration and bundle to be written again", func() bool {
		r, l := s.key(pulsarRegistration(p)), s.key(pulsarLock(topic))
		return r.Create > reg.Create && r.Lease == reg.Lease && l.Create > lock.Create && l.Lease == reg.Lease && sameJSON(l.Value, lock.Value)
	})
	again := s.key(pulsarLock(topic))
	// Nobody but the broker renews it now.
	s.ok(c.Kill())
	time.Sleep(standTTL + standTTL/2) // what is shown is that it does
	if now := s.key(pulsarLock(topic)); now != again {
		t.Errorf("the bundle is %+v, want %+v", now, again)
	}
	s.ok(p.PublishHere(s.ctx, topic, []byte("two")))
}

// A bundle that another broker has taken meanwhile cannot be given up any more by the one that had
// it, whoever tells it to.
func TestAPulsarBrokerWhoseBundleAnotherHasTakenIsNotRegisteredAgain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	apart := topicsApart(2)
	for _, topic := range apart {
		s.ok(p.Publish(s.ctx, topic, []byte("one")))
	}
	reg := s.key(pulsarRegistration(p))
	c := s.besidePulsar(p, "--registration", "adopt")
	s.ok(p.Fault(s.ctx, "cut-etcd", "on")) // it would look at its keys at once
	s.ok(c.Freeze())
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(reg.Lease))
	s.ok(err)
	if owner, err := peer.Owner(s.ctx, apart[0]); err != nil || owner != peer.URL() {
		t.Fatalf("the peer owns %q, %v", owner, err)
	}
	taken := s.key(pulsarLock(apart[0]))
	s.ok(c.Thaw())
	s.ok(c.AwaitNotReady(s.ctx, bound))
	st, err := c.Await(s.ctx, bound, "a word about it", func(st harness.Status) bool { return strings.Contains(st.Lease.LastError, "until it is restarted") })
	s.ok(err)
	if !strings.Contains(st.Lease.LastError, peer.Advertised()) {
		t.Errorf("it says %q, want whose bundle it is", st.Lease.LastError)
	}
	if now := s.key(pulsarRegistration(p)); now.Lease != 0 {
		t.Errorf("registered all the same: %+v", now)
	}
	if now := s.key(pulsarLock(apart[0])); now != taken {
		t.Errorf("the peer's lock is %+v, want it untouched: %+v", now, taken)
	}
	s.ok(p.PublishHere(s.ctx, apart[1], []byte("two"))) // who is connected to it is served as without us

	s.ok(p.Kill())
	s.ok(p.Start(s.ctx))
	s.ok(c.AwaitReady(s.ctx, bound))
	if owner, err := p.Owner(s.ctx, apart[0]); err != nil || owner != peer.URL() {
		t.Errorf("%s is served by %q, %v; want the peer", apart[0], owner, err)
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
	s.awaitThat("the registration to be written again", func() bool { return s.key(pulsarRegistration(p)).Create > before.Create })
	s.awaitThat("the sidecar to know it", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Epoch == s.key(pulsarRegistration(p)).Create
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
