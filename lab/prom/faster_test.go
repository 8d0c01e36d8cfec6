package prom

import (
	"testing"
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
