package simulation

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

var (
	mutate   = flag.String("mutate", "", "run the mutations whose name matches; \".\" is all (make mutate)")
	mutateTo = flag.Int("mutate-schedules", 600, "after how many schedules a mutant has survived")
)

// edit replaces a text in a file, named from the root of the module. The text is there
// exactly once.
type edit struct{ file, old, new string }

// mutation is a deliberate breakage of a safety rule. The simulation must notice it, or
// the test that it names.
type mutation struct {
	name  string
	rule  string // of DESIGN
	edits []edit
	// test is a package and what -run takes, such as "./agent ^TestName$"; empty: the
	// simulation.
	test string
}

// killer splits test.
func (m mutation) killer() (pkg, pattern string) {
	pkg, pattern, _ = strings.Cut(m.test, " ")
	return pkg, pattern
}

func root(t *testing.T) string {
	_, here, _, _ := runtime.Caller(0)
	dir, err := filepath.Abs(filepath.Join(filepath.Dir(here), "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// mutants returns the mutated files' contents by name, or what does not apply.
func (m mutation) apply(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range m.edits {
		text, known := files[e.file]
		if !known {
			raw, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s has %d times, not once:\n%s", e.file, n, e.old)
		}
		files[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return files, nil
}

func TestEveryMutationStillApplies(t *testing.T) {
	root, known := root(t), map[string]bool{}
	for _, m := range mutations {
		if _, err := m.apply(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if known[m.name] {
			t.Errorf("%s: there are two of this name", m.name)
		}
		known[m.name] = true
		if pkg, pattern := m.killer(); m.test != "" && !hasTest(t, filepath.Join(root, pkg), pattern) {
			t.Errorf("%s: there is no test %s in %s", m.name, pattern, pkg)
		}
	}
}

// hasTest reports whether the directory's tests have one that the pattern's first level
// names.
func hasTest(t *testing.T, dir, pattern string) bool {
	which := regexp.MustCompile(strings.Split(pattern, "/")[0])
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(raw), -1) {
			if which.MatchString(f[1]) {
				return true
			}
		}
	}
	return false
}

// tries is how often a mutant is tried that was not caught: a test may find that the machine
// stood still, and skip, and the order of goroutines, which no seed decides, may spare one. It
// says so.
const tries = 3

// TestEveryMutantIsCaught builds a test program with one safety rule broken, again and
// again, and expects it to fail: the named test's, if there is one, or this package's.
func TestEveryMutantIsCaught(t *testing.T) {
	if *mutate == "" {
		t.Skip("takes minutes: make mutate")
	}
	which := regexp.MustCompile(*mutate)
	for _, m := range mutations {
		if !which.MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // to compile one package keeps one processor busy
			began := time.Now()
			pkg, pattern := m.killer()
			survived, args := m.test, []string{"-test.v", "-test.run", pattern}
			if m.test == "" {
				pkg, survived = "./agent/simulation", fmt.Sprintf("the named and %d random schedules", *mutateTo)
				args = []string{"-test.run", "^(TestNamed|TestNothingIsServed)", "-brief", "-schedules", fmt.Sprint(*mutateTo)}
			}
			program := build(t, m, pkg, t.TempDir())
			built := time.Since(began)
			var out []byte
			var err error
			try := 0
			for err == nil && try < tries {
				cmd := exec.Command(program, append(args, "-test.failfast", "-test.timeout", "5m")...)
				cmd.Dir = filepath.Join(root(t), pkg)
				out, err = cmd.CombinedOutput()
				try++
			}
			took := time.Since(began).Round(100 * time.Millisecond)
			if err == nil {
				t.Fatalf("%s: survived %s %d times (%v)\n%s", m.rule, survived, try, took, out)
			}
			if try > 1 {
				t.Logf("caught at try %d only: its test does not decide, or the machine stood still", try)
			}
			t.Logf("%s: caught in %v (built in %v): %s", m.rule, took, built.Round(100*time.Millisecond), verdict(string(out)))
		})
	}
}

// verdict is the line that tells what was violated.
func verdict(out string) string {
	for _, line := range []string{`(?m)^ *[0-9.]+s: .*$`, `(?m)^ +\w+_test\.go:\d+: .*$`, `(?m)^panic: .*$`} {
		if m := regexp.MustCompile(line).FindString(out); m != "" {
			return strings.TrimSpace(m)
		}
	}
	return strings.TrimSpace(out[:min(len(out), 400)])
}

// build makes the package's test program with the mutant, without touching the tree.
func build(t *testing.T, m mutation, pkg, dir string) string {
	t.Helper()
	root := root(t)
	files, err := m.apply(root)
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, name)] = to
	}
	raw, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "mutant.test")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-p", "2", "-ldflags=-s -w", "-overlay", list, "-o", program, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s does not build: %v\n%s", m.name, err, out)
	}
	return program
}
