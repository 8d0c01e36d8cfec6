package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"testing"

	"holdfast/lab/harness"
)

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
