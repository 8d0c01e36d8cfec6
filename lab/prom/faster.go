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
// matrix selectors and subqueries, the steps of subqueries, offsets, and a number that an
// age is compared with, as in time() - x > 300. Other numbers stay what they are, also
// those that mean seconds. Durations are rounded to milliseconds, and one that was
// positive stays so.
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
		case *parser.BinaryExpr:
			if limit, ok := n.RHS.(*parser.NumberLiteral); ok && n.Op.IsComparisonOperator() && isAge(n.LHS) {
				limit.Val /= by
			}
		}
		return nil
	})
	return e.String(), nil
}

// isAge says whether an expression is time() - something.
func isAge(e parser.Expr) bool {
	minus, ok := e.(*parser.BinaryExpr)
	if !ok || minus.Op != parser.SUB {
		return false
	}
	now, ok := minus.LHS.(*parser.Call)
	return ok && now.Func.Name == "time"
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
type fasterLoader struct {
	by float64
	of map[string]float64 // instead, by the name of the rule
}

func (l fasterLoader) Parse(expr string) (parser.Expr, error) { return promQL.ParseExpr(expr) }

func (l fasterLoader) Load(file string, ignoreUnknown bool, names model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	groups, errs := rulefmt.ParseFile(file, ignoreUnknown, names, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return nil, errs
	}
	for i := range groups.Groups {
		if err := l.group(&groups.Groups[i]); err != nil {
			return nil, []error{fmt.Errorf("%s: %w", file, err)}
		}
	}
	return groups, nil
}

// group divides the durations of a group's rules, and its own.
func (l fasterLoader) group(g *rulefmt.RuleGroup) error {
	divide := func(d *model.Duration, by float64) { *d = model.Duration(divided(time.Duration(*d), by)) }
	divide(&g.Interval, l.by)
	if g.QueryOffset != nil {
		divide(g.QueryOffset, l.by)
	}
	for i := range g.Rules {
		r := &g.Rules[i]
		by := l.by
		if own, ok := l.of[r.Record+r.Alert]; ok {
			by = own
		}
		divide(&r.For, by)
		divide(&r.KeepFiringFor, by)
		var err error
		if r.Expr, err = Faster(r.Expr, by); err != nil {
			return fmt.Errorf("group %s, rule %s%s: %w", g.Name, r.Record, r.Alert, err)
		}
	}
	return nil
}
