package conformance

import (
	"context"
	"strings"
	"testing"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/pulsar"
	"holdfast/lab/harness"
)

// pulsarServer is one stand-in broker, and a neighbour when one is asked for.
type pulsarServer struct {
	t    *testing.T
	lab  *harness.Lab
	etcd *harness.Etcd
	*harness.Pulsar
	neighbour *harness.Pulsar
}

func launchPulsar(t *testing.T) *pulsarServer {
	t.Helper()
	l := harness.ForTest(t)
	etcd, err := l.StartEtcd(bound(t), harness.EtcdOptions{})
	do(t, err)
	s := &pulsarServer{t: t, lab: l, etcd: etcd}
	s.Pulsar = s.another(t, "broker-1")
	return s
}

func (s *pulsarServer) another(t *testing.T, name string) *harness.Pulsar {
	t.Helper()
	p, err := s.lab.NewPulsar(harness.PulsarOptions{Name: name, Etcd: s.etcd.Endpoint()})
	do(t, err)
	do(t, p.Start(bound(t)))
	return p
}

func (s *pulsarServer) config() pulsar.Config {
	return pulsar.Config{AdminURL: s.URL(), Cluster: harness.PulsarCluster, StatusFile: s.StatusFile}
}

func (s *pulsarServer) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	b, err := pulsar.New(s.config())
	do(t, err)
	return b
}

func (s *pulsarServer) Kill(t *testing.T)   { t.Helper(); do(t, s.Pulsar.Kill()) }
func (s *pulsarServer) Start(t *testing.T)  { t.Helper(); do(t, s.Pulsar.Start(bound(t))) }
func (s *pulsarServer) Freeze(t *testing.T) { t.Helper(); do(t, s.Pulsar.Freeze()) }
func (s *pulsarServer) Thaw(t *testing.T)   { t.Helper(); do(t, s.Pulsar.Thaw()) }

func (s *pulsarServer) Publish(topic string, data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	return s.Pulsar.Publish(ctx, topic, data)
}

// Litter looks a topic up whose name has a slash: Pulsar makes a namespace of the first form
// of it, and a bundle.
func (s *pulsarServer) Litter(t *testing.T) {
	t.Helper()
	_, err := s.Owner(bound(t), "/public~default/we/ird")
	do(t, err)
}

func (s *pulsarServer) AddForeign(t *testing.T) func() error {
	t.Fatal("a Pulsar broker's topics are all its cluster's")
	return nil
}

// Unit implements brokertest.Unit.
func (s *pulsarServer) Unit(topic string) string {
	_, namespace := harness.PulsarTopic(topic)
	return "/" + strings.ReplaceAll(namespace, "/", "~") + "/" + harness.PulsarBundle(topic)
}

// Place implements brokertest.Placer: a client looks the topic up.
func (s *pulsarServer) Place(t *testing.T, topic string) {
	t.Helper()
	if _, err := s.Owner(bound(t), topic); err != nil {
		t.Errorf("look up %s: %v", topic, err)
	}
}

// GiveAway implements brokertest.Neighbour.
func (s *pulsarServer) GiveAway(t *testing.T, topic string) {
	t.Helper()
	if s.neighbour == nil {
		s.neighbour = s.another(t, "broker-2")
	}
	owner, err := s.neighbour.Owner(bound(t), topic)
	if err != nil || owner != s.neighbour.URL() {
		t.Fatalf("give %s to the neighbour: it is %q's, %v", topic, owner, err)
	}
}

// Receiver implements brokertest.Receiver.
func (s *pulsarServer) Receiver() brokerapi.Peer {
	return brokerapi.Peer{ID: s.neighbour.Advertised()}
}

func TestPulsarConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Traits:    pulsar.Traits,
		Launch:    func(t *testing.T) brokertest.Server { return launchPulsar(t) },
		Odd:       harness.PulsarOdd,
		Retriable: func(error) bool { return true },
	})
}
