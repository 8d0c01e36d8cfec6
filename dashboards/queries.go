package main

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// query is one PromQL expression and the names of the series it answers.
type query struct {
	expr, legend string
	instant      bool // asked for the end of the time shown only
	table        bool // as rows
}

// on selects the series of a metric that the variables choose, and more matchers.
func on(metric string, matchers ...string) string {
	chosen := []string{`cluster=~"$cluster"`, `job=~"$job"`, `instance=~"$instance"`}
	return metric + "{" + strings.Join(append(chosen, matchers...), ", ") + "}"
}

// perSecond is the rate of a counter, summed up by labels beside those of the target.
func perSecond(counter string, labels ...string) string {
	return fmt.Sprintf("%s (rate(%s[$__rate_interval]))", sumBy(labels...), on(counter))
}

// grown is by how much a counter grew between two points of a graph.
func grown(counter string, labels ...string) string {
	return fmt.Sprintf("%s (increase(%s[$__rate_interval]))", sumBy(labels...), on(counter))
}

// grownSince is by how much a counter grew in the time shown; for instant queries.
func grownSince(counter string, labels ...string) string {
	return fmt.Sprintf("%s (increase(%s[$__range]))", sumBy(labels...), on(counter))
}

// quantile is a quantile of a histogram, of each broker, by labels beside.
func quantile(q float64, histogram string, labels ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, %s (rate(%s[$__rate_interval])))",
		q, sumBy(append([]string{"le"}, labels...)...), on(histogram+"_bucket"))
}

// maximum is the highest value of each broker: a series of its own for each, without
// the labels that only some versions have.
func maximum(metric string) string { return "max by (cluster, job, instance) (" + on(metric) + ")" }

func sumBy(labels ...string) string {
	return "sum by (" + strings.Join(append([]string{"cluster", "job", "instance"}, labels...), ", ") + ")"
}

// source is the data source that the variable chooses.
func source() *common.DataSourceRef {
	return &common.DataSourceRef{Type: ptr("prometheus"), Uid: ptr("${datasource}")}
}

// targets are the queries of one panel, named A, B, C.
func targets(queries []query) []variants.Dataquery {
	var list []variants.Dataquery
	for i, q := range queries {
		t := prometheus.Dataquery{
			RefId: ptr(refID(i)), Expr: q.expr, LegendFormat: ptr(q.legend), Datasource: source(),
			EditorMode: ptr(prometheus.QueryEditorModeCode),
			Instant:    ptr(q.instant), Range: ptr(!q.instant),
		}
		if q.table {
			t.Format = ptr(prometheus.PromQueryFormatTable)
		}
		list = append(list, t)
	}
	return list
}

func refID(i int) string { return string(rune('A' + i)) }
