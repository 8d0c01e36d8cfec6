package agent

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// metricsPage lists every metric with what to do with it. Rules, dashboards and people
// rely on it, so it is written from the registry.
const metricsPage = "../docs/metrics.md"

func TestThePageOfMetricsIsWhatASidecarShows(t *testing.T) {
	_, reg := builtWith(t)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\nWhat `/metrics` on `--web-listen` shows. Every series is there from the start, no topic is ever a label, and times are in seconds.\n" +
		"Rules for them are in [alerts](../alerts/README.md).\n\n| metric | type | labels | what it says, and what to do |\n|---|---|---|---|\n")
	for _, f := range families {
		values := map[string]map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if values[l.GetName()] == nil {
					values[l.GetName()] = map[string]bool{}
				}
				values[l.GetName()][l.GetValue()] = true
			}
		}
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			text := "`" + name + "`"
			if !strings.HasSuffix(f.GetName(), "_info") && name != "endpoint" { // else they are not known beforehand
				text += ": " + strings.Join(slices.Sorted(maps.Keys(values[name])), " ")
			}
			labels = append(labels, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, "; "), strings.ReplaceAll(f.GetHelp(), "|", "\\|"))
	}
	if *update {
		if err := os.WriteFile(metricsPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(metricsPage)
	if err != nil || string(page) != b.String() {
		t.Errorf("docs/metrics.md is not what a sidecar shows (%v): go test ./agent -run PageOfMetrics -update", err)
	}
}
