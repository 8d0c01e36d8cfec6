package alerttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// Run plays one test of the file and returns everything that is not as expected.
func (f *File) Run(ctx context.Context, t *Test) (err error) {
	suite, err := promqltest.NewLazyLoader(t.load(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		return fmt.Errorf("read the input series: %w", err)
	}
	defer func() { err = errors.Join(err, suite.Close()) }()
	suite.SubqueryInterval = time.Duration(f.EvaluationInterval)
	groups, err := f.groups(ctx, t, suite)
	if err != nil {
		return err
	}
	cases := slices.Clone(t.AlertRuleTest)
	slices.SortStableFunc(cases, func(a, b AlertCase) int { return cmp.Compare(a.EvalTime, b.EvalTime) })
	var problems []error
	every := time.Duration(f.EvaluationInterval)
	for at := time.Duration(0); at <= t.end(); at += every {
		if err := evaluate(suite, groups, at); err != nil {
			return err
		}
		for len(cases) > 0 && time.Duration(cases[0].EvalTime) < at+every {
			problems = append(problems, cases[0].judge(groups))
			cases = cases[1:]
		}
	}
	for _, c := range t.PromqlExprTest {
		problems = append(problems, c.judge(suite))
	}
	return errors.Join(problems...)
}

func (f *File) groups(ctx context.Context, t *Test, suite *promqltest.LazyLoader) ([]*rules.Group, error) {
	opts := &rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()),
		Appendable: suite.Storage(),
		Context:    ctx,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     promslog.NewNopLogger(),
		Parser:     parser.NewParser(parser.Options{}),
	}
	interval := time.Duration(t.Interval)
	loaded, errs := rules.NewManager(opts).LoadGroups(interval, labels.FromMap(t.ExternalLabels), "", nil, false, f.RuleFiles...)
	if errs != nil {
		return nil, fmt.Errorf("load the rules: %w", errors.Join(errs...))
	}
	var groups []*rules.Group
	for _, g := range loaded {
		groups = append(groups, rules.NewGroup(rules.GroupOptions{
			Name: g.Name(), File: g.File(), Interval: interval, Rules: t.concerns(g.Rules()), Opts: opts,
		}))
	}
	slices.SortFunc(groups, func(a, b *rules.Group) int { return cmp.Compare(a.Name(), b.Name()) })
	return groups, nil
}

// concerns leaves out what the test does not ask for, which costs most of the time: other
// alerts, and what is recorded for them. Queries may ask for all of it.
func (t *Test) concerns(all []rules.Rule) (wanted []rules.Rule) {
	asked := ""
	for _, r := range slices.Backward(all) { // what is recorded stands before its use
		a, alerts := r.(*rules.AlertingRule)
		if alerts {
			a.SetRestored(true) // so that there is a series ALERTS
		}
		if len(t.PromqlExprTest) == 0 && !(alerts && t.asksFor(a.Name())) && (alerts || !strings.Contains(asked, r.Name())) {
			continue
		}
		asked += r.Query().String()
		wanted = append(wanted, r)
	}
	slices.Reverse(wanted)
	return wanted
}

func (t *Test) asksFor(alert string) bool {
	return slices.ContainsFunc(t.AlertRuleTest, func(c AlertCase) bool { return c.Alertname == alert })
}

func evaluate(suite *promqltest.LazyLoader, groups []*rules.Group, at time.Duration) error {
	now := time.Unix(0, 0).UTC().Add(at)
	var problems []error
	suite.WithSamplesTill(now, func(err error) {
		if err != nil {
			problems = append(problems, err)
			return
		}
		for _, g := range groups {
			g.Eval(suite.Context(), now)
			for _, r := range g.Rules() {
				if err := r.LastError(); err != nil {
					problems = append(problems, fmt.Errorf("at %s: rule %s: %w", at, r.Name(), err))
				}
			}
		}
	})
	return errors.Join(problems...)
}

// judge compares what fires with what is expected to.
func (c AlertCase) judge(groups []*rules.Group) error {
	var got, want []string
	for _, g := range groups {
		for _, a := range g.AlertingRules() {
			if a.Name() != c.Alertname {
				continue
			}
			for _, alert := range a.ActiveAlerts() {
				if alert.State == rules.StateFiring {
					got = append(got, alert.Labels.String()+" "+alert.Annotations.String())
				}
			}
		}
	}
	for _, e := range c.ExpAlerts {
		all := map[string]string{labels.AlertName: c.Alertname}
		for name, value := range e.ExpLabels {
			all[name] = value
		}
		want = append(want, labels.FromMap(all).String()+" "+labels.FromMap(e.ExpAnnotations).String())
	}
	return differ(fmt.Sprintf("%s at %s", c.Alertname, c.EvalTime), got, want)
}

func (c ExprCase) judge(suite *promqltest.LazyLoader) error {
	q, err := suite.QueryEngine().NewInstantQuery(suite.Context(), suite.Queryable(), nil, c.Expr, time.Unix(0, 0).UTC().Add(time.Duration(c.EvalTime)))
	if err != nil {
		return fmt.Errorf("%s: %w", c.Expr, err)
	}
	defer q.Close()
	answer, err := q.Exec(suite.Context()).Vector()
	if err != nil {
		return fmt.Errorf("%s: %w", c.Expr, err)
	}
	var got, want []string
	for _, s := range answer {
		got = append(got, fmt.Sprint(s.Metric, " ", s.F))
	}
	for _, e := range c.ExpSamples {
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(e.Labels)
		if err != nil {
			return fmt.Errorf("labels %s: %w", e.Labels, err)
		}
		want = append(want, fmt.Sprint(metric, " ", e.Value))
	}
	return differ(fmt.Sprintf("%s at %s", c.Expr, c.EvalTime), got, want)
}

func differ(what string, got, want []string) error {
	slices.Sort(got)
	slices.Sort(want)
	if slices.Equal(got, want) {
		return nil
	}
	list := func(lines []string) string {
		if len(lines) == 0 {
			return "\n    nothing"
		}
		return "\n    " + strings.Join(lines, "\n    ")
	}
	return fmt.Errorf("%s:\n  got%s\n  want%s", what, list(got), list(want))
}
