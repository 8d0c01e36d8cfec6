package e2e

import (
	"fmt"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// sameLease checks that the registration and the bundles live as long as each other.
func (s *stand) sameLease(p *harness.Pulsar, topics ...string) (lease int64) {
	s.Helper()
	lease = s.key(pulsarRegistration(p)).Lease
	for _, topic := range topics {
		if l := s.key(pulsarLock(topic)).Lease; l != lease || l == 0 {
			s.Errorf("%s is under lease %x, the registration under %x", pulsarLock(topic), l, lease)
		}
	}
	return lease
}

// A node dies: broker and sidecar at once. What it had goes in one revision, another
// broker takes it, and past its TTL it comes back drained.
func TestAPulsarBrokerThatWasAwayForTooLongComesBackDrained(t *testing.T) {
	takesLong(t)
	t.Parallel()
	for _, registration := range []string{"own", "adopt"} {
		t.Run(registration, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			p, peer := s.pulsar("p1"), s.pulsar("p2")
			s.besidePulsar(peer, "--registration", registration)
			c := s.besidePulsar(p, "--registration", registration, "--session-expired-policy", "drain", "--audit-interval", "500ms")
			probes := s.lab.Record(c.Sidecar)
			apart := topicsApart(3)
			for _, topic := range apart {
				s.ok(p.Publish(s.ctx, topic, []byte("one")))
			}
			lease := s.sameLease(p, apart...)
			if st, err := c.Status(s.ctx); registration == "adopt" && (err != nil || st.Lease.ID != fmt.Sprintf("%x", lease)) {
				t.Errorf("the sidecar renews lease %s, %v; want the broker's, %x", st.Lease.ID, err, lease)
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
			if registration == "own" && s.key(s.keys.Registration(p.Advertised())).Lease != 0 {
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
		})
	}
}

func TestTwoSidecarsBesideOneAdoptedPulsarBrokerDoNotFight(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	first := s.besidePulsar(p, "--registration", "adopt")
	reg, lock := s.key(pulsarRegistration(p)), s.key(pulsarLock(topic))
	second := &pulsarCouple{s: s, broker: p}
	var err error
	second.Sidecar, err = s.lab.StartSidecar(harness.SidecarOptions{
		Name: "second", Endpoints: []string{s.etcd.Endpoint()},
		Flags: append(quickFlags(), "--driver", "pulsar", "--broker-admin", p.URL(), "--pulsar-cluster", harness.PulsarCluster,
			"--pulsar-status-file", p.StatusFile, "--registration", "adopt"),
	})
	s.ok(err)
	_, err = second.Await(s.ctx, bound, "attached or in conflict", func(st harness.Status) bool {
		return st.Attachment == "attached" || st.Lease.LastError != ""
	})
	s.ok(err)
	probes := s.lab.Record(first.Sidecar)
	since, revision := time.Now(), s.caughtUp()
	time.Sleep(2 * standTTL) // what is shown is that nothing happens
	s.caughtUp()
	if now := s.key(pulsarRegistration(p)); now != reg {
		t.Errorf("registration %+v, want it untouched: %+v", now, reg)
	}
	if now := s.key(pulsarLock(topic)); now != lock {
		t.Errorf("bundle %+v, want it untouched: %+v", now, lock)
	}
	for _, key := range []string{s.keys.Member(p.Advertised()), s.keys.State(p.Advertised())} {
		if all := s.changesOf(key, revision); len(all) > 0 {
			t.Errorf("%s is written again and again: %v", key, all)
		}
	}
	if err := probes.AlwaysReady(since.Add(100*time.Millisecond), time.Now()); err != nil {
		t.Error(err)
	}
	a, err := first.Status(s.ctx)
	s.ok(err)
	b, err := second.Status(s.ctx)
	s.ok(err)
	if a.Epoch != b.Epoch || a.Lease.ID != b.Lease.ID || a.Mode != "active" || b.Mode != "active" {
		t.Errorf("they do not see the same:\n%s\n%s", a, b)
	}

	// The word of an operator to one of them counts for both.
	first.verb("drain")
	for _, c := range []*pulsarCouple{first, second} {
		_, err := c.Await(s.ctx, bound, "drained", func(st harness.Status) bool { return st.Mode == "drained" || st.Mode == "draining" })
		s.ok(err)
	}
	s.awaitThat("the bundle to be unloaded", func() bool { return first.owns() == 0 })
	first.verb("activate")
	s.ok(first.AwaitReady(s.ctx, bound))
	s.awaitThat("the status file to stay", first.hasStatusFile)

	// One that goes leaves the other its work.
	s.ok(second.Stop(s.ctx))
	s.ok(p.Fault(s.ctx, "cut-etcd", "on"))
	time.Sleep(standTTL + standTTL/2) // what is shown is that nothing happens
	if now := s.key(pulsarRegistration(p)); now != reg {
		t.Errorf("registration %+v, want it untouched: %+v", now, reg)
	}
}

// A broker that is not well goes on renewing its own session. Nobody takes it over, and nobody
// is sent to it.
func TestAnAdoptedPulsarBrokerThatIsNotWellKeepsItsSessionAndIsNotReady(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	s.besidePulsar(s.pulsar("p2"), "--registration", "adopt")
	c := s.besidePulsar(p, "--registration", "adopt", "--health-timeout", "200ms")
	probes := s.lab.Record(c.Sidecar)
	reg := s.key(pulsarRegistration(p))
	s.ok(p.Fault(s.ctx, "not-ready", "on"))
	s.ok(c.AwaitNotReady(s.ctx, bound))
	since := time.Now()
	time.Sleep(2 * standTTL) // past the sidecar's own deadline
	if err := probes.NeverReady(since.Add(100*time.Millisecond), time.Now()); err != nil {
		t.Error(err)
	}
	if now := s.key(pulsarRegistration(p)); now != reg {
		t.Errorf("registration %+v, want it untouched: %+v", now, reg)
	}
	s.ok(p.Fault(s.ctx, "not-ready", "off"))
	st, err := c.Await(s.ctx, bound, "attached", func(st harness.Status) bool { return st.Attachment == "attached" })
	s.ok(err)
	if st.Mode != "active" || st.Epoch != reg.Create {
		t.Errorf("nobody was declared dead, and the broker came back as %s", st)
	}
	s.ok(c.AwaitReady(s.ctx, bound))
}

// A broker that is frozen does not renew, and the sidecar does not renew for it.
func TestAnAdoptedPulsarBrokerThatIsFrozenLosesItsBundlesAndComesBackDrained(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	s.besidePulsar(peer, "--registration", "adopt")
	c := s.besidePulsar(p, append(asked("ready,quiesce"), "--registration", "adopt", "--health-timeout", "200ms")...)
	probes := s.lab.Record(c.Sidecar)
	topic := topicsApart(1)[0]
	s.ok(p.Publish(s.ctx, topic, []byte("one")))
	revision := s.caughtUp()
	s.ok(p.Freeze())
	s.awaitChange("the end of the session", revision, harness.DeletedKey(pulsarRegistration(p)))
	since := time.Now()
	s.ok(peer.Publish(s.ctx, topic, []byte("two")))
	s.ok(p.Thaw())
	st, err := c.Await(s.ctx, bound, "drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	s.ok(err)
	if st.Reason != "registration_expired" {
		t.Errorf("came back as %s", st)
	}
	if err := probes.NeverReady(since.Add(100*time.Millisecond), time.Now()); err != nil {
		t.Error(err)
	}
	if err := p.PublishHere(s.ctx, topic, []byte("too late")); err == nil {
		t.Error("it serves what the peer has taken")
	}
}
