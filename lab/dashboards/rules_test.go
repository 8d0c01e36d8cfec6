package dashboards

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	// ranges finds what stands between square brackets.
	ranges = regexp.MustCompile(`\[([^\]]*)\]`)
)

// shownAsTheyAre are counters whose value itself is the answer.
var shownAsTheyAre = map[string]string{
	"holdfast_broker_boots_total": "the first boot is counted before the first scrape, and increase would not see it",
}

// Most of it after Grafana's dashboard-linter, which cannot be built here.
func TestEachQueryAsksForWhatWasChosenAndInAWayThatHasAMeaning(t *testing.T) {
	for _, name := range files {
		for _, q := range read(t, name).queries() {
			complain := func(format string, args ...any) {
				t.Helper()
				t.Errorf("%s: %s: "+format, append([]any{name, q.where}, args...)...)
			}
			for _, m := range ranges.FindAllStringSubmatch(q.expr, -1) {
				// The whole time shown is for numbers at its end.
				if m[1] != "$__rate_interval" && !(q.instant && m[1] == "$__range") {
					complain("the range [%s] is not Grafana's", m[1])
				}
			}
			chosen := choice{"c", "j", "i", "1m1s", "6h1s"}
			if err := selectors(chosen.put(q.expr), func(s *parser.VectorSelector, around []parser.Node) {
				for _, label := range []string{"cluster", "job", "instance"} {
					if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
						return m.Name == label && m.Type == labels.MatchRegexp && m.Value == label[:1]
					}) {
						complain("%s has no matcher %s=~\"$%s\"", s.Name, label, label)
					}
				}
				within := func(functions ...string) bool {
					return slices.ContainsFunc(around, func(n parser.Node) bool {
						call, ok := n.(*parser.Call)
						return ok && slices.Contains(functions, call.Func.Name)
					})
				}
				bucket := strings.HasSuffix(s.Name, "_bucket")
				counter, grows := bucket || strings.HasSuffix(s.Name, "_total"), within("rate", "increase")
				switch {
				case counter && !grows && shownAsTheyAre[s.Name] == "":
					complain("%s is a counter and has neither rate nor increase", s.Name)
				case !counter && grows:
					complain("%s is no counter", s.Name)
				case bucket && !within("histogram_quantile"):
					complain("%s outside of histogram_quantile", s.Name)
				}
			}); err != nil {
				complain("%s: %v", q.expr, err)
			}
		}
	}
}
