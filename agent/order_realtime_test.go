package agent

import (
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/cluster"
	"holdfast/probes"
)

func TestAChildThatWasRegisteredMayNotStartWhileEtcdIsSilent(t *testing.T) {
	a := built(t)
	a.life0 = t.Context()
	c := a.cfg.Cluster()
	c.Endpoints = []string{"http://" + deadPort}
	client, err := cluster.Open(c, discard)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	a.main = client
	if ok, why := a.mayStartChild(true); ok || !strings.Contains(why, "etcd does not answer") {
		t.Errorf("%t, %s", ok, why)
	}
	if ok, word, _ := a.childGate(true)(); ok || word != "fenced" {
		t.Errorf("%t, %s", ok, word)
	}
}

// A broker that hangs is down for its health checks. It serves when it comes to itself.
func TestTheRestartGraceRevokesNothingWhileTheProcessLives(t *testing.T) {
	watch := watchThatSaw(t)
	for name, row := range map[string]struct {
		watched bool
		revoked bool
	}{"its process is seen": {true, false}, "it has none": {false, true}} {
		t.Run(name, func(t *testing.T) {
			inLife(t, func(c *config.Config) { stoppable(c); c.RestartGrace = 5 * time.Second }, func(l *sidecarLife) {
				if row.watched {
					l.inLoop(func() { l.agent.process = watch })
				}
				at := l.fencePoint()
				l.set(func() { l.frozen = true })
				l.until(at - time.Second)
				if got := l.revokes > 0; got != row.revoked || l.health.Snapshot().At(time.Now()) != probes.Down {
					t.Errorf("revoked %t, the broker is %s", got, l.health.Snapshot().At(time.Now()))
				}
			})
		})
	}
}
