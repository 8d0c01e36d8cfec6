package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/brokerapi"
	"holdfast/recovery"
)

// placing is a cluster that places topics on a broker unless it is told not to.
type placing struct {
	told []string
	flaw string
	life *sidecarLife
}

func (c *placing) KeepAway(_ context.Context, away bool) string {
	word := "back"
	if away {
		word = "away"
	}
	if len(c.told) == 0 || c.told[len(c.told)-1] != word {
		c.told = append(c.told, word)
	}
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	return c.flaw
}

// inClusterOf is inLifeOf for a broker whose cluster can be told to place nothing on it.
func inClusterOf(t *testing.T, claim func(l *sidecarLife, c *placing)) {
	t.Helper()
	c := &placing{}
	inLifeOf(t, brokerapi.Capabilities{Steer: true, Assigns: true}, nil, func(l *sidecarLife) {
		c.life = l
		l.steerer = recovery.NewSteerer(keptAway{steered{l}, c, l.Topics}, time.Minute, slog.New(slog.DiscardHandler), prometheus.NewPedanticRegistry())
	}, func(l *sidecarLife) { claim(l, c) })
}

func TestADrainedBrokerIsKeptAwayBeforeItIsDrained(t *testing.T) {
	inClusterOf(t, func(l *sidecarLife, c *placing) {
		l.says(recovery.Drained)
		if err := l.awaitDrained(l.life0, time.Minute); err != nil {
			t.Error(err)
		}
		l.says(recovery.Active)
		l.awaitActive(l.life0)
		if want := []string{"back", "away", "back"}; !slices.Equal(c.told, want) {
			t.Errorf("told %q, want %q", c.told, want)
		}
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("%v", causes)
		}
	})
	var order []string
	k := keptAway{steered{noting{&order}}, noting{&order}, nil}
	if err := k.Steer(t.Context(), recovery.Drained, "x"); err != nil || !slices.Equal(order, []string{"away true", "steer drained"}) {
		t.Errorf("%q, %v", order, err)
	}
}

// noting notes the order of calls.
type noting struct{ order *[]string }

func (n noting) KeepAway(_ context.Context, away bool) string {
	*n.order = append(*n.order, map[bool]string{true: "away true", false: "away false"}[away])
	return "no"
}

func (n noting) Steer(_ context.Context, mode brokerapi.Mode, _ string) error {
	*n.order = append(*n.order, "steer "+string(mode))
	return nil
}

func TestWhatComesBackIsAnEventAndIsGivenUpWithinSeconds(t *testing.T) {
	inClusterOf(t, func(l *sidecarLife, c *placing) {
		l.says(recovery.Drained)
		if err := l.awaitDrained(l.life0, time.Minute); err != nil {
			t.Error(err)
		}
		l.until(l.age() + 2*time.Second)
		l.set(func() { l.serving = true })
		l.until(l.age() + 4*time.Second)
		if l.serving {
			t.Error("it serves 4 s later")
		}
		events, _ := l.journal.since(0)
		last := events[len(events)-1]
		if last.Kind != "steer" || last.To != "returned" || last.Detail != "1 topic came back to the drained broker: "+telltale {
			t.Errorf("%+v", last)
		}
	})
}

func TestWhyTopicsMayComeBackIsInTheStatus(t *testing.T) {
	inClusterOf(t, func(l *sidecarLife, c *placing) {
		l.set(func() { c.flaw = "bundles may come back: no other broker of the cluster takes any" })
		l.says(recovery.Drained)
		if err := l.awaitDrained(l.life0, time.Minute); err != nil {
			t.Error(err)
		}
		l.until(l.age() + time.Second)
		s := l.status()
		if s.Broker.Steering != "done" || s.Broker.SteeringFlaw != c.flaw || !strings.HasSuffix(s.Summary, " It is drained, but "+c.flaw+".") {
			t.Errorf("%+v: %s", s.Broker, s.Summary)
		}
		l.set(func() { c.flaw = "" })
		l.until(l.age() + 4*time.Second)
		if s := l.status(); s.Broker.SteeringFlaw != "" || strings.Contains(s.Summary, "but") {
			t.Errorf("%+v: %s", s.Broker, s.Summary)
		}
	})
}

func TestADrainedBrokerThatCannotBeSeenToStaysDrained(t *testing.T) {
	k := keptAway{steered{noting{new([]string)}}, noting{new([]string)}, func(context.Context) (brokerapi.Held, error) {
		return brokerapi.Held{}, errors.New("the broker is busy")
	}}
	if returned, flaw := k.Keep(t.Context(), recovery.Drained); len(returned) > 0 || flaw != "the broker is busy" {
		t.Errorf("%q, %q", returned, flaw)
	}
}

func TestTopicsThatKeepComingBackAreToldOf(t *testing.T) {
	inClusterOf(t, func(l *sidecarLife, c *placing) {
		l.says(recovery.Drained)
		if err := l.awaitDrained(l.life0, time.Minute); err != nil {
			t.Error(err)
		}
		l.set(func() { l.serving, l.takes = true, time.Minute })
		l.until(l.age() + 9*time.Second)
		events, _ := l.journal.since(0)
		if last := events[len(events)-1]; last.To != "returned" || l.status().Broker.SteeringFlaw == "" {
			t.Errorf("%+v, flaw %q", last, l.status().Broker.SteeringFlaw)
		}
	})
}

func TestABrokerThatIsFencedIsNotKeptAway(t *testing.T) {
	inClusterOf(t, func(l *sidecarLife, c *placing) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Minute)
		if want := []string{"back"}; !slices.Equal(c.told, want) {
			t.Errorf("told %q, want %q", c.told, want)
		}
	})
}
