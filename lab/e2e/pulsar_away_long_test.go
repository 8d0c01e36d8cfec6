package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

// A node dies: broker and sidecar at once. What it had goes in one revision, another
// broker takes it, and past its TTL it comes back drained.
func TestAPulsarBrokerThatWasAwayForTooLongComesBackDrained(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	s.besidePulsar(peer)
	c := s.besidePulsar(p, "--session-expired-policy", "drain", "--audit-interval", "500ms")
	probes := s.lab.Record(c.Sidecar)
	apart := topicsApart(3)
	for _, topic := range apart {
		s.ok(p.Publish(s.ctx, topic, []byte("one")))
	}
	revision := s.caughtUp()
	s.ok(c.Kill())
	s.ok(p.Kill())
	gone := s.awaitChange("the end of the session", revision, harness.DeletedKey(pulsarRegistration(p)))
	s.caughtUp()
	for _, topic := range apart {
		if all := s.changesOf(pulsarLock(topic), revision); len(all) != 1 || all[0].Revision != gone.Revision {
			t.Errorf("%s: %v; want one change, in revision %d with the registration", pulsarLock(topic), all, gone.Revision)
		}
		s.ok(peer.Publish(s.ctx, topic, []byte("two")))
	}
	if s.key(s.keys.Registration(p.Advertised())).Lease != 0 {
		s.awaitChange("the end of our own registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	}

	// The broker registers itself, ready to serve, before anybody can ask its sidecar.
	since := time.Now()
	s.ok(c.Start())
	s.ok(p.Start(s.ctx))
	st, err := c.Await(s.ctx, bound, "drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	s.ok(err)
	if st.Reason != "stale_restart" || st.Boot.Kind != "restart" {
		t.Errorf("came back as %s", st)
	}
	s.awaitThat("the status file to be away", func() bool { return !c.hasStatusFile() })
	// Whoever asks it for what nobody serves gets it, and it is given up again.
	s.ok(p.Publish(s.ctx, topicsApart(4)[3], []byte("one")))
	s.awaitThat("its bundle to be unloaded", func() bool { return c.owns() == 0 })
	if err := probes.NeverReady(since.Add(100*time.Millisecond), time.Now()); err != nil {
		t.Error(err)
	}
	for _, topic := range apart {
		if owner, err := p.Owner(s.ctx, topic); err != nil || owner != peer.URL() {
			t.Errorf("%s is served by %q, %v; want the peer", topic, owner, err)
		}
	}
	c.verb("activate")
	s.ok(c.AwaitReady(s.ctx, bound))
}
