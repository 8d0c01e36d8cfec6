package alerttest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

func page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryAlertHasARunbookAndEachRunbookAnAlert(t *testing.T) {
	var want []string
	for name := range alerts(t) {
		want = append(want, folder+"runbooks/"+name+".md")
	}
	have, err := filepath.Glob(folder + "runbooks/Holdfast*.md")
	if slices.Sort(want); err != nil || !slices.Equal(have, want) {
		t.Errorf("runbooks %q (%v), alerts want %q", have, err, want)
	}
}

var metricLine = regexp.MustCompile("(?m)^\\| `(holdfast_\\w+)` \\| (\\w+) \\| ([^|]*) \\|")

// shown are the metrics of a sidecar with the values of their labels, as the page lists
// them that a test in agent holds to a real registry.
func shown(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{}
	for _, m := range metricLine.FindAllStringSubmatch(page(t, "../../docs/metrics.md"), -1) {
		values := map[string][]string{}
		for label := range strings.SplitSeq(m[3], "; ") {
			name, list, _ := strings.Cut(label, ":")
			if name = strings.Trim(name, "` "); name != "" {
				values[name] = strings.Fields(list)
			}
		}
		names := []string{m[1]}
		if m[2] == "histogram" {
			values["le"] = nil
			names = []string{m[1] + "_bucket", m[1] + "_sum", m[1] + "_count"}
		}
		for _, name := range names {
			all[name] = values
		}
	}
	if len(all) < 50 {
		t.Fatalf("docs/metrics.md lists %d metrics", len(all))
	}
	return all
}

func TestTheRulesLookAtSeriesThatThereAre(t *testing.T) {
	all := shown(t)
	all["up"] = map[string][]string{}
	for _, r := range shipped(t) {
		if r.Record != "" {
			all[r.Record] = map[string][]string{}
		}
	}
	for _, r := range shipped(t) {
		inspect(t, r.Expr, func(n parser.Node) {
			s, ok := n.(*parser.VectorSelector)
			if !ok {
				return
			}
			known, ok := all[s.Name]
			if !ok {
				t.Errorf("%s%s looks at %s, which no sidecar has", r.Alert, r.Record, s.Name)
				return
			}
			for _, m := range s.LabelMatchers {
				values, ok := known[m.Name]
				switch {
				case m.Name == model.MetricNameLabel || m.Name == "job":
				case !ok:
					t.Errorf("%s%s: %s has no label %s", r.Alert, r.Record, s.Name, m.Name)
				case len(values) > 0 && !slices.ContainsFunc(values, m.Matches):
					t.Errorf("%s%s: %s has no %s", r.Alert, r.Record, s.Name, m)
				}
			}
		})
	}
}
