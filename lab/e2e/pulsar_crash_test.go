package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

// A process that has ended is no reason to wait for its session: others serve what it had after
// --restart-grace. Back before that session would have ended, it was not declared dead by anybody.
func TestOthersServeWhatADeadPulsarBrokerHadBeforeItsSessionEnds(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	const session, grace = 20 * time.Second, time.Second
	p, peer := s.pulsarWithSession("p1", session), s.pulsarWithSession("p2", session)
	s.besidePulsar(peer, "--lease-ttl", session.String())
	c := s.besidePulsar(p, "--lease-ttl", session.String(), "--broker-pid-file", s.pidOf(p), "--restart-grace", grace.String())
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	revision := s.caughtUp()
	ended := time.Now()
	s.ok(p.Kill())
	s.awaitChange("the end of the session", revision, harness.DeletedKey(pulsarRegistration(p)))
	if took := time.Since(ended); took > session/2 {
		t.Errorf("its session ended after %v", took)
	}
	s.ok(peer.Publish(s.ctx, topic, []byte("two")))
	s.ok(p.Start(s.ctx))
	s.pidOf(p)
	st, err := c.Await(s.ctx, bound, "ready again", func(st harness.Status) bool { return st.Ready.OK && st.Boot.Kind == "restart" })
	s.ok(err)
	if st.Mode != "active" || st.Reason != "fast_restart" {
		t.Errorf("came back as %s", st)
	}
}
