package agent

import (
	"errors"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/recovery"
)

// Two decisions: at the end of its lease such a broker is left to serve; ill beside a peer that is
// well it is stopped, whatever --fence says.
func TestABrokerThatFencesItselfIsStoppedOnlyWhenItIsIllBesideOneThatIsWell(t *testing.T) {
	well, ill := []recovery.Health{recovery.HealthWell}, []recovery.Health{recovery.HealthIll}
	for _, row := range []struct {
		name   string
		change func(c *config.Config)
		health []recovery.Health
		fault  func(l *sidecarLife, b *besideOf)
		stops  bool
	}{
		{"it hangs, and a peer is well", nil, well, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, true},
		{"the same, and --fence quiesces", func(c *config.Config) { c.Fence = []string{"ready", "quiesce"} }, well, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, true},
		{"only a command can stop it", func(c *config.Config) { c.BrokerPIDFile, c.StopCommand = "", "true" }, well, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, true},
		{"nothing here can stop it", func(c *config.Config) { c.BrokerPIDFile = "" }, well, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, false},
		{"it hangs, and so does its peer", nil, ill, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, false},
		{"it hangs alone", nil, nil, func(l *sidecarLife, _ *besideOf) { l.frozen = true }, false},
		{"it refuses our token, and serves its clients", nil, well, func(l *sidecarLife, _ *besideOf) { l.replies = errors.New("401 Unauthorized") }, false},
		{"etcd is away", nil, well, func(l *sidecarLife, b *besideOf) { l.away, b.silent = true, true }, false},
		{"etcd is away, and it hangs", nil, well, func(l *sidecarLife, b *besideOf) { l.away, b.silent, l.frozen = true, true, true }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			can := fencesItself
			settings := func(c *config.Config) {
				stoppable(c)
				if c.Fence = []string{"ready"}; row.change != nil {
					row.change(c)
				}
			}
			inLifeOf(t, can, settings, nil, func(l *sidecarLife) {
				b := &besideOf{l: l, health: row.health, lives: true}
				l.inLoop(func() { l.guard, l.sightPeers = nil, b.sight })
				l.set(func() { row.fault(l, b) })
				began := l.age()
				l.until(began + 5*time.Minute)
				if (len(l.stops) == 1) != row.stops || len(l.stops) > 1 {
					t.Fatalf("stopped at %v since %v; want it stopped: %t", l.stops, began, row.stops)
				}
				if row.stops && (l.stops[0]-began > l.cfg.LeaseTTL || l.why("fence") != "stopped:ill") {
					t.Errorf("hung from %v, stopped at %v: %s", began, l.stops[0], l.why("fence"))
				}
				if row.stops {
					l.start()
				}
				l.set(func() { l.away, l.frozen, l.replies, b.silent = false, false, nil, false })
				l.until(l.age() + 30*time.Second)
				if causes := l.notReady(); len(causes) > 0 || len(l.stops) > 1 {
					t.Errorf("afterwards not ready: %v, stopped at %v", causes, l.stops)
				}
			})
		})
	}
}

// What came to itself before it could be stopped is not ill any more, whatever etcd does then.
func TestABrokerThatFencesItselfAndThawsIsNotStoppedAnyMore(t *testing.T) {
	for name, away := range map[string]bool{"etcd answers": false, "etcd is away": true} {
		t.Run(name, func(t *testing.T) {
			can := fencesItself
			inLifeOf(t, can, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready"} }, nil, func(l *sidecarLife) {
				b := &besideOf{l: l, health: []recovery.Health{recovery.HealthWell}, lives: true}
				l.inLoop(func() { l.guard, l.sightPeers = nil, b.sight })
				l.set(func() { l.frozen, l.immortal = true, true })
				l.until(l.becomes(recovery.Detached, time.Minute) + 30*time.Second)
				if len(l.stops) == 0 {
					t.Fatal("no stop was tried")
				}
				l.set(func() { l.frozen, l.away, b.silent = false, away, away })
				l.until(l.age() + 10*time.Second)
				tried := len(l.stops)
				l.until(l.age() + time.Minute)
				if len(l.stops) != tried {
					t.Errorf("stopped at %v", l.stops)
				}
				l.set(func() { l.away, b.silent = false, false })
				l.until(l.age() + time.Minute)
				if causes := l.notReady(); len(causes) > 0 || len(l.stops) != tried {
					t.Errorf("not ready: %v, stopped at %v", causes, l.stops)
				}
			})
		})
	}
}

// Drain it, then attach a debugger: that is ordinary work, and so is a pause for it.
func TestABrokerThatFencesItselfIsNotStoppedForItsIllnessWhileSomebodyWorksOnIt(t *testing.T) {
	can := fencesItself
	hanging := func(claim func(l *sidecarLife)) {
		inLifeOf(t, can, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready"} }, nil, func(l *sidecarLife) {
			b := &besideOf{l: l, health: []recovery.Health{recovery.HealthWell}, lives: true}
			l.inLoop(func() { l.guard, l.sightPeers = nil, b.sight })
			claim(l)
		})
	}
	hanging(func(l *sidecarLife) {
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "")
		})
		l.until(l.age() + 10*time.Second)
		l.set(func() { l.frozen = true })
		l.until(l.age() + 2*time.Minute)
		if len(l.stops) > 0 {
			t.Errorf("drained, and stopped at %v", l.stops)
		}
	})
	hanging(func(l *sidecarLife) {
		l.set(func() { l.frozen, l.immortal = true, true })
		l.until(l.becomes(recovery.Detached, time.Minute) + 10*time.Second)
		l.inLoop(func() { l.beginPause(recovery.Pause{Owner: "op", Reason: "dump", Until: time.Now().Add(time.Hour)}) })
		l.until(l.age() + 5*time.Second)
		tried := len(l.stops)
		l.until(l.age() + time.Minute)
		if tried == 0 || len(l.stops) != tried {
			t.Errorf("%d stops before a pause, %d during it", tried, len(l.stops)-tried)
		}
	})
}
