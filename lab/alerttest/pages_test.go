package alerttest

import (
	"fmt"
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

var runbookHeadings = []string{"## Meaning", "## First look", "## Likely causes", "## What to do", "## What not to do"}

func TestEveryAlertHasARunbook(t *testing.T) {
	all := alerts(t)
	for name, r := range all {
		text := page(t, folder+"runbooks/"+name+".md")
		if !strings.HasPrefix(text, "# "+name+"\n\n"+r.Annotations["summary"]+". Severity: "+r.Labels["severity"]+".\n") {
			t.Errorf("%s.md: want it to begin with its name, its summary and its severity", name)
		}
		at := -1
		for _, h := range runbookHeadings {
			next := strings.Index(text, "\n"+h+"\n")
			if next <= at {
				t.Errorf("%s.md: %q is missing, or stands in another place", name, h)
			}
			at = next
		}
		if n := len(regexp.MustCompile(`(?m)^#+ `).FindAllString(text, -1)); n != len(runbookHeadings)+1 {
			t.Errorf("%s.md: %d headings", name, n)
		}
		// 'run -- CMD' passes SIGQUIT on to the broker, which ends by it.
		if strings.Contains(text, "QUIT") {
			t.Errorf("%s.md: SIGQUIT is the broker's, too; SIGABRT has the sidecar say where it is", name)
		}
		if lines := strings.Count(text, "\n"); lines > 70 {
			t.Errorf("%s.md: %d lines are more than a page", name, lines)
		}
		if name != "HoldfastAbsent" && !strings.Contains(text, "\nholdfast ") && !strings.Contains(text, "-- holdfast ") {
			t.Errorf("%s.md: no command to look first", name)
		}
	}
	pages, _ := filepath.Glob(folder + "runbooks/Holdfast*.md")
	for _, path := range pages {
		if _, ok := all[strings.TrimSuffix(filepath.Base(path), ".md")]; !ok {
			t.Errorf("%s: no such alert", path)
		}
	}
}

func TestTheIndexOfRunbooksListsEachAlert(t *testing.T) {
	index := page(t, folder+"runbooks/README.md")
	for name, r := range alerts(t) {
		want := fmt.Sprintf("| [%s](%s.md) | %s | %s |", name, name, r.Labels["severity"], r.Annotations["summary"])
		if !strings.Contains(index, want+"\n") {
			t.Errorf("runbooks/README.md lacks the line\n%s", want)
		}
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
