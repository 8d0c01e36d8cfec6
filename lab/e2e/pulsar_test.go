package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
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

// owns is how many bundles the broker owns that could be elsewhere.
func (c *pulsarCouple) owns() int {
	c.s.Helper()
	shared, own, err := c.broker.Owned(c.s.ctx)
	c.s.ok(err)
	if len(own) != 2 {
		c.s.Errorf("%s owns %q for its life, want its two heartbeat namespaces", c.broker.Name, own)
	}
	return len(shared)
}

func (c *pulsarCouple) hasStatusFile() bool {
	_, err := os.Stat(c.broker.StatusFile)
	return err == nil
}

// verb runs a verb that must work.
func (c *pulsarCouple) verb(name string, args ...string) harness.Result {
	c.s.Helper()
	res, err := c.Verb(c.s.ctx, name, args...)
	c.s.ok(err)
	if res.Exit != 0 {
		c.s.Fatalf("%s: exit code %d: %s", name, res.Exit, res.Stderr)
	}
	return res
}

func TestADrainedPulsarBrokerGivesItsBundlesToAnother(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	c := s.besidePulsar(s.pulsar("p1"), "--audit-interval", "500ms")
	peer := s.besidePulsar(s.pulsar("p2"))
	apart := topicsApart(harness.PulsarBundles)
	before, later := apart[:3], apart[3]
	var want []string
	for _, topic := range before {
		s.ok(c.broker.Publish(s.ctx, topic, []byte("one")))
		want = append(want, "/public~default/"+harness.PulsarBundle(topic))
	}
	slices.Sort(want)
	s.awaitThat("the owned bundles to be listed", func() bool {
		var listed []struct{ Topic, State string }
		if err := json.Unmarshal([]byte(c.verb("topics", "-o", "json").Stdout), &listed); err != nil {
			t.Fatal(err)
		}
		var served []string
		for _, l := range listed {
			if l.State == "served" {
				served = append(served, l.Topic)
			}
		}
		slices.Sort(served)
		return slices.Equal(served, want)
	})

	c.verb("drain", "--reason", "e2e")
	s.awaitThat("all bundles to be gone", func() bool { return c.owns() == 0 })
	if code, err := c.broker.StatusPage(s.ctx); err != nil || code != http.StatusNotFound || c.hasStatusFile() {
		t.Errorf("the status page answers %d, %v, and its file is there: %v", code, err, c.hasStatusFile())
	}
	if c.Ready(s.ctx) {
		t.Error("a drained broker is ready")
	}
	for _, topic := range before {
		if owner, err := peer.broker.Owner(s.ctx, topic); err != nil || owner != peer.broker.URL() {
			t.Errorf("%s is served by %q, %v; want the peer", topic, owner, err)
		}
		s.ok(c.broker.Publish(s.ctx, topic, []byte("two"))) // whom its lookups lead to the peer
	}
	// Who asks right here brings a bundle back, and it is taken away again.
	s.ok(c.broker.Publish(s.ctx, later, []byte("one")))
	s.awaitThat("the bundle that came back to be unloaded", func() bool { return c.owns() == 0 })

	c.verb("activate", "--reason", "e2e")
	s.ok(c.AwaitReady(s.ctx, bound))
	s.awaitThat("the status page to be there", func() bool {
		code, err := c.broker.StatusPage(s.ctx)
		return err == nil && code == http.StatusOK
	})
	s.ok(c.broker.Publish(s.ctx, later, []byte("two")))
	if owner, err := peer.broker.Owner(s.ctx, later); err != nil || owner != c.broker.URL() {
		t.Errorf("%s is served by %q, %v; want the broker that was activated", later, owner, err)
	}
	for _, topic := range apart {
		if n, err := c.broker.Count(topic); err != nil || n != 2 {
			t.Errorf("%s holds %d messages, %v; want 2", topic, n, err)
		}
	}
}

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
