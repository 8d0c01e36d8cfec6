// Command mutate breaks each decision of the pure packages and each guard of a transaction on
// purpose, one at a time, and expects the package's own tests to fail: each row of a table left out
// and swapped with the next, each comparison turned and moved by one, each guard always true; in
// recovery/topics also each condition left out of those that it stands with.
//
// All mutants of a package are in one test program, behind a switch, so a package is compiled once.
// What survives is either listed in survivors.txt, with why, or an error. A mutant that the tests
// hang on is caught.
//
// Not found: a rule whose breakage is no such edit; agent/simulation has snippets for those, and
// mutations.md says of each rule what notices its breakage.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/lab/harness"
)

// ground is a package whose decisions are broken, and whose tests must notice.
type ground struct {
	dir   string // below the root
	files string // which of its files, a regular expression
	plant func(f *file)
	// tests are tried in turn until one fails: what is fast and finds most first.
	tests []tests
}

// tests are some of a package.
type tests struct{ dir, flag string }

var grounds = []ground{
	{"recovery", ".", (*file).decisions, []tests{{"recovery", "-test.skip=^(TestFleets|TestOneOfAHundred)|Quoted"}, {"recovery", "-test.run=^(TestFleets|TestOneOfAHundred)"}}},
	{"recovery/moves", ".", (*file).decisions, []tests{{"recovery/moves", "-test.skip=^TestNoSchedule"}, {"recovery/moves", "-test.run=^TestNoSchedule"}}},
	{"recovery/topics", ".", (*file).conditions, []tests{{"recovery/topics", "-test.skip=^(TestAHundredThousand|TestNoTopicIsServedByTwo|TestCountsAlways)"}, {"recovery/topics", "-test.run=^(TestNoTopicIsServedByTwo|TestCountsAlways)"}}},
	{"agent/lease", ".", (*file).decisions, []tests{{"agent/lease", "-test.skip=^(TestNoScheduleMakes|TestWhatACut|TestOneBlackHole)"}}},
	{"cluster", ".", (*file).guards, []tests{{"lab/clustertest", "-test.run=^TestEachGuard"}, {"cluster", "-test.short"}, {"lab/clustertest", "-test.short"}}},
}

const (
	// each is the longest time for one mutant.
	each = time.Minute
	// hangs is how many times as long as usual the processors work for tests that hang.
	hangs = 5
)

//go:embed survivors.txt
var explained string

func main() {
	only := flag.String("run", "", "only mutants whose \"file: text\" matches")
	flag.Parse()
	if err := run(context.Background(), *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	which, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	excused := map[string]bool{}
	for line := range strings.Lines(explained) {
		if text, _, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			excused[text] = false
		}
	}
	var all, caught, survived int
	for _, g := range grounds {
		began := time.Now()
		left, n, err := g.run(ctx, root, which)
		if err != nil {
			return fmt.Errorf("%s: %w", g.dir, err)
		}
		for _, m := range left {
			if !excuse(excused, m.text) {
				survived++
				fmt.Printf("SURVIVED %s (line %d)\n", m.text, m.line)
			}
		}
		fmt.Printf("%s: %d of %d mutants caught in %v\n", g.dir, n-len(left), n, time.Since(began).Round(time.Second))
		all, caught = all+n, caught+n-len(left)
	}
	for text, met := range excused {
		if !met && only == "" {
			survived++
			fmt.Printf("CAUGHT OR GONE, but listed in survivors.txt: %s\n", text)
		}
	}
	fmt.Printf("%d of %d mutants caught\n", caught, all)
	if survived > 0 {
		return fmt.Errorf("%d mutants are neither caught nor explained in survivors.txt", survived)
	}
	return nil
}

// excuse finds the line of a survivor, in which one * stands for anything.
func excuse(excused map[string]bool, text string) bool {
	for line := range excused {
		from, to, wild := strings.Cut(line, "*")
		if line == text || wild && strings.HasPrefix(text, from) && strings.HasSuffix(text, to) {
			excused[line] = true
			return true
		}
	}
	return false
}

// run returns the mutants that the tests of the package did not notice.
func (g ground) run(ctx context.Context, root string, which *regexp.Regexp) (left []mutant, n int, err error) {
	dir, err := os.MkdirTemp("", "mutate-*")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	mutants, err := g.overlay(root, dir)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range mutants {
		if which.MatchString(m.text) {
			n++
		}
	}
	if n == 0 {
		return nil, 0, nil
	}
	for _, t := range g.tests {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", t.program(dir), ".")
		cmd.Dir = filepath.Join(root, t.dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, 0, fmt.Errorf("the mutants do not build: %w\n%s", err, out)
		}
	}
	work := each // how long the processors may work for the tests
	passes := func(id int) (out string, worked time.Duration, ok bool) {
		for _, t := range g.tests {
			ctx, cancel := context.WithTimeout(ctx, each)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(`ulimit -t %.0f; exec "$@"`, math.Ceil(work.Seconds())), "sh", t.program(dir), t.flag, "-test.failfast", "-test.timeout", each.String())
			cmd.Dir, cmd.Env = filepath.Join(root, t.dir), append(os.Environ(), fmt.Sprintf("HOLDFAST_MUTANT=%d", id))
			if out, err := cmd.CombinedOutput(); err != nil {
				return string(out), 0, false
			}
			worked += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		return "", worked, true
	}
	out, worked, ok := passes(-1)
	if !ok {
		return nil, 0, fmt.Errorf("the tests fail without any mutant:\n%s", out)
	}
	work = min(each, time.Second+hangs*worked)
	lived := make([]atomic.Bool, len(mutants))
	queue := make(chan int)
	var crew sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		crew.Go(func() {
			for id := range queue {
				_, _, ok := passes(id)
				lived[id].Store(ok)
			}
		})
	}
	for id, m := range mutants {
		if which.MatchString(m.text) {
			queue <- id
		}
	}
	close(queue)
	crew.Wait()
	for id, m := range mutants {
		if lived[id].Load() {
			left = append(left, m)
		}
	}
	return left, n, nil
}

// program is the file of the tests with all mutants in them.
func (t tests) program(dir string) string {
	return filepath.Join(dir, strings.ReplaceAll(t.dir, "/", "-")+".test")
}

// overlay writes the package's files with all mutants in them, and the overlay that has the compiler take them.
func (g ground) overlay(root, dir string) ([]mutant, error) {
	names, err := filepath.Glob(filepath.Join(root, g.dir, "*.go"))
	if err != nil {
		return nil, err
	}
	files := regexp.MustCompile(g.files)
	var mutants []mutant
	replace, pkg := map[string]string{}, ""
	put := func(name string, text []byte) error {
		to := filepath.Join(dir, filepath.Base(name))
		replace[name] = to
		return os.WriteFile(to, text, 0o600)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || !files.MatchString(filepath.Base(name)) {
			continue
		}
		f, err := parse(name, g.dir, len(mutants))
		if err != nil {
			return nil, err
		}
		g.plant(f)
		mutants, pkg = append(mutants, f.mutants...), f.tree.Name.Name
		if err := put(name, f.planted()); err != nil {
			return nil, err
		}
	}
	if err := put(filepath.Join(root, g.dir, "zz_mutant.go"), fmt.Appendf(nil, switching, pkg)); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	return mutants, os.WriteFile(filepath.Join(dir, "overlay.json"), raw, 0o600)
}

// switching is what each package with mutants has in it.
const switching = `package %s

import (
	"os"
	"strconv"
)

var theMutant = func() int {
	if id, err := strconv.Atoi(os.Getenv("HOLDFAST_MUTANT")); err == nil {
		return id
	}
	return -1
}()

// mutated reports whether that mutant is the one that is tried.
func mutated(id int) bool { return theMutant == id }

// mutatedRows leaves row id-first out, or swaps row id-first-len(rows) with the next.
func mutatedRows[T any](first int, rows []T) []T {
	switch i := theMutant - first; {
	case i < 0 || i >= 2*len(rows)-1:
		return rows
	case i < len(rows):
		return append(append([]T{}, rows[:i]...), rows[i+1:]...)
	default:
		i -= len(rows)
		rows = append([]T{}, rows...)
		rows[i], rows[i+1] = rows[i+1], rows[i]
		return rows
	}
}
`
