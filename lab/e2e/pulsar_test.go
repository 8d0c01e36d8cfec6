package e2e

import (
	"context"
	"fmt"
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

func (s *stand) awaitThat(what string, ok func() bool) {
	s.Helper()
	s.ok(harness.Await(s.ctx, bound, what, func(context.Context) (bool, string) { return ok(), "not yet" }))
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
