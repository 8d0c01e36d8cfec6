package dashboards

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// rules are what every dashboard keeps, most of them after Grafana's dashboard-linter, which
// cannot be built here.
var rules = map[string]func(board) complaints{
	"cluster, job and instance are variables":      checkChoices,
	"no data source is written down":               checkDatasources,
	"queries are PromQL":                           checkPromQL,
	"ranges are those of Grafana":                  checkRanges,
	"selectors have the matchers of all variables": checkMatchers,
	"counters are looked at by how they grow":      checkCounters,
	"buckets go into quantiles":                    checkBuckets,
	"links keep the time and the choices":          checkLinks,
}

func TestDashboardsKeepTheRules(t *testing.T) {
	for _, name := range files {
		b := read(t, name)
		for rule, check := range rules {
			for _, complaint := range check(b) {
				t.Errorf("%s: %s: %s", name, rule, complaint)
			}
		}
	}
}

type complaints []string

func (c *complaints) add(format string, args ...any) { *c = append(*c, fmt.Sprintf(format, args...)) }

func checkChoices(b board) (c complaints) {
	for _, want := range []struct{ name, label, all string }{
		{"cluster", "Cluster", ".*"}, // the label is a convention: All takes in those without
		{"job", "Job", ".+"},
		{"instance", "Instance", ".+"},
	} {
		i := slices.IndexFunc(b.Templating.List, func(v variable) bool { return v.Name == want.name })
		if i < 0 {
			c.add("no variable %s", want.name)
			continue
		}
		v := b.Templating.List[i]
		if v.Type != "query" || v.Label != want.label || v.AllValue != want.all || !v.Multi || v.Datasource.UID != "${datasource}" {
			c.add("variable %s: %+v", want.name, v)
		}
	}
	return c
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

func checkDatasources(b board) (c complaints) {
	check := func(where string, s source) {
		if s.Type != "prometheus" || s.UID != "${datasource}" {
			c.add("%s: data source %+v", where, s)
		}
	}
	for _, p := range b.drawn() {
		check(p.Title, p.Datasource)
		for _, t := range p.Targets {
			check(p.Title+", query "+t.RefID, t.Datasource)
		}
	}
	for _, a := range b.Annotations.List {
		check("annotation "+a.Name, a.Datasource)
		check("annotation "+a.Name, a.Target.Datasource)
	}
	return c
}

func checkPromQL(b board) (c complaints) {
	for _, q := range b.queries() {
		if _, err := promQL.ParseExpr(somewhere.put(q.expr)); err != nil {
			c.add("%s: %s: %v", q.where, q.expr, err)
		}
	}
	for _, a := range b.Annotations.List {
		if a.Target.Expr != a.Expr {
			c.add("annotation %s asks %s of old Grafanas and %s of new ones", a.Name, a.Expr, a.Target.Expr)
		}
	}
	return c
}

// ranges finds what stands between square brackets.
var ranges = regexp.MustCompile(`\[([^\]]*)\]`)

func checkRanges(b board) (c complaints) {
	for _, q := range b.queries() {
		for _, m := range ranges.FindAllStringSubmatch(q.expr, -1) {
			// The whole time shown is for numbers at its end.
			if m[1] != "$__rate_interval" && !(q.instant && m[1] == "$__range") {
				c.add("%s: the range [%s]", q.where, m[1])
			}
		}
	}
	return c
}

func checkMatchers(b board) (c complaints) {
	for _, q := range b.queries() {
		for _, label := range []string{"cluster", "job", "instance"} {
			probe := somewhere
			probe.cluster, probe.job, probe.instance = "c", "j", "i"
			_ = selectors(probe.put(q.expr), func(s *parser.VectorSelector, _ []parser.Node) {
				if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
					return m.Name == label && m.Type == labels.MatchRegexp && m.Value == label[:1]
				}) {
					c.add("%s: %s has no matcher %s=~\"$%s\"", q.where, s.Name, label, label)
				}
			})
		}
	}
	return c
}

// shownAsTheyAre are counters whose value itself is the answer.
var shownAsTheyAre = map[string]string{
	"holdfast_broker_boots_total": "the first boot is counted before the first scrape, and increase would not see it",
}

func checkCounters(b board) (c complaints) {
	for _, q := range b.queries() {
		_ = selectors(somewhere.put(q.expr), func(s *parser.VectorSelector, around []parser.Node) {
			grows := false
			if n := len(around); n >= 2 {
				call, ok := around[n-2].(*parser.Call)
				grows = ok && slices.Contains([]string{"rate", "increase"}, call.Func.Name)
			}
			counter := strings.HasSuffix(s.Name, "_total") || strings.HasSuffix(s.Name, "_bucket")
			switch {
			case counter && !grows && shownAsTheyAre[s.Name] == "":
				c.add("%s: %s is a counter and has neither rate nor increase", q.where, s.Name)
			case !counter && grows:
				c.add("%s: %s is no counter", q.where, s.Name)
			}
		})
	}
	return c
}

func checkBuckets(b board) (c complaints) {
	for _, q := range b.queries() {
		_ = selectors(somewhere.put(q.expr), func(s *parser.VectorSelector, around []parser.Node) {
			if strings.HasSuffix(s.Name, "_bucket") && !slices.ContainsFunc(around, func(n parser.Node) bool {
				call, ok := n.(*parser.Call)
				return ok && call.Func.Name == "histogram_quantile"
			}) {
				c.add("%s: %s outside of histogram_quantile", q.where, s.Name)
			}
		})
	}
	return c
}

func checkLinks(b board) (c complaints) {
	kept := []string{"${datasource:queryparam}", "${cluster:queryparam}"}
	check := func(where, url string, time bool, more ...string) {
		if !strings.HasPrefix(url, "/d/holdfast-") {
			c.add("%s: %s is not one of these dashboards", where, url)
		}
		for _, k := range append(kept, more...) {
			if !strings.Contains(url, k) {
				c.add("%s: %s leaves %s behind", where, url, k)
			}
		}
		if !time {
			c.add("%s: %s leaves the time behind", where, url)
		}
	}
	if len(b.Links) == 0 {
		c.add("there is no link to the other dashboard")
	}
	for _, l := range b.Links {
		check("link "+l.Title, l.URL, l.KeepTime, "${job:queryparam}")
	}
	for _, p := range b.drawn() {
		for _, l := range p.links() {
			check(p.Title, l.URL, strings.Contains(l.URL, "${__url_time_range}"), "var-job=${__data.fields.job:percentencode}", "var-instance=${__data.fields.instance:percentencode}")
		}
	}
	return c
}
