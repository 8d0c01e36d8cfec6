package alerttest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// debian finds a program of Debian's: on PATH, or where the gate unpacks it.
func debian(t *testing.T, name, of string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs("../.bin/debian/usr/bin/" + name)
	if err == nil {
		path, err = exec.LookPath(path)
	}
	if err != nil {
		t.Skipf("no %s: install Debian's %s, or have make gate unpack it", name, of)
	}
	return path
}

func succeeds(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
	}
}

func TestPromtoolTakesTheRulesAndTheirTests(t *testing.T) {
	if testing.Short() {
		t.Skip("promtool evaluates all rules for each test")
	}
	promtool := debian(t, "promtool", "prometheus")
	succeeds(t, promtool, "check", "rules", rulesFile)
	succeeds(t, promtool, append([]string{"test", "rules"}, testFiles(t)...)...)
}

func TestAmtoolTakesTheExample(t *testing.T) {
	succeeds(t, debian(t, "amtool", "prometheus-alertmanager"), "check-config", alertmanagerFile)
}
