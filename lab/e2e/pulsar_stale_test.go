package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// stale says whether the sidecar calls its broker's view stale.
func (c *pulsarCouple) stale() bool {
	c.s.Helper()
	text, err := c.Metrics(c.s.ctx)
	c.s.ok(err)
	v, ok := seriesValue(text, `holdfast_broker_zombie{kind="stale_view"}`)
	if !ok {
		c.s.Fatal("it is not told whether its view is stale")
	}
	return v == 1
}

// A broker that remembers a former owner sends clients there, be it gone.
func TestAPulsarBrokerWhoseWatchesDiedIsReportedUntilItIsRestarted(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, former := s.pulsar("p1"), s.pulsar("p2")
	c := s.besidePulsar(p, "--registration", "adopt", "--audit-interval", "1s")
	topic := topicsApart(1)[0]
	s.ok(former.Publish(s.ctx, topic, []byte("one")))
	if owner, err := p.Owner(s.ctx, topic); err != nil || owner != former.URL() {
		t.Fatalf("it is %s's, %v", owner, err)
	}
	s.ok(p.Fault(s.ctx, "blind", "on"))
	next := s.pulsar("p3")
	s.ok(former.Stop(s.ctx))
	s.awaitThat("another broker to have it", func() bool {
		owner, err := next.Owner(s.ctx, topic)
		return err == nil && owner == next.URL()
	})
	s.awaitThat("its view to be called stale", c.stale)
	st, err := c.Status(s.ctx)
	s.ok(err)
	if want := "(it names " + former.Advertised() + "): its watches have died: restart the broker."; !strings.HasSuffix(st.Summary, want) {
		t.Errorf("%q, want it to end with %q", st.Summary, want)
	}
	if st.Mode != "active" || st.Attachment != "attached" || !st.Ready.OK {
		t.Errorf("%s; want it left alone", st)
	}
	if owner, err := p.Owner(s.ctx, topic); err != nil || owner != former.URL() {
		t.Errorf("it sends clients to %s, %v; want its former owner, or nothing is shown", owner, err)
	}

	// Nobody owns it any more, and it still names the former owner.
	s.ok(next.Stop(s.ctx))
	s.awaitThat("the lock to be gone", func() bool { return s.key(pulsarLock(topic)) == s.key("/none") })
	time.Sleep(3 * time.Second) // three looks: what is shown is that nothing changes
	if !c.stale() {
		t.Error("it is not called stale any more")
	}

	s.ok(p.Kill())
	s.ok(p.Start(s.ctx))
	s.awaitThat("the sign to go", func() bool { return !c.stale() })
	s.ok(c.AwaitReady(s.ctx, bound))
	s.ok(p.Publish(s.ctx, topic, []byte("two")))
}

// Moves that it sees make no broker stale.
func TestAPulsarBrokerThatSeesEveryMoveIsNotCalledStale(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p, peer := s.pulsar("p1"), s.pulsar("p2")
	a := s.besidePulsar(p, "--registration", "adopt", "--audit-interval", "1s")
	b := s.besidePulsar(peer, "--registration", "adopt", "--audit-interval", "1s")
	topics := topicsApart(4)
	for n := range 24 {
		one, other := a, b
		if n%2 == 1 {
			one, other = b, a
		}
		for _, topic := range topics {
			s.ok(one.broker.Publish(s.ctx, topic, fmt.Append(nil, n)))
		}
		one.verb("drain")
		s.awaitThat("all to be elsewhere", func() bool { return one.owns() == 0 })
		one.verb("activate")
		s.ok(one.AwaitReady(s.ctx, bound))
		for _, c := range []*pulsarCouple{one, other} {
			if c.stale() {
				t.Fatal(c.verb("events"))
			}
		}
	}
	for _, c := range []*pulsarCouple{a, b} {
		if events := fmt.Sprint(c.verb("events")); strings.Contains(events, "stale_view") {
			t.Error(events)
		}
	}
}
