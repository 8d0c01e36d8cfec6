package dashboards

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// neverHere are queries of the stand that have an answer and no number in it.
var neverHere = map[string]string{"holdfast_move_phase_duration_seconds": "no topic moves there"}

// notShown are metrics of a sidecar that no dashboard shows.
var notShown = map[string]string{
	"holdfast_lease_deadline_timestamp_seconds":             "lease_remaining_seconds is the same, without the clocks of two machines",
	"holdfast_agent_start_timestamp_seconds":                "sidecar versions and restarts show as gaps; HoldfastRestarting says when there are many",
	"holdfast_config_last_reload_success_timestamp_seconds": "whether the last settings are in force is what matters; holdfast status says since when",
}

// The queries of both dashboards, asked of a Prometheus that has scraped three real
// sidecars through a restart of a broker, a cut that outlived the TTL and a drain.
func TestEachQueryFindsWhatItAsksForInARealScrape(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute of real leases")
	}
	s := standing(t, quick)
	for _, name := range files {
		b := read(t, name)
		choices := map[string]choice{
			"all":               s.chosen("(shop|other)", labelled),
			"without a cluster": s.chosen(".*", plain),
			"one broker":        s.chosen("shop", labelled, s.lost),
		}
		for what, c := range choices {
			t.Run(name+"/"+what, func(t *testing.T) {
				for _, q := range b.queries() {
					if what == "one broker" && q.where == "annotation Boots" {
						continue // it was another broker that started anew
					}
					s.answered(t, c, q)
				}
			})
		}
		t.Run(name+"/variables", func(t *testing.T) { s.offered(t, b) })
		t.Run(name+"/series", func(t *testing.T) { s.exist(t, b) })
	}
	t.Run("every metric is shown", func(t *testing.T) { s.shown(t) })
}

var words = regexp.MustCompile(`\{\{(\w+)\}\}`)

// answered checks that a query has an answer, with a number in it, and with the labels
// that its series are named after.
func (s *stand) answered(t *testing.T, c choice, q asked) {
	t.Helper()
	m := s.ask(t, c, q.expr)
	if len(m) == 0 {
		t.Errorf("%s: no answer to %s", q.where, c.put(q.expr))
		return
	}
	if len(finite(m)) == 0 && !mentions(q.expr, neverHere) {
		t.Errorf("%s: no number in the answer to %s", q.where, c.put(q.expr))
	}
	for _, w := range words.FindAllStringSubmatch(q.legend, -1) {
		if m[0].Metric.Get(w[1]) == "" {
			t.Errorf("%s: %q names a label that %s has not", q.where, q.legend, m[0].Metric)
		}
	}
}

func mentions(expr string, metrics map[string]string) bool {
	for name := range metrics {
		if strings.Contains(expr, name) {
			return true
		}
	}
	return false
}

// offered checks that each variable has something to choose from.
func (s *stand) offered(t *testing.T, b board) {
	c := s.chosen("(shop)", labelled)
	for _, v := range b.Templating.List {
		m := labelValues.FindStringSubmatch(v.Query)
		if m == nil {
			continue
		}
		values := map[string]bool{}
		for _, series := range s.ask(t, c, m[1]) {
			values[series.Metric.Get(m[2])] = true
		}
		delete(values, "") // as Grafana does
		if len(values) == 0 {
			t.Errorf("variable %s offers %v", v.Name, values)
		}
	}
}

// exist checks that each selector by itself finds series: that metric, with those labels.
func (s *stand) exist(t *testing.T, b board) {
	c := s.chosen("shop", labelled)
	for _, q := range b.queries() {
		if err := selectors(c.put(q.expr), func(sel *parser.VectorSelector, _ []parser.Node) {
			if len(s.ask(t, c, sel.String())) == 0 {
				t.Errorf("%s: no sidecar has %s", q.where, sel)
			}
		}); err != nil {
			t.Errorf("%s: %v", q.where, err)
		}
	}
}

// shown checks that whatever a sidecar tells is on one of the dashboards.
func (s *stand) shown(t *testing.T) {
	used := map[string]bool{}
	for _, name := range files {
		for _, q := range read(t, name).queries() {
			_ = selectors(somewhere.put(q.expr), func(sel *parser.VectorSelector, _ []parser.Node) { used[sel.Name] = true })
		}
	}
	var names []string
	for _, series := range s.ask(t, s.chosen("shop", labelled), `count by (__name__) ({job="`+labelled+`", __name__=~"holdfast_.+"})`) {
		names = append(names, series.Metric.Get("__name__"))
	}
	if len(names) < 50 {
		t.Errorf("only %q were scraped", names)
	}
	parts := regexp.MustCompile(`_(sum|count)$`)
	for _, name := range names {
		histogram := parts.ReplaceAllString(name, "_bucket")
		if !used[name] && !used[histogram] && notShown[name] == "" {
			t.Errorf("%s is on no dashboard, and not among those that need not be", name)
		}
	}
	for name := range notShown {
		if used[name] || !slices.Contains(names, name) {
			t.Errorf("%s need not be shown, and is, or is no more", name)
		}
	}
}
