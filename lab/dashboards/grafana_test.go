package dashboards

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Grafana's own library (@grafana/data) merges the tables, finds the series of each
// override, and turns values into words, as its server's pages do.
func TestGrafanasLibraryMakesOfThemWhatIsMeant(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	modules, err := filepath.Abs(filepath.Join("..", ".bin", "grafana", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(modules, "@grafana", "data")); err != nil {
		t.Skip("Grafana's library is not installed: make grafana-library")
	}
	args := []string{filepath.Join("testdata", "grafana.js")}
	for _, name := range files {
		args = append(args, filepath.Join("..", "..", "dashboards", name))
	}
	cmd := exec.CommandContext(t.Context(), node, args...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if complaint, ok := strings.CutPrefix(line, "complaint: "); ok {
			t.Error(strings.TrimSpace(complaint))
		}
	}
	m := regexp.MustCompile(`(?m)^asked: (\d+)$`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("it did not come to an end: %s", out)
	}
	if n, _ := strconv.Atoi(string(m[1])); n < 300 {
		t.Errorf("only %d things were asked", n)
	}
}
