package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

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
