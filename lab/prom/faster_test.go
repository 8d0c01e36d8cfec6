package prom

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/model"
)

func TestEveryDurationOfAnExpressionIsDivided(t *testing.T) {
	for name, c := range map[string]struct{ expr, want string }{
		"range":              {`rate(a[5m])`, `rate(a[15s])`},
		"range with offset":  {`rate(a[5m] offset 10m)`, `rate(a[15s] offset 30s)`},
		"offset":             {`a offset 1m`, `a offset 3s`},
		"negative offset":    {`a offset -1m`, `a offset -3s`},
		"subquery":           {`max_over_time(rate(a[5m])[1h:1m] offset 20m)`, `max_over_time(rate(a[15s])[3m:3s] offset 1m)`},
		"default step":       {`max_over_time(a[1h:])`, `max_over_time(a[3m:])`},
		"both sides":         {`max_over_time(a[2m]) > on (job) b offset 40s`, `max_over_time(a[6s]) > on (job) b offset 2s`},
		"no PromQL":          {`rate(a)`, ``},
		"nested":             {`sum by (job) (increase(a{x="5m"}[10m])) > 5 and b`, `sum by (job) (increase(a{x="5m"}[30s])) > 5 and b`},
		"an age":             {`time() - a > 300`, `time() - a > 15`},
		"an age of its own":  {`time() - a > 10 * b`, `time() - a > 10 * b`},
		"a number":           {`a > 300`, `a > 300`},
		"less than a second": {`rate(a[10s])`, `rate(a[500ms])`},
		"almost nothing":     {`rate(a[1ms])`, `rate(a[1ms])`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Faster(c.expr, 20)
			if (err != nil) != (c.want == "") || got != c.want {
				t.Errorf("%s becomes %s, %v; want %s", c.expr, got, err, c.want)
			}
		})
	}
}

func TestDurationsOfRulesAreDivided(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(`
groups:
  - name: g
    interval: 1m
    rules:
      - record: job:a:rate5m
        expr: sum by (job) (rate(a[5m]))
      - alert: A
        expr: job:a:rate5m > 0
        for: 5m
        keep_firing_for: 10m
      - alert: AtOnce
        expr: job:a:rate5m > 0
      - alert: OwnPace
        expr: changes(a[2m]) == 0
        for: 1m
`), 0o600); err != nil {
		t.Fatal(err)
	}
	groups, errs := fasterLoader{by: 20, of: map[string]float64{"OwnPace": 2}}.Load(file, false, model.UTF8Validation)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	g := groups.Groups[0]
	if got := time.Duration(g.Interval); got != 3*time.Second {
		t.Errorf("interval %v", got)
	}
	if got := g.Rules[0].Expr; got != `sum by (job) (rate(a[15s]))` {
		t.Errorf("expression %s", got)
	}
	if r := g.Rules[1]; time.Duration(r.For) != 15*time.Second || time.Duration(r.KeepFiringFor) != 30*time.Second {
		t.Errorf("for %v, keep firing for %v", r.For, r.KeepFiringFor)
	}
	if r := g.Rules[2]; r.For != 0 || r.KeepFiringFor != 0 {
		t.Errorf("an alert without durations has for %v, keep_firing_for %v", r.For, r.KeepFiringFor)
	}
	if r := g.Rules[3]; time.Duration(r.For) != 30*time.Second || r.Expr != `changes(a[1m]) == 0` {
		t.Errorf("the rule with a pace of its own has for %v, expression %s", r.For, r.Expr)
	}
}
