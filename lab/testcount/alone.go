package main

import (
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// claim is a test, or a step that is none, that said that it could not be judged: the machine
// stood still. It is not counted before it has been run again, alone, and then as it came
// out. A failure never becomes one: whatever failed once has failed.
type claim struct {
	note
	Leg     string   `json:"leg,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	Args    []string `json:"args,omitempty"` // of go test
	Package string   `json:"package,omitempty"`
	Test    string   `json:"test,omitempty"`
	Passed  int      `json:"passed,omitempty"` // of its parts, in the last run
	Skipped int      `json:"skipped,omitempty"`
	Final   bool     `json:"final,omitempty"` // it has been run alone
}

// judge runs what is unjudged again: each package by itself, one test at a time. What fails
// now fails, and what is unjudged again stays so.
func (t *tally) judge(out io.Writer, run runner) error {
	claims := t.Unjudged
	t.Unjudged = nil
	for len(claims) > 0 {
		first := claims[0]
		if first.Final {
			t.Unjudged, claims = append(t.Unjudged, first), claims[1:]
			continue
		}
		isBeside := func(c claim) bool {
			return !c.Final && c.Dir == first.Dir && c.Package == first.Package && slices.Equal(c.Args, first.Args)
		}
		var these []string
		for _, c := range claims {
			if isBeside(c) {
				these = append(these, c.Test)
			}
		}
		claims = slices.DeleteFunc(claims, isBeside)
		fmt.Fprintf(out, "\n=== ALONE %s %s\n", strings.Join(these, " "), first.Package)
		o, err := run(first.Dir, alone(first.Args, these, first.Package)...)
		if err != nil {
			return err
		}
		now := o.tally()
		for i := range now.Unjudged {
			now.Unjudged[i].Final = true
		}
		for _, test := range these {
			if at := (id{first.Package, test}); o.results[at] == "" && len(now.Failures) == 0 {
				now.fail(at.String()+" did not run again", nil)
			}
		}
		t.add(first.Leg, now)
	}
	return nil
}

// alone is the arguments with which these tests run alone: the flags of the run, without its
// packages.
func alone(args, tests []string, pkg string) []string {
	flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "holdfast")
	})
	quoted := make([]string, len(tests))
	for i, test := range tests {
		quoted[i] = regexp.QuoteMeta(test)
	}
	return append(flags, "-count", "1", "-p", "1", "-parallel", "1", "-run", "^("+strings.Join(quoted, "|")+")$", pkg)
}

// unjudged takes the tests of this run out of the count that could not be judged, with all
// their parts, unless one of those failed.
func (o *outcome) unjudged(t *tally) {
	for _, top := range slices.SortedFunc(maps.Keys(o.excused), func(a, b id) int { return strings.Compare(a.String(), b.String()) }) {
		if o.results[top] == "fail" || slices.ContainsFunc(o.failures, func(f failed) bool { return f.top() == top }) {
			continue
		}
		c := claim{note: note{top.String(), essence(o.excused[top])}, Package: top.pkg, Test: top.test}
		c.Passed, c.Skipped = o.parts(func(at id) bool { return at.top() == top })
		t.Passed, t.Skipped = t.Passed-c.Passed, t.Skipped-c.Skipped
		t.Unjudged = append(t.Unjudged, c)
	}
}

// runner runs go test with the arguments in a directory, and counts it.
type runner func(dir string, args ...string) (*outcome, error)

// goTest is the runner. The exit code of go test says nothing that its output does not.
func goTest(out io.Writer, dir string, args ...string) (*outcome, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	o, err := count(pipe, out)
	ended := cmd.Wait()
	if err == nil && ended != nil && len(o.failures) == 0 && !o.silent {
		o.failures = append(o.failures, failed{id{pkg: "go test"}, []string{ended.Error() + "\n"}})
	}
	return o, err
}
