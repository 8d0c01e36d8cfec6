package e2e

import (
	"os"
	"slices"
	"testing"

	"github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"holdfast/lab/prom"
)

const alertmanagerExample = "../../alerts/alertmanager.example.yaml"

// inhibition is a rule by which Alertmanager holds alerts back while another fires.
type inhibition struct {
	Source []string `yaml:"source_matchers"`
	Target []string `yaml:"target_matchers"`
	Equal  []string `yaml:"equal"`
}

// told are the names of the alerts that the Alertmanager example does not hold back.
func told(t *testing.T, firing []prom.Alert) (names []string) {
	t.Helper()
	text, err := os.ReadFile(alertmanagerExample)
	if err != nil {
		t.Fatal(err)
	}
	var example struct {
		Inhibit []inhibition `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal(text, &example); err != nil || len(example.Inhibit) == 0 {
		t.Fatalf("%s: no inhibitions: %v", alertmanagerExample, err)
	}
	for _, target := range firing {
		held := slices.ContainsFunc(example.Inhibit, func(i inhibition) bool {
			return matchAll(t, i.Target, target) && slices.ContainsFunc(firing, func(source prom.Alert) bool {
				return matchAll(t, i.Source, source) &&
					!slices.ContainsFunc(i.Equal, func(l string) bool { return source.Labels[l] != target.Labels[l] })
			})
		})
		if !held && !slices.Contains(names, target.Name) {
			names = append(names, target.Name)
		}
	}
	return names
}

func matchAll(t *testing.T, matchers []string, a prom.Alert) bool {
	t.Helper()
	set := model.LabelSet{}
	for name, value := range a.Labels {
		set[model.LabelName(name)] = model.LabelValue(value)
	}
	for _, text := range matchers {
		m, err := labels.ParseMatchers(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !labels.Matchers(m).Matches(set) {
			return false
		}
	}
	return true
}
