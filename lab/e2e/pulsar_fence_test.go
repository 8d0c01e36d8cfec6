package e2e

import (
	"strconv"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// cutPulsar is a couple whose sidecar alone can be cut off from etcd.
func (s *stand) cutPulsar(p *harness.Pulsar, flags ...string) (*pulsarCouple, harness.Link) {
	s.Helper()
	link, err := harness.NewProxyLink(s.lab, s.etcd)
	s.ok(err)
	c := s.nextToPulsar(p, link.Endpoint(), flags...)
	s.ok(c.Start())
	s.ok(c.AwaitReady(s.ctx, bound))
	return c, link
}

// pidOf is the file that leads to the broker's process.
func (s *stand) pidOf(p *harness.Pulsar) string {
	s.Helper()
	return s.write(p.Name+".pid", strconv.Itoa(p.PID()))
}

// event waits for the first event of that kind.
func (c *pulsarCouple) event(kind, to string) (found harness.Event) {
	c.s.Helper()
	c.s.awaitThat("the event "+kind+" "+to, func() bool {
		events, err := c.Events(c.s.ctx)
		for _, e := range events {
			if e.Kind == kind && e.To == to {
				found = e
				return err == nil
			}
		}
		return false
	})
	return found
}

// An outage of its registration costs its readiness and nothing else.
func TestAPulsarBrokerGoesOnServingPastItsDeadline(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	s.besidePulsar(peer) // so that the cluster lives on
	c, link := s.cutPulsar(p)
	apart := topicsApart(3)
	for _, topic := range apart {
		s.ok(p.Publish(s.ctx, topic, []byte("one")))
	}
	revision := s.caughtUp()
	s.ok(link.Cut())
	s.ok(c.AwaitNotReady(s.ctx, standTTL+bound))
	s.awaitChange("the expiry of the registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	time.Sleep(standTTL) // what is shown is that nothing happens
	if !p.Running() || c.owns() != 3 || !c.hasStatusFile() {
		t.Errorf("running %t with %d bundles, status file %t; want it left alone", p.Running(), c.owns(), c.hasStatusFile())
	}
	for _, topic := range apart {
		s.ok(p.PublishHere(s.ctx, topic, []byte("two")))
	}
	s.ok(link.Heal())
	s.ok(c.AwaitReady(s.ctx, standTTL+bound))
	if st, err := c.Status(s.ctx); err != nil || st.Mode != "active" || c.owns() != 3 {
		t.Errorf("after the outage: %s, %v, %d bundles", st, err, c.owns())
	}

	// Killed, and back after its TTL, it is reported and active.
	revision = s.caughtUp()
	s.ok(p.Kill())
	s.awaitChange("the expiry of the registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	s.ok(p.Start(s.ctx))
	st, err := c.Await(s.ctx, bound, "ready again", func(st harness.Status) bool { return st.Ready.OK })
	s.ok(err)
	if st.Mode != "active" || st.Reason != "stale_restart" || st.Boot.Kind != "restart" {
		t.Errorf("came back as %s", st)
	}
}

// Thawed later, it would serve without a registration. That its lease ends stops nobody; that it
// hangs while another broker is well does, whatever --fence says, and then others need not wait.
func TestAFrozenPulsarBrokerIsStoppedBesideOneThatIsWell(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	const session = 20 * time.Second
	p, peer := s.pulsarWithSession("p1", session), s.pulsarWithSession("p2", session)
	flags := []string{"--lease-ttl", session.String(), "--health-timeout", "200ms"}
	s.besidePulsar(peer, flags...)
	c := s.besidePulsar(p, append(flags, "--broker-pid-file", s.pidOf(p))...)
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	revision, exited := s.caughtUp(), p.Exited()
	s.ok(p.Freeze())
	select {
	case <-exited:
	case <-time.After(session + bound):
		t.Fatal("it hangs on")
	}
	if e := c.event("fence", "stopped"); e.Reason != "ill" {
		t.Errorf("the fence says %+v", e)
	}
	s.awaitChange("the end of the session", revision, harness.DeletedKey(pulsarRegistration(p)))
	s.ok(peer.Publish(s.ctx, topic, []byte("two")))
	s.ok(p.Start(s.ctx))
	s.pidOf(p)
	st, err := c.Await(s.ctx, bound, "ready again", func(st harness.Status) bool { return st.Ready.OK && st.Boot.Kind == "restart" })
	s.ok(err)
	if st.Mode != "active" {
		t.Errorf("came back as %s", st)
	}
}
