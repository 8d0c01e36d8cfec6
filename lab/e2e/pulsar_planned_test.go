package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/lab/harness"
)

// pulsarWays are how an adopted Pulsar broker is restarted on purpose.
var pulsarWays = map[string]func(c *pulsarCouple){
	"leave, then the broker alone": func(c *pulsarCouple) {
		before := c.s.key(pulsarRegistration(c.broker))
		c.verb("leave")
		if now := c.s.key(pulsarRegistration(c.broker)); now != before {
			c.s.Errorf("registration %+v, want the broker's own, untouched: %+v", now, before)
		}
		if c.Ready(c.s.ctx) {
			c.s.Error("ready after it has left")
		}
		c.s.ok(c.broker.Stop(c.s.ctx))
		c.s.ok(c.broker.Start(c.s.ctx))
	},
	"the broker alone, and nobody says so": func(c *pulsarCouple) {
		c.s.ok(c.broker.Stop(c.s.ctx))
		c.s.ok(c.broker.Start(c.s.ctx))
	},
	"the sidecar, then the broker": func(c *pulsarCouple) {
		c.s.ok(c.Stop(c.s.ctx))
		c.s.ok(c.broker.Stop(c.s.ctx))
		c.s.ok(c.broker.Start(c.s.ctx))
		c.s.ok(c.Start())
	},
}

func TestARollingRestartOfAdoptedPulsarBrokersNeedsNobody(t *testing.T) {
	takesLong(t)
	t.Parallel()
	for name, restart := range pulsarWays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			peer := s.besidePulsar(s.pulsar("p2"), "--registration", "adopt")
			p := s.pulsar("p1")
			pid := filepath.Join(t.TempDir(), "pid")
			s.ok(os.WriteFile(pid, fmt.Append(nil, p.PID()), 0o644))
			c := s.besidePulsar(p, "--registration", "adopt", "--broker-pid-file", pid)
			for _, topic := range topicsApart(3) {
				s.ok(c.broker.Publish(s.ctx, topic, []byte("one")))
			}
			epoch := s.key(pulsarRegistration(c.broker)).Create
			restart(c)
			s.ok(os.WriteFile(pid, fmt.Append(nil, p.PID()), 0o644))
			st, err := c.Await(s.ctx, bound, "ready again", func(st harness.Status) bool { return st.Epoch > epoch && st.Ready.OK })
			s.ok(err)
			if st.Mode != "active" || st.Reason != "planned_restart" || st.Boot.Kind != "restart" {
				t.Errorf("came back as %s", st)
			}
			for _, topic := range topicsApart(3) {
				s.ok(peer.broker.Publish(s.ctx, topic, []byte("two")))
			}
		})
	}
}
