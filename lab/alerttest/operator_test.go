package alerttest

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files")

const operatorFile = folder + "holdfast.prometheusrule.yaml"

// The prometheus-operator takes the same rules in a wrapping of its own.
func TestTheOperatorsResourceHoldsTheSameRules(t *testing.T) {
	rules := page(t, rulesFile)
	_, groups, found := strings.Cut(rules, "\ngroups:\n")
	if !found {
		t.Fatal("no groups")
	}
	var b strings.Builder
	b.WriteString(`# Written from holdfast.rules.yaml by: cd lab && go test ./alerttest -run Operators -update
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: holdfast
  labels:
    app.kubernetes.io/name: holdfast
spec:
  groups:
`)
	for line := range strings.Lines(groups) {
		if strings.TrimSpace(line) != "" {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	if *update {
		if err := os.WriteFile(operatorFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if page(t, operatorFile) != b.String() {
		t.Errorf("%s is not what the rules are: go test ./alerttest -run Operators -update", operatorFile)
	}
}
