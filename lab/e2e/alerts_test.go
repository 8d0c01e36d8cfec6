package e2e

import (
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// alertingRules are the names of those of the rules file.
func alertingRules(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(alertRules)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				names = append(names, r.Alert)
			}
		}
	}
	return names
}

// unplayed are alerts whose fault takes longer than a test may, and what shows them instead.
var unplayed = map[string]string{
	"HoldfastMoveStalled":  "a move that stands still for minutes: alerts/tests/moves.test.yaml plays it",
	"HoldfastDrainStalled": "a drain that stands still for minutes: alerts/tests/moves.test.yaml plays it",
}

func TestEveryAlertHasAFaultThatItIsNamedFor(t *testing.T) {
	t.Parallel()
	rules, played := alertingRules(t), map[string]bool{}
	for _, lanes := range [][]laneOf{brokerLanes, fleetLanes, slowLanes} {
		for _, l := range lanes {
			for _, f := range l.faults {
				for _, name := range append(slices.Clone(f.alerts), f.never...) {
					if !slices.Contains(rules, name) {
						t.Errorf("no rule has the alert %s", name)
					}
				}
				for _, name := range f.alerts {
					played[name] = true
				}
				if f.what == "" || f.repair == "" {
					t.Errorf("lane %s, %v: say what is done and what undoes it", l.name, f.alerts)
				}
			}
		}
	}
	for _, name := range rules {
		if why := unplayed[name]; why != "" && played[name] {
			t.Errorf("%s is played: %s", name, why)
		} else if why == "" && !played[name] {
			t.Errorf("%s: no fault is played for it", name)
		}
	}
}

// Each lane is a fleet of its own on one etcd that is well, so they are played side by side.
func TestAlertsOfBrokersFireByTheirFaultsAndAreResolved(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStage(t)
	s.peer("peer") // somebody lives on while others have their troubles
	playLanes(t, s.watched(alertFaster, alertScrape), brokerLanes)
}

func TestAlertsOfAFleetFireByTheirFaultsAndAreResolved(t *testing.T) {
	takesLong(t)
	t.Parallel()
	playLanes(t, newStage(t).watched(alertFaster/3, 2*alertScrape), fleetLanes)
}

func TestAlertsWithAPaceOfTheirOwnFireByTheirFaultsAndAreResolved(t *testing.T) {
	takesLong(t)
	t.Parallel()
	for _, l := range slowLanes {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.play(t, newStage(t).watched(alertFaster/3, 2*alertScrape))
		})
	}
}

func playLanes(t *testing.T, w *watched, lanes []laneOf) {
	t.Helper()
	w.shared = len(lanes) > 1
	t.Run("lanes", func(t *testing.T) {
		for _, l := range lanes {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				l.play(t, w)
			})
		}
	})
}
