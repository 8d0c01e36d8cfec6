package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

func (l *sidecarLife) toldModes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.steers)
}

func (l *sidecarLife) wantHeard(when string, want ...string) {
	l.t.Helper()
	if got := l.toldModes(); !slices.Equal(got, want) {
		l.t.Errorf("%s: told %q, want %q", when, got, want)
	}
}

// says is a person's word on the mode, as the watch brings it.
func (l *sidecarLife) says(m recovery.Mode) {
	l.inLoop(func() {
		l.setMode(recovery.ModeRecord{Mode: m, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "by an operator")
	})
}

func TestNoClientComesBeforeTheBrokerHasTakenActive(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, func(l *sidecarLife) {
		l.set(func() { l.serving, l.balks = false, errors.New("not yet") })
	}, func(l *sidecarLife) {
		if got := probes.Causes(l.readyChecks(), l.log); len(got) != 2 || got[0].Name != "steer" ||
			got[0].Message != "the broker was told to be active and is not: not yet" {
			t.Errorf("causes: %v", got)
		}
		if l.loads != 0 {
			t.Error("a broker that is not active was given a topic")
		}
		l.set(func() { l.balks = nil })
		l.until(l.age() + 10*time.Second)
		if causes := l.notReady(); len(causes) > 0 || l.loads != 1 {
			t.Errorf("%v, %d loads", causes, l.loads)
		}
		if got := l.why("steer"); got != "failing:active active:boot" {
			t.Error(got)
		}
		if s := l.status(); s.Broker.Steering != "done" {
			t.Errorf("steering %q", s.Broker.Steering)
		}
	})
}

func TestADrainIsHandedOver(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.wantHeard("at start", "active (boot)")
		l.set(func() { l.takes = 3 * time.Second })
		l.says(recovery.Drained)
		began := l.age()
		if err := l.awaitDrained(l.life0, time.Minute); err != nil {
			t.Error(err)
		}
		if took := l.age() - began; took < 3*time.Second || took > 4*time.Second {
			t.Errorf("drained after %v", took)
		}
		l.wantHeard("drained", "active (boot)", "drained (operator)")
		if l.quiesces != 0 || l.serving {
			t.Errorf("%d quiesces while the broker drained itself", l.quiesces)
		}
		l.says(recovery.Active)
		l.awaitActive(l.life0)
		l.wantHeard("active again", "active (boot)", "drained (operator)", "active (operator)")
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("%v", causes)
		}
	})
}

func TestABrokerThatRefusesToDrainIsQuiesced(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.set(func() { l.balks = errors.New("I am the only one") })
		l.says(recovery.Drained)
		err := l.awaitDrained(l.life0, 10*time.Second)
		if err == nil || !strings.Contains(err.Error(), "the broker was told to be drained and is not: I am the only one") {
			t.Errorf("%v", err)
		}
		if l.serving || l.quiesces != 1 {
			t.Errorf("serving %v, %d quiesces", l.serving, l.quiesces)
		}
		if s := l.status().Summary; !strings.Contains(s, "is not: I am the only one") {
			t.Error(s)
		}
	})
}

func TestADrainThatIsNotTakenAgainIsSaid(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.says(recovery.Drained)
		l.until(l.age() + 10*time.Second)
		if s := l.status(); s.Broker.Steering != "done" {
			t.Errorf("drained: %q", s.Broker.Steering)
		}
		l.set(func() { l.balks = errors.New("I am busy") })
		l.until(l.age() + time.Minute)
		if s := l.status(); s.Broker.Steering != "failing" || !strings.Contains(s.Summary, "does not take that again, so topics may have come back: I am busy") {
			t.Errorf("%q: %s", s.Broker.Steering, s.Summary)
		}
		l.set(func() { l.balks = nil })
		l.until(l.age() + time.Minute)
		if s := l.status(); s.Broker.Steering != "done" || strings.Contains(s.Summary, "busy") {
			t.Errorf("%q: %s", s.Broker.Steering, s.Summary)
		}
	})
}

func TestAPauseKeepsABrokerThatHasTakenItsModeReady(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.pause(time.Hour)
		l.until(l.age() + 10*time.Second)
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("paused: %v", causes)
		}
		l.wantHeard("paused", "active (boot)")
		if got := l.why("steer"); got != "active:boot" {
			t.Error(got)
		}
	})
}

// Where the broker's cluster assigns the topics, nothing but the broker can end them.
func TestADrainThatTheBrokerRefusesSaysWhyTopicsAreServed(t *testing.T) {
	inLifeOf(t, kind{Traits: brokerapi.Traits{Places: true}, steers: true}, nil, nil, func(l *sidecarLife) {
		l.set(func() { l.balks = errors.New("I am the only one") })
		l.says(recovery.Drained)
		err := l.awaitDrained(l.life0, 10*time.Second)
		const want = "the broker is drained for its clients, but after 10s 1 topic still served: the broker was told to be drained and is not: " +
			"I am the only one; clients are kept away already"
		if err == nil || err.Error() != want || !l.serving {
			t.Errorf("%v, serving %v; want %s", err, l.serving, want)
		}
	})
}

func TestNothingIsToldWhileDetached(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Minute)
		l.says(recovery.Drained)
		l.until(l.age() + 10*time.Minute)
		l.wantHeard("detached", "active (boot)")
		if err := l.awaitDrained(l.life0, time.Second); err != nil {
			t.Errorf("a detached broker serves nothing: %v", err)
		}
		l.set(func() { l.away = false })
		l.becomes(recovery.Attached, time.Hour)
		l.until(l.age() + time.Second)
		if got := l.toldModes(); len(got) != 2 {
			t.Errorf("attached again: told %q", got)
		}
	})
}

func TestANewProcessOfTheBrokerIsTold(t *testing.T) {
	inLifeOf(t, kind{steers: true}, nil, nil, func(l *sidecarLife) {
		l.start()
		l.lostLine <- struct{}{}
		l.until(l.age() + 20*time.Second)
		l.wantHeard("the second process", "active (boot)", "active (boot)")
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("%v", causes)
		}
	})
}

func TestAClusterThatAssignsAllowsNoOther(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*config.Config)
		want   string
	}{
		{"external", func(*config.Config) {}, ""},
		{"rendezvous", func(c *config.Config) { c.Assignment = "rendezvous" }, `--assignment "rendezvous": this broker's own cluster says who serves a topic: leave it out`},
		{"locks", func(c *config.Config) { c.OwnershipLocks = "on" }, `--ownership-locks "on": this broker's own cluster says who serves a topic: leave it out`},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := natsDefaults()
			row.change(&c)
			if err := c.Validate(); err != nil {
				t.Errorf("beside a broker without: %v", err)
			}
			c.Driver, c.PulsarCluster = "pulsar", "standalone"
			got := ""
			if err := c.Validate(); err != nil {
				got = err.Error()
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
