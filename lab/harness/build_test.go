package harness

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The lab's tests of size and memory are about what users build.
func TestTheLabBuildsHoldfastAsMakeDoes(t *testing.T) {
	cmd := exec.Command("make", "-n", "build")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make -n build: %v\n%s", err, out)
	}
	said := strings.ReplaceAll(string(out), "'", "")
	args := slices.DeleteFunc(slices.Clone(recipes[Holdfast].args), func(arg string) bool {
		return arg == "-buildvcs=false" // a fresh clone may lack what it reads
	})
	for _, arg := range append(args, recipes[Holdfast].env...) {
		if !strings.Contains(said, arg) {
			t.Errorf("make build does without %s:\n%s", arg, out)
		}
	}
	if n := strings.Count(said, "gcflags"); n != strings.Count(strings.Join(args, " "), "gcflags") {
		t.Errorf("make build has %d gcflags:\n%s", n, out)
	}
}
