package e2e

import (
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// rule is what a test needs of an alerting rule.
type rule struct {
	Alert  string            `yaml:"alert"`
	For    string            `yaml:"for"`
	Labels map[string]string `yaml:"labels"`
}

// alertingRules are those of the rules file.
func alertingRules(t *testing.T) (all []rule) {
	t.Helper()
	text, err := os.ReadFile(alertRules)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, slices.DeleteFunc(g.Rules, func(r rule) bool { return r.Alert == "" })...)
	}
	return all
}

func hasFor(t *testing.T, alert string) bool {
	t.Helper()
	for _, r := range alertingRules(t) {
		if r.Alert == alert {
			return r.For != ""
		}
	}
	t.Fatalf("no rule has the alert %s", alert)
	return false
}

// unplayed are alerts whose fault takes longer than a test may, and what shows them instead.
var unplayed = map[string]string{
	"HoldfastMoveStalled":  "a move that stands still for minutes: alerts/tests/moves.test.yaml plays it",
	"HoldfastDrainStalled": "a drain that stands still for minutes: alerts/tests/moves.test.yaml plays it",
}

func TestEveryAlertHasAFaultThatItIsNamedFor(t *testing.T) {
	t.Parallel()
	played := map[string]bool{}
	for _, lanes := range [][]laneOf{brokerLanes, fleetLanes, slowLanes} {
		for _, l := range lanes {
			for _, f := range l.faults {
				for _, name := range append(slices.Clone(f.alerts), f.never...) {
					hasFor(t, name) // it is a rule's
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
	for _, r := range alertingRules(t) {
		if why := unplayed[r.Alert]; why != "" && played[r.Alert] {
			t.Errorf("%s is played: %s", r.Alert, why)
		} else if why == "" && !played[r.Alert] {
			t.Errorf("%s: no fault is played for it", r.Alert)
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
