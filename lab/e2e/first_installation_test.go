package e2e

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// Three servers have run for a while, and were restarted since their streams were made.
func TestInstallingBesideThreeRunningBrokersDrainsNone(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	topics := map[string]string{"n1": "/default/a", "n2": "/default/b", "n3": "/default/c"}
	var couples []*couple
	for id, topic := range topics {
		couples = append(couples, s.runsAlready(id, topic))
		s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), id, topic))
	}
	for _, c := range couples {
		c.run()
		st := c.awaitBooted()
		if st.Boot.Kind != "restart" || st.Mode != "active" || st.Reason != "first_registration" {
			t.Errorf("%s: boot %s (%s), %s (%s); want restart, active, first_registration", c.id, st.Boot.Kind, evidence(st), st.Mode, st.Reason)
		}
		s.ok(c.AwaitReady(s.ctx, bound))
		c.serves(topics[c.id])
	}
	for _, c := range couples {
		c.stayedLive()
	}
}

func TestInstallingBesideABrokerThatServesWhatIsOthersDrainsIt(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.couple("n2")
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n2", "/default/a"))
	c := s.runsAlready("n1", "/default/a")
	c.run()
	st := c.awaitBooted()
	if st.Mode != "drained" || st.Reason != "unknown_data" {
		t.Errorf("%s (%s), want drained, unknown_data", st.Mode, st.Reason)
	}
	if e := c.told(1, "mode", "drained")[0]; e.Reason != "unknown_data" || !strings.Contains(e.Detail, "/default/a") || !strings.Contains(e.Detail, "of n2") {
		t.Errorf("the topic and its broker are not named: %+v", e)
	}
	s.notServed(c, "/default/a")
	c.stayedLive()
}

// streamOf is the stream in which the sidecar of a NATS server has a topic.
func streamOf(topic string) string { return "hf" + strings.ReplaceAll(topic, "/", "+") }

// runsAlready starts a server with a stream that is older than its process. No sidecar runs
// yet.
func (s *stand) runsAlready(id, topic string) *couple {
	s.Helper()
	n, err := s.lab.NewNATS(harness.NATSOptions{Name: id})
	s.ok(err)
	s.ok(n.Start(s.ctx))
	conn, err := n.Connect()
	s.ok(err)
	defer conn.Close()
	js, err := conn.JetStream()
	s.ok(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: streamOf(topic), Subjects: []string{harness.Subject(topic)}})
	s.ok(err)
	s.ok(n.Kill())
	s.ok(n.Start(s.ctx))
	return s.beside(n)
}
