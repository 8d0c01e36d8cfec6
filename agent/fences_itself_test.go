package agent

import (
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/recovery"
)

// At the end of its lease readiness goes and nothing else; then it is attached again.
func TestABrokerThatFencesItselfOnlyLosesReadiness(t *testing.T) {
	for _, row := range []struct {
		name   string
		fault  func(l *sidecarLife, on bool)
		frozen bool
	}{
		{"etcd is away", func(l *sidecarLife, on bool) { l.away = on }, false},
		{"its lease is revoked, and etcd writes nothing", func(l *sidecarLife, on bool) { l.lost, l.storeErr = true, on }, false},
		{"it hangs meanwhile", func(l *sidecarLife, on bool) { l.away, l.frozen = on, on }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			can := fencesItself
			ready := func(c *config.Config) { stoppable(c); c.Fence = []string{"ready"} }
			inLifeOf(t, can, ready, nil, func(l *sidecarLife) {
				l.inLoop(func() { l.guard = nil }) // as the default has it
				l.set(func() { row.fault(l, true) })
				l.becomes(recovery.Detached, 2*time.Minute)
				if len(l.notReady()) == 0 {
					t.Error("ready without a registration")
				}
				l.until(l.age() + 5*time.Minute)
				if l.quiesces > 0 || len(l.stops) > 0 || !l.serving {
					t.Errorf("%d quiesces, stopped at %v, serving %v; want it left alone", l.quiesces, l.stops, l.serving)
				}
				if s := l.status().Summary; strings.Contains(s, "fenced") || strings.Contains(s, "not proven") {
					t.Errorf("the status says %q", s)
				}
				if code, body := l.brokerLive(); code != 200 {
					t.Errorf("/broker/live is %d: %s", code, body)
				}
				l.set(func() { row.fault(l, false) })
				l.until(l.age() + 20*time.Second)
				if l.state() != recovery.Attached || len(l.notReady()) > 0 || l.quiesces > 0 || len(l.stops) > 0 {
					t.Errorf("afterwards %s, not ready %v, stopped at %v", l.state(), l.notReady(), l.stops)
				}
			})
		})
	}
}

func TestABrokerThatFencesItselfIsFencedByWhoAsksForIt(t *testing.T) {
	can := fencesItself
	inLifeOf(t, can, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, 2*time.Minute)
		l.until(l.age() + 20*time.Second)
		if len(l.stops) == 0 {
			t.Error("not stopped")
		}
	})
}

func TestWhatIsSaidOfABrokerThatFencesItselfIsWhatIsDone(t *testing.T) {
	c := config.Default()
	c.Driver = "pulsar"
	asks := c
	asks.BrokerPIDFile = "/run/broker.pid"
	asks.Fence, asks.SessionExpiredPolicy = []string{"ready", "stop"}, "drain"
	point := control.Event{Kind: "attachment", To: "detached", Reason: string(recovery.WhyFencePoint)}
	stale := control.Event{Kind: "mode", To: "active", Reason: string(recovery.ReasonStaleRestart)}
	letGo := control.Event{Kind: "broker", To: "let_go", Reason: string(recovery.ReasonPeerWell)}
	for _, e := range []control.Event{point, letGo} {
		if why := control.Explain(e, c.Effective()).Why; !strings.Contains(why, "nothing else is done") || strings.Contains(why, "is fenced") {
			t.Errorf("%s: %s", e.Reason, why)
		}
		if why := control.Explain(e, asks.Effective()).Why; strings.Contains(why, "nothing else") || !strings.Contains(why, "the broker is fenced") {
			t.Errorf("%s, asked to be stopped: %s", e.Reason, why)
		}
	}
	if x := control.Explain(letGo, c.Effective()); !strings.Contains(x.Next, "restart it") {
		t.Errorf("nothing stops it: %s", x.Next)
	}
	c.BrokerPIDFile = "/run/broker.pid"
	if x := control.Explain(letGo, c.Effective()); !strings.Contains(x.Why, "is stopped if it hangs") || strings.Contains(x.Next, "restart it") {
		t.Errorf("it is stopped: %+v", x)
	}
	if x := control.Explain(stale, c.Effective()); x.Next != "" || !strings.Contains(x.Why, "active all the same") {
		t.Errorf("%+v", x)
	}
	if x := control.Explain(stale, asks.Effective()); !strings.Contains(x.Next, "activate") || strings.Contains(x.Why, "all the same") {
		t.Errorf("%+v", x)
	}
}

// A supervisor's operator is not to wait for an activation that nobody asks for.
func TestTheStatusSaysThatABrokerThatFencesItselfRegistersAgain(t *testing.T) {
	for policy, want := range map[string]string{"reconnect": "it registers again, in the mode that it had", "drain": "it comes back drained"} {
		inLife(t, nil, func(l *sidecarLife) {
			l.inLoop(func() { l.cfg.Driver, l.cfg.SessionExpiredPolicy = "pulsar", policy })
			l.set(func() { l.lost, l.storeErr, l.heard = true, true, errSilence })
			l.becomes(recovery.Detached, time.Minute)
			l.until(l.age() + time.Second)
			if got := l.afterwards(l.view.Load(), l.keeper.View(), "etcd"); !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", policy, got, want)
			}
		})
	}
}
