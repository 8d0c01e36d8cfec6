package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	return s.file(p.Name+".pid", strconv.Itoa(p.PID()))
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

// asked are the flags of who wants a broker fenced and drained though its storage fences it.
func asked(fence string) []string {
	return []string{"--fence", fence, "--session-expired-policy", "drain"}
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

func TestAPulsarBrokerServesNothingPastItsDeadline(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	s.besidePulsar(peer) // so that the cluster lives on
	c, link := s.cutPulsar(p, append(asked("ready,quiesce"), "--audit-interval", "500ms")...)
	apart := topicsApart(3)
	for _, topic := range apart {
		s.ok(p.Publish(s.ctx, topic, []byte("one")))
	}
	s.awaitThat("the bundles to be known", func() bool {
		st, err := c.Status(s.ctx)
		return err == nil && st.Topics.Served == 3
	})
	revision := s.caughtUp()
	s.ok(link.Cut())
	s.ok(c.AwaitNotReady(s.ctx, standTTL+bound))
	s.awaitThat("the bundles to be unloaded", func() bool { return c.owns() == 0 })
	unloaded := time.Now()
	gone := s.awaitChange("the expiry of the registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	inOrder(t, "served until", unloaded, "the registration was gone", gone.At)
	for _, topic := range apart {
		if owner, err := peer.Owner(s.ctx, topic); err != nil || owner != peer.URL() {
			t.Errorf("%s is served by %q, %v; want the peer", topic, owner, err)
		}
	}
	if !p.Running() {
		t.Error("the broker was stopped, with no fence step that says so")
	}
	// Who asks right here brings a bundle back, past the deadline too.
	s.ok(p.Publish(s.ctx, topicsApart(4)[3], []byte("one")))
	s.awaitThat("the bundle that came back to be unloaded", func() bool { return c.owns() == 0 })

	// Back at etcd it is drained, and says so on its status page too.
	s.ok(link.Heal())
	st, err := c.Await(s.ctx, bound, "drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	s.ok(err)
	if st.Reason != "registration_expired" || c.Ready(s.ctx) {
		t.Errorf("after the outage: %s", st)
	}
	s.awaitThat("the status file to be away", func() bool { return !c.hasStatusFile() })
	c.verb("activate")
	s.ok(c.AwaitReady(s.ctx, bound))
	s.awaitThat("the status file to be back", c.hasStatusFile)
}

func TestAPulsarBrokerThatCannotBeUnloadedIsStoppedWhereTheFenceSaysSo(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	c, link := s.cutPulsar(p, "--fence", "ready,quiesce,stop", "--broker-pid-file", s.pidOf(p))
	s.ok(p.Publish(s.ctx, "/default/orders", []byte("one")))
	// Its bundle cannot be released, so quiescing proves nothing.
	s.ok(p.Fault(s.ctx, "cut-etcd", "on"))
	ended := make(chan time.Time, 1)
	exited := p.Exited()
	go func() { <-exited; ended <- time.Now() }()
	revision := s.caughtUp()
	s.ok(link.Cut())
	gone := s.awaitChange("the expiry of the registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	select {
	case at := <-ended:
		inOrder(t, "the broker ended", at, "its registration was gone", gone.At)
	case <-time.After(bound):
		t.Fatal("the broker runs on")
	}
	c.event("fence", "stopped")
	if !c.Running() || c.Ready(s.ctx) {
		t.Error("the sidecar of a broker that was fenced has ended, or is ready")
	}
}

func TestThePolicyShutdownEndsAPulsarBrokerAndItsSidecar(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	s.besidePulsar(s.pulsar("p2")) // so that not all are lost at once
	c := s.besidePulsar(p, "--session-expired-policy", "shutdown", "--broker-pid-file", s.pidOf(p))
	s.ok(p.Publish(s.ctx, "/default/orders", []byte("one")))
	key := s.keys.Registration(p.Advertised())
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(s.key(key).Lease))
	s.ok(err)
	for _, process := range []*harness.Process{p.Process, c.Process} {
		select {
		case <-process.Exited():
		case <-time.After(bound):
			t.Fatalf("%s runs on", process.Name)
		}
	}
	if code, err := c.ExitCode(); err != nil || code == 0 {
		t.Errorf("the sidecar ended with exit code %d, %v; want a failure", code, err)
	}
	last := c.LogTail(1)
	if !strings.HasPrefix(last, "holdfast: ") || !strings.Contains(last, "shutdown") {
		t.Errorf("its last word is %q", last)
	}
	if kv := s.key(key); kv.Lease != 0 {
		t.Errorf("registered again: %+v", kv)
	}
}

// It is not well, so its registration is left to run out; what it has goes first.
func TestAPulsarBrokerThatIsNotWellGivesUpItsBundlesBeforeItsRegistrationEnds(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	s.besidePulsar(peer)
	c := s.besidePulsar(p, append(asked("ready,quiesce"), "--health-timeout", "200ms")...)
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	revision := s.caughtUp()
	s.ok(p.Fault(s.ctx, "not-ready", "on"))
	s.ok(c.AwaitNotReady(s.ctx, bound))
	s.awaitThat("the bundles to be unloaded", func() bool { return c.owns() == 0 })
	unloaded := time.Now()
	gone := s.awaitChange("the expiry of the registration", revision, harness.DeletedKey(s.keys.Registration(p.Advertised())))
	inOrder(t, "served until", unloaded, "the registration was gone", gone.At)
	s.ok(peer.Publish(s.ctx, topic, []byte("two")))
	s.ok(p.Fault(s.ctx, "not-ready", "off"))
	st, err := c.Await(s.ctx, bound, "drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	s.ok(err)
	if st.Reason != "registration_expired" || c.Ready(s.ctx) {
		t.Errorf("came back as %s", st)
	}
	if owner, err := p.Owner(s.ctx, topic); err != nil || owner != peer.URL() {
		t.Errorf("%s is served by %q, %v; want the peer", topic, owner, err)
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
	pid := s.pidOf(p)
	flags := []string{"--lease-ttl", session.String(), "--health-timeout", "200ms"}
	s.besidePulsar(peer, flags...)
	c := s.besidePulsar(p, append(flags, "--broker-pid-file", pid)...)
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
	s.renew(pid, strconv.Itoa(p.PID()))
	st, err := c.Await(s.ctx, bound, "ready again", func(st harness.Status) bool { return st.Ready.OK && st.Boot.Kind == "restart" })
	s.ok(err)
	if st.Mode != "active" {
		t.Errorf("came back as %s", st)
	}
}
