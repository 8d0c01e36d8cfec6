package alerttest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// mutant is a rules file with one thing changed.
type mutant struct {
	what   string
	notice []string // the names whose tests must notice
	rules  []rulefmt.Rule
}

// threshold is a number that decides: what is compared with it, or made of it.
var threshold = regexp.MustCompile(`(?:>=|>|<|/|\n)\s*(\d+(?:\.\d+)?)(?:[\s)]|$)`)

// mutants leave out, one at a time, each `for` and each clause of an expression that
// stands in a line of its own; make each `for` twice as long, and each threshold twice as
// large and half of it.
func mutants(t *testing.T) (all []mutant) {
	t.Helper()
	rules := shipped(t)
	add := func(i int, what string, change func(*rulefmt.Rule)) {
		changed := append([]rulefmt.Rule(nil), rules...)
		change(&changed[i])
		name := rules[i].Alert + rules[i].Record
		all = append(all, mutant{name + " " + what, users(rules, name), changed})
	}
	for i, r := range rules {
		if r.For > 0 {
			add(i, "without for", func(r *rulefmt.Rule) { r.For = 0 })
			add(i, "with twice the for", func(r *rulefmt.Rule) { r.For *= 2 })
		}
		for _, at := range threshold.FindAllStringSubmatchIndex(r.Expr, -1) {
			n, err := strconv.ParseFloat(r.Expr[at[2]:at[3]], 64)
			if err != nil {
				t.Fatal(err)
			}
			for _, factor := range []float64{.5, 2} {
				other := r.Expr[:at[2]] + fmt.Sprint(n*factor) + r.Expr[at[3]:]
				if n > 0 {
					add(i, fmt.Sprintf("with %g times %g", factor, n), func(r *rulefmt.Rule) { r.Expr = other })
				}
			}
		}
		lines := strings.Split(r.Expr, "\n")
		for n, line := range lines {
			first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if first != "and" && first != "unless" && first != "or" && first != "*" && first != "+" {
				continue
			}
			rest := strings.Join(append(append([]string(nil), lines[:n]...), lines[n+1:]...), "\n")
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(rest); err != nil {
				continue // it is the begin of a clause of several lines
			}
			add(i, "without "+strings.TrimSpace(line), func(r *rulefmt.Rule) { r.Expr = rest })
		}
	}
	return all
}

// users are the name and those of the rules that are made from its series.
func users(rules []rulefmt.Rule, name string) []string {
	names := []string{name}
	for _, r := range rules {
		if other := r.Alert + r.Record; other != name && strings.Contains(name, ":") && strings.Contains(r.Expr, name) {
			names = append(names, users(rules, other)...)
		}
	}
	return names
}

func (m mutant) concerns(t Test) bool {
	return slices.ContainsFunc(m.notice, func(name string) bool { return strings.HasPrefix(t.Name, name+": ") })
}

func (m mutant) write(t *testing.T) string {
	t.Helper()
	var list []map[string]any
	for _, r := range m.rules {
		rule := map[string]any{"expr": r.Expr}
		if r.Record != "" {
			rule["record"] = r.Record
		} else {
			rule["alert"], rule["labels"], rule["annotations"], rule["for"] = r.Alert, r.Labels, r.Annotations, r.For.String()
		}
		list = append(list, rule)
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "holdfast", "rules": list}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheTestsNoticeEveryClauseAndEveryThreshold(t *testing.T) {
	if testing.Short() {
		t.Skip("plays the tests of a rule once for each thing that it is made of")
	}
	var files []*File
	for _, path := range testFiles(t) {
		f, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for _, m := range mutants(t) {
		t.Run(m.what, func(t *testing.T) {
			t.Parallel()
			path := m.write(t)
			for _, f := range files {
				mutated := *f
				mutated.RuleFiles = []string{path}
				for i := range mutated.Tests {
					if m.concerns(mutated.Tests[i]) && mutated.Run(t.Context(), &mutated.Tests[i]) != nil {
						return
					}
				}
			}
			t.Error("every rule test passes all the same")
		})
	}
}
