package prom

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql"
)

// Query evaluates an expression now. A scalar becomes a vector of one sample without
// labels. Durations in it are taken as they are: see Faster.
func (p *Prometheus) Query(ctx context.Context, expr string) (promql.Vector, error) {
	q, err := p.engine.NewInstantQuery(ctx, p.db, nil, expr, time.Now())
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, res.Err)
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		return append(promql.Vector(nil), v...), nil // v's memory is the query's
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V}}, nil
	default:
		return nil, fmt.Errorf("query %s: it is a %s, not a vector", expr, v.Type())
	}
}

// QueryRange evaluates an expression at each step from start to end, as a graph does.
func (p *Prometheus) QueryRange(ctx context.Context, expr string, start, end time.Time, step time.Duration) (promql.Matrix, error) {
	q, err := p.engine.NewRangeQuery(ctx, p.db, nil, expr, start, end, step)
	if err != nil {
		return nil, fmt.Errorf("query %s over a range: %w", expr, err)
	}
	defer q.Close()
	m, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, fmt.Errorf("query %s over a range: %w", expr, err)
	}
	var copied promql.Matrix // m's memory is the query's
	for _, s := range m {
		copied = append(copied, promql.Series{
			Metric: s.Metric, Floats: append([]promql.FPoint(nil), s.Floats...), Histograms: append([]promql.HPoint(nil), s.Histograms...),
		})
	}
	return copied, nil
}
