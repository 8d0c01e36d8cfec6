package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/agent/moving"
	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

// Pulsar's own cluster moves a bundle, with all its topics, to the broker that is named.
func TestABundleMovesToThePulsarBrokerThatIsNamed(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	from, to := s.besidePulsar(s.pulsar("p1")), s.besidePulsar(s.pulsar("p2"))
	const topic = "/public~default/orders"
	bundle := "/public~default/" + harness.PulsarBundle(topic)
	refused := func(want string, args ...string) {
		t.Helper()
		res, err := from.Verb(s.ctx, args[0], args[1:]...)
		s.ok(err)
		if res.Exit != 3 || !strings.Contains(res.Stderr, want) {
			t.Errorf("%q: exit code %d: %s; want a refusal that says %q", args, res.Exit, res.Stderr, want)
		}
	}
	refused("this broker does not serve it", "unload", bundle)
	s.ok(from.broker.Publish(s.ctx, topic, []byte("one")))
	refused("no such broker", "unload", bundle, "--to", "p9:1")
	refused("'holdfast drain' without --move", "drain", "--move", "--reason", "e2e")

	// The first broker leads, and the second sends what it has by way of it.
	for _, way := range [][2]*pulsarCouple{{from, to}, {to, from}} {
		res := way[0].verb("unload", bundle, "--to", way[1].broker.Advertised(), "-o", "json")
		var m moving.Shown
		if err := json.Unmarshal([]byte(res.Stdout), &m); err != nil {
			t.Fatalf("%v: %s", err, res.Stdout)
		}
		want := "by Pulsar's own lookup " + way[1].broker.Advertised() + " owns the bundle, with its topics, 1 of them"
		if m.Phase != moves.Done || m.Same == nil || m.Same.Observed != want {
			t.Errorf("%s", res.Stdout)
		}
		if owner, err := way[0].broker.Owner(s.ctx, topic); err != nil || owner != way[1].broker.URL() {
			t.Errorf("it is %q's, %v", owner, err)
		}
	}
	s.ok(from.broker.Publish(s.ctx, topic, []byte("two")))
	if n, err := to.broker.Count(topic); err != nil || n != 2 {
		t.Errorf("%d messages, %v; want 2", n, err)
	}
}
