package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
)

func TestACheckSaysWhatTheChoiceMeansForABrokerThatFencesItself(t *testing.T) {
	c := config.Default()
	c.Driver, c.BrokerPIDFile = "pulsar", "/run/broker.pid"
	for fence, says := range map[string]string{"ready": "readiness and nothing else", "ready,quiesce,stop": "costs its service"} {
		for policy, then := range map[string]string{"": "active again by itself", "drain": "waits for 'holdfast activate'", "shutdown": "this sidecar ends"} {
			c.Fence, c.SessionExpiredPolicy = strings.Split(fence, ","), policy
			f, ok := FencesItself(c.Effective())
			if !ok || f.Err != nil || !strings.Contains(f.Text, says) || !strings.Contains(f.Text, then) {
				t.Errorf("--fence %s, policy %q: %+v; want %q and %q", fence, policy, f, says, then)
			}
		}
	}
	if _, ok := FencesItself(natsDefaults()); ok {
		t.Error("said of a broker that does not")
	}
	for pid, says := range map[string]string{"/run/broker.pid": "well is stopped", "": "goes on hanging"} {
		c.Fence, c.BrokerPIDFile = []string{"ready"}, pid
		if f, _ := FencesItself(c.Effective()); !strings.Contains(f.Text, says) {
			t.Errorf("pid file %q: %s; want %q", pid, f.Text, says)
		}
	}
	c.BrokerPIDFile = "/run/broker.pid"
	c.Fence, c.Guard = nil, ""
	if g := Unguarded(c.Effective()); g.Warn || g.Err != nil {
		t.Errorf("%+v: its guard is off for a reason", g)
	}
	tl := WorstCase(config.Config{Driver: "pulsar", LeaseTTL: 30 * time.Second, Detach: true, HealthFall: 3})
	if !slices.ContainsFunc(tl.Cut, func(m Moment) bool { return strings.Contains(m.What, "nothing else") && m.At == 20*time.Second }) {
		t.Errorf("the timeline is %v", tl.Cut)
	}
}

func natsDefaults() config.Config {
	c := config.Default()
	c.Driver = "nats"
	return c
}
