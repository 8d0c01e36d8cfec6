//go:build pulsar

package pulsar

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

// Nobody activates anything.
func rolled(t *testing.T, _ *harness.Apache, all []*couple, topics []string) {
	f := startTraffic(t, topics, all)
	for i, c := range all {
		leadBundle(t, c.broker, topics[i]) // each has something to give up
	}
	for _, c := range all {
		before := c.active()
		ok(t, c.broker.Stop(soon(t)))
		ok(t, c.broker.Launch())
		c.registeredAgain(before)
	}
	f.flowing(t)
	f.stop(t, 10*time.Second)
}

// Alone, the other brokers wait for the end of its session: 30 s.
func killed(t *testing.T, _ *harness.Apache, all []*couple, topics []string) {
	c := all[0]
	f := startTraffic(t, topics, all)
	for _, topic := range topics {
		leadBundle(t, c.broker, topic)
	}
	before := c.active()
	f.ForgetGaps()
	ok(t, c.broker.Kill())
	f.flowing(t)
	f.wantServed(t, f.Tallies(), 25*time.Second)
	ok(t, c.broker.Launch())
	c.registeredAgain(before)
	f.flowing(t)
	f.stop(t, 25*time.Second)
}

// registeredAgain waits until the broker is active under a new registration.
func (c *couple) registeredAgain(before harness.Status) {
	c.t.Helper()
	after, err := c.Await(c.t.Context(), bootBound, "active again", func(st harness.Status) bool {
		return st.Epoch != before.Epoch && st.Mode == "active" && st.Attachment == "attached" && st.Ready.OK
	})
	ok(c.t, err)
	c.t.Logf("%s: %s (%s)", c.broker.Name, after.Mode, after.Reason)
}
