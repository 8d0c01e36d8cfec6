package main

import (
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// mostAgain is how many tests of a run may be run once more. Where more fail, it is not
// the machine.
const mostAgain = 6

// finding is what no second run takes back: a safety claim that was seen broken (the tests
// of the lab say VIOLATION), a data race (its report may stand with another test that ran
// at that moment), a crash. It came out by chance, and it is true.
var finding = regexp.MustCompile(`(?m)\bVIOLATION: |WARNING: DATA RACE|race detected during execution of test|^\s*(panic|fatal error): `)

// crashed is the finding with which the process ends.
var crashed = regexp.MustCompile(`(?m)^\s*(panic|fatal error): `)

// candidates is the tests that failed and may be run once more: those of packages that
// match, unless they found something.
//
// Why at all: these tests start real processes and measure real time, many at once. On a
// machine that stands still for seconds a lease runs out, a broker is not ready in its
// minute; that says nothing about the program, and a run of an hour is lost over it. A test
// that passes alone has shown its claim. It counts as passed, and it is listed with what it
// said the first time, so that one that needs this again and again is seen.
func (o *outcome) candidates(packages *regexp.Regexp) (tops []id, refused string) {
	no := map[id]bool{}
	for _, f := range o.failures {
		top := f.top()
		if f.test == "" || !packages.MatchString(f.pkg) || o.found[top] {
			no[top] = true
		}
		if !slices.Contains(tops, top) {
			tops = append(tops, top)
		}
	}
	tops = slices.DeleteFunc(tops, func(top id) bool { return no[top] })
	if len(tops) > mostAgain {
		return nil, fmt.Sprintf("%d tests failed: too many to blame the machine, none is run again", len(tops))
	}
	return tops, ""
}

// runAgain runs the candidates one at a time. What passes alone replaces what failed, and
// is noted.
func (o *outcome) runAgain(out io.Writer, packages *regexp.Regexp, run func(top id) (*outcome, error)) (alone []note, err error) {
	tops, refused := o.candidates(packages)
	if refused != "" {
		fmt.Fprintln(out, refused)
	}
	for _, top := range tops {
		fmt.Fprintf(out, "\n=== AGAIN, ALONE %s\n", top)
		again, err := run(top)
		if err != nil {
			return alone, err
		}
		if len(again.failures) > 0 || again.found[top] || again.results[top] != "pass" {
			continue // what failed stays
		}
		var first []string
		for _, f := range o.failures {
			if f.top() == top {
				first = append(first, essence(f.output)...)
			}
		}
		o.replace(top, again)
		alone = append(alone, note{top.String(), first[:min(len(first), mostLines)]})
	}
	return alone, nil
}

// goTest runs go test with the arguments and counts it. Its exit code says nothing that
// its output does not.
func goTest(out io.Writer, args ...string) (*outcome, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
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

// onlyTest is the arguments with which one test runs alone: the flags of the run, without
// its packages.
func onlyTest(args []string, top id) []string {
	flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "holdfast")
	})
	return append(flags, "-count", "1", "-parallel", "1", "-run", "^"+regexp.QuoteMeta(top.test)+"$", top.pkg)
}
