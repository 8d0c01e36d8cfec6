package prom

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

var promQL = parser.NewParser(parser.Options{})

// Faster is the expression with every duration in it divided by by: the ranges of
// matrix selectors and subqueries, the steps of subqueries, and offsets. Numbers stay
// what they are, also those that mean seconds. Durations are rounded to milliseconds,
// and one that was positive stays so.
func Faster(expr string, by float64) (string, error) {
	e, err := promQL.ParseExpr(expr)
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", expr, err)
	}
	parser.Inspect(e, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.MatrixSelector:
			n.Range = divided(n.Range, by)
		case *parser.SubqueryExpr:
			n.Range, n.Step = divided(n.Range, by), divided(n.Step, by)
			n.OriginalOffset = divided(n.OriginalOffset, by)
		case *parser.VectorSelector:
			n.OriginalOffset = divided(n.OriginalOffset, by)
		}
		return nil
	})
	return e.String(), nil
}

// divided is d/by in whole milliseconds, and not 0 unless d is.
func divided(d time.Duration, by float64) time.Duration {
	if by == 1 || d == 0 {
		return d
	}
	q := time.Duration(float64(d) / by).Round(time.Millisecond)
	if q == 0 {
		q = time.Millisecond
		if d < 0 {
			q = -q
		}
	}
	return q
}

// fasterLoader loads rules files as Prometheus does, and divides their durations.
type fasterLoader struct{ by float64 }

func (l fasterLoader) Parse(expr string) (parser.Expr, error) { return promQL.ParseExpr(expr) }

func (l fasterLoader) Load(file string, ignoreUnknown bool, names model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	groups, errs := rulefmt.ParseFile(file, ignoreUnknown, names, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return nil, errs
	}
	for i := range groups.Groups {
		if err := fasterGroup(&groups.Groups[i], l.by); err != nil {
			return nil, []error{fmt.Errorf("%s: %w", file, err)}
		}
	}
	return groups, nil
}

// fasterGroup divides the durations of a group's rules, and its own.
func fasterGroup(g *rulefmt.RuleGroup, by float64) error {
	divide := func(d *model.Duration) { *d = model.Duration(divided(time.Duration(*d), by)) }
	divide(&g.Interval)
	if g.QueryOffset != nil {
		divide(g.QueryOffset)
	}
	for i := range g.Rules {
		r := &g.Rules[i]
		divide(&r.For)
		divide(&r.KeepFiringFor)
		var err error
		if r.Expr, err = Faster(r.Expr, by); err != nil {
			return fmt.Errorf("group %s, rule %s%s: %w", g.Name, r.Record, r.Alert, err)
		}
	}
	return nil
}
