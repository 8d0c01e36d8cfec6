package alerttest

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const (
	folder     = "../../alerts/"
	rulesFile  = folder + "holdfast.rules.yaml"
	runbookURL = "https://holdfast.example/runbooks/"
)

// shipped is the rules file as Prometheus reads it.
func shipped(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	var rules []rulefmt.Rule
	for _, g := range groups.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// alerts are the alerting rules by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	all := map[string]rulefmt.Rule{}
	for _, r := range shipped(t) {
		if r.Alert == "" {
			continue
		}
		if _, twice := all[r.Alert]; twice {
			t.Errorf("%s is there twice", r.Alert)
		}
		all[r.Alert] = r
	}
	return all
}

func testFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(folder + "tests/*.test.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rule tests: %v", err)
	}
	return files
}

func TestEveryAlertFiresWhenItShouldAndOnlyThen(t *testing.T) {
	for _, path := range testFiles(t) {
		f, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.Tests {
			t.Run(filepath.Base(path)+"/"+f.Tests[i].Name, func(t *testing.T) {
				t.Parallel()
				if err := f.Run(t.Context(), &f.Tests[i]); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Each alert is shown to be silent within two evaluations before it fires, and to be
// silent in at least one course of events that looks alike.
func TestEveryAlertHasItsTests(t *testing.T) {
	const justBefore = 45 * time.Second
	fires, justSilent, lookalikes := map[string]bool{}, map[string]bool{}, map[string]int{}
	for _, path := range testFiles(t) {
		f, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range f.Tests {
			silentAt := map[string]time.Duration{}
			fired := false
			name, _, _ := strings.Cut(test.Name, ":")
			for _, c := range test.AlertRuleTest {
				switch at := time.Duration(c.EvalTime); {
				case len(c.ExpAlerts) == 0:
					silentAt[c.Alertname] = at
				default:
					fired, fires[c.Alertname] = true, true
					if before, ok := silentAt[c.Alertname]; ok && at-before <= justBefore {
						justSilent[c.Alertname] = true
					}
				}
			}
			if !fired {
				lookalikes[name]++
			}
		}
	}
	all := alerts(t)
	for name := range all {
		if !fires[name] {
			t.Errorf("%s: no test expects it to fire", name)
		}
		if !justSilent[name] {
			t.Errorf("%s: no test shows it silent at most %s before it fires", name, justBefore)
		}
		if lookalikes[name] == 0 {
			t.Errorf("%s: no test named %q shows a course of events that must not fire", name, name+": …")
		}
	}
	for name := range fires {
		if _, ok := all[name]; !ok {
			t.Errorf("a test expects %s, which no rule fires", name)
		}
	}
}

func TestEveryAlertSaysWhatAPersonNeeds(t *testing.T) {
	for name, r := range alerts(t) {
		if !strings.HasPrefix(name, "Holdfast") {
			t.Errorf("%s: alerts begin with Holdfast", name)
		}
		if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
			t.Errorf("%s: severity %q", name, s)
		}
		if s := r.Annotations["summary"]; s == "" || strings.Contains(s, "{{") {
			t.Errorf("%s: summary %q: want one line without variables", name, s)
		}
		if s := r.Annotations["description"]; name != "HoldfastAbsent" && !strings.Contains(s, "$labels.instance") && !strings.Contains(s, "$labels.job") {
			t.Errorf("%s: description %q does not say where", name, s)
		}
		if s := r.Annotations["runbook_url"]; s != runbookURL+name+".md" {
			t.Errorf("%s: runbook_url %q", name, s)
		}
	}
}

// Prometheus 2.42 refuses a file with words that came later.
func TestTheRulesUseNoWordsOfLaterVersions(t *testing.T) {
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []map[string]any `json:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for word := range g {
			if !slices.Contains([]string{"name", "rules", "interval", "limit"}, word) {
				t.Errorf("group %v: %s is not known to Prometheus 2.42", g["name"], word)
			}
		}
	}
	for _, r := range shipped(t) {
		for _, f := range called(t, r.Expr) {
			if !in242[f] {
				t.Errorf("%s%s calls %s, which is not known to be in Prometheus 2.42", r.Alert, r.Record, f)
			}
		}
	}
}

// in242 are the functions that the rules may call.
var in242 = map[string]bool{"absent": true, "changes": true, "clamp_max": true, "count_over_time": true, "histogram_quantile": true,
	"increase": true, "last_over_time": true, "max_over_time": true, "min_over_time": true, "rate": true, "time": true}

func called(t *testing.T, expr string) (names []string) {
	t.Helper()
	inspect(t, expr, func(n parser.Node) {
		if c, ok := n.(*parser.Call); ok {
			names = append(names, c.Func.Name)
		}
	})
	return names
}

func inspect(t *testing.T, expr string, see func(parser.Node)) {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatal(err)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		see(n)
		return nil
	})
}
