package alerttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// File is one file of rule tests, as promtool documents it.
type File struct {
	RuleFiles          []string       `json:"rule_files"`
	EvaluationInterval model.Duration `json:"evaluation_interval"`
	Tests              []Test         `json:"tests"`
}

// Test is one course of events and what is expected of the rules.
type Test struct {
	Name           string            `json:"name"`
	Interval       model.Duration    `json:"interval"`
	InputSeries    []Series          `json:"input_series"`
	AlertRuleTest  []AlertCase       `json:"alert_rule_test"`
	PromqlExprTest []ExprCase        `json:"promql_expr_test"`
	ExternalLabels map[string]string `json:"external_labels"`
}

// Series is the samples of one series, in promtool's notation.
type Series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// AlertCase lists the firing alerts of one name at one time: all of them, exactly.
type AlertCase struct {
	EvalTime  model.Duration  `json:"eval_time"`
	Alertname string          `json:"alertname"`
	ExpAlerts []ExpectedAlert `json:"exp_alerts"`
}

// ExpectedAlert is an alert without the label alertname.
type ExpectedAlert struct {
	ExpLabels      map[string]string `json:"exp_labels"`
	ExpAnnotations map[string]string `json:"exp_annotations"`
}

// ExprCase is the answer to one query at one time: all of it, exactly.
type ExprCase struct {
	Expr       string           `json:"expr"`
	EvalTime   model.Duration   `json:"eval_time"`
	ExpSamples []ExpectedSample `json:"exp_samples"`
}

// ExpectedSample is one sample of an answer.
type ExpectedSample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// Read reads a file of rule tests. Paths of rule files are relative to it.
func Read(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f File
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, rules := range f.RuleFiles {
		f.RuleFiles[i] = filepath.Join(filepath.Dir(path), rules)
	}
	if f.EvaluationInterval == 0 {
		f.EvaluationInterval = model.Duration(time.Minute)
	}
	for i := range f.Tests {
		if f.Tests[i].Interval == 0 {
			f.Tests[i].Interval = f.EvaluationInterval
		}
	}
	return &f, nil
}

// Alerts are the names that the file expects to fire at some time.
func (f *File) Alerts() map[string]bool {
	names := map[string]bool{}
	for _, t := range f.Tests {
		for _, c := range t.AlertRuleTest {
			if len(c.ExpAlerts) > 0 {
				names[c.Alertname] = true
			}
		}
	}
	return names
}

// load is the input in the language of the engine's own tests.
func (t *Test) load() string {
	var b strings.Builder
	fmt.Fprintf(&b, "load %s\n", t.Interval)
	for _, s := range t.InputSeries {
		fmt.Fprintf(&b, "  %s %s\n", s.Series, s.Values)
	}
	return b.String()
}

// end is the last time that something is expected at.
func (t *Test) end() time.Duration {
	var end model.Duration
	for _, c := range t.AlertRuleTest {
		end = max(end, c.EvalTime)
	}
	for _, c := range t.PromqlExprTest {
		end = max(end, c.EvalTime)
	}
	return time.Duration(end)
}
