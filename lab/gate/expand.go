package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// expanded is a leg of tests with all names put in.
type expanded struct {
	args, pkgs []string
	patterns   []string // each has to match a test; from the list of the acceptance suite
}

// expand replaces the names in a leg: @realtime are the packages, or the tests, of files named
// *_realtime_test.go; @acceptance the tests of that suite.
func (r *runner) expand(l leg) (x expanded, err error) {
	pkgs, tests, err := r.realTime()
	if err != nil {
		return x, err
	}
	switch {
	case l.pkgs == "@realtime":
		x.pkgs = pkgs
	case l.but == "":
		x.pkgs = fields(l.pkgs)
	default:
		x.pkgs, err = r.packages(l)
	}
	if err != nil {
		return x, err
	}
	for _, a := range l.args {
		switch a {
		case "@realtime":
			a = anchored(tests)
		case "@acceptance":
			if x.patterns, err = acceptance(filepath.Join(r.root, "lab/e2e/acceptance.txt")); err != nil {
				return x, err
			}
			a = anchored(x.patterns)
		}
		x.args = append(x.args, a)
	}
	return x, nil
}

// packages are those of a module without those left out.
func (r *runner) packages(l leg) (kept []string, err error) {
	cmd := exec.Command("go", "list", l.pkgs)
	cmd.Dir = filepath.Join(r.root, l.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	but := regexp.MustCompile(`^holdfast/(lab/)?(` + l.but + `)$`)
	for pkg := range strings.FieldsSeq(string(out)) {
		if !but.MatchString(pkg) {
			kept = append(kept, pkg)
		}
	}
	return kept, nil
}

// realTime are the tests of the root module in files named *_realtime_test.go, and their packages.
// A test of that name elsewhere would be left out with them: that is an error.
func (r *runner) realTime() (pkgs, tests []string, err error) {
	test := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	whole := regexp.MustCompile("^(" + realTimeRoot + ")$")
	where := map[string]string{}
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go"} {
		files, _ := filepath.Glob(filepath.Join(r.root, pattern))
		for _, f := range files {
			rel, _ := filepath.Rel(r.root, filepath.Dir(f))
			if strings.HasPrefix(rel, "lab") || strings.HasPrefix(rel, "dashboards") || whole.MatchString(rel) {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, nil, fmt.Errorf("look for real-time tests: %w", err)
			}
			real := strings.HasSuffix(f, "_realtime_test.go")
			for _, m := range test.FindAllStringSubmatch(string(b), -1) {
				switch {
				case m[1] == "TestMain":
				case real:
					tests = append(tests, m[1])
					pkgs = append(pkgs, "./"+rel)
				default:
					where[m[1]] = f
				}
			}
		}
	}
	slices.Sort(pkgs)
	for _, name := range tests {
		if f := where[name]; f != "" {
			return nil, nil, fmt.Errorf("%s is a real-time test, and also in %s: rename one of them", name, f)
		}
	}
	return slices.Compact(pkgs), tests, nil
}

// acceptance is the list of the suite: a name of a test or row a line.
func acceptance(path string) (names []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the acceptance suite: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			names = append(names, line)
		}
	}
	return names, nil
}

// anchored is the pattern of -run that matches exactly these tests.
func anchored(names []string) string {
	if len(names) == 0 {
		return "^$"
	}
	all := make([]string, len(names))
	for i, name := range names {
		parts := strings.Split(name, "/")
		for j, part := range parts {
			parts[j] = "^" + regexp.QuoteMeta(part) + "$"
		}
		all[i] = strings.Join(parts, "/")
	}
	return strings.Join(all, "|")
}

// unmatched are the patterns that no test has. The rows of a test that is skipped do not run.
func (x expanded) unmatched(all []ended) (names []string) {
	for _, p := range x.patterns {
		if !slices.ContainsFunc(all, func(e ended) bool {
			return within(e.test, p) || e.action == "skip" && e.test != "" && within(p, e.test)
		}) {
			names = append(names, p)
		}
	}
	return names
}

// within says whether a test is another, or a part of it. go test shows spaces as underscores.
func within(test, whole string) bool {
	whole = strings.ReplaceAll(whole, " ", "_")
	return test == whole || strings.HasPrefix(test, whole+"/")
}

// alone is how a failed test is run once more: with the flags of its run, nothing beside it. A
// row of the acceptance suite runs by itself, any other test whole, since its parts may follow
// from one another, and a package as it ran.
func (x expanded) alone(at id) []string {
	if at.test == "" {
		return append([]string{at.pkg}, x.args...)
	}
	name := at.top().test
	for _, p := range x.patterns {
		if within(at.test, p) {
			name = p
		}
	}
	args := []string{at.pkg, "-count", "1", "-parallel", "1", "-run", anchored([]string{name})}
	for i := 0; i < len(x.args); i++ {
		switch x.args[i] {
		case "-run", "-skip", "-p", "-parallel":
			i++
		default:
			args = append(args, x.args[i]) // behind the package, since go test knows not all of them
		}
	}
	return args
}
