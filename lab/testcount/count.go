package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"holdfast/standstill"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// id names a test, or a package if test is empty.
type id struct{ pkg, test string }

func (i id) String() string { return strings.TrimSpace(i.test + " " + i.pkg) }

// top is the test that it is a part of, itself if it is no subtest.
func (i id) top() id {
	i.test, _, _ = strings.Cut(i.test, "/")
	return i
}

// above is the tests that it is a part of, the nearest first.
func (i id) above() (all []id) {
	for {
		cut := strings.LastIndexByte(i.test, '/')
		if cut < 0 {
			return all
		}
		i.test = i.test[:cut]
		all = append(all, i)
	}
}

// outcome is what one run came to.
type outcome struct {
	silent   bool // nothing was read
	results  map[id]string
	failures []failed        // those that count
	excused  map[id][]string // what tests said of which some part could not be judged
}

// failed is a test that failed, or a package if test is empty, with all that it printed.
type failed struct {
	id
	output []string
}

// count reads one run to its end and prints failures with their output and a line for
// each package.
func count(in io.Reader, out io.Writer) (*outcome, error) {
	o := &outcome{silent: true, results: map[id]string{}, excused: map[id][]string{}}
	output := map[id][]string{}
	build := map[string][]string{}
	brokenBelow := map[id]bool{} // a failure was counted here or below

	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(out, line) // the go command's own words
			} else {
				o.silent = false
				at := id{e.Package, e.Test}
				switch e.Action {
				case "output":
					output[at] = append(output[at], e.Output)
				case "build-output":
					build[e.ImportPath] = append(build[e.ImportPath], e.Output)
				case "pass", "fail", "skip":
					if e.Test == "" {
						rest := o.notEnded(at.pkg, output)
						lines := slices.Concat(build[e.FailedBuild], rest, output[at])
						o.addPackage(out, e, lines, brokenBelow[at] && !o.endedInDisorder(at.pkg, rest, output[at]))
						break
					}
					o.results[at] = e.Action
					switch {
					case e.Action == "fail":
						o.addFailure(out, at, output[at], brokenBelow)
					case e.Action == "skip" && excuse.MatchString(strings.Join(output[at], "")):
						fmt.Fprintf(out, "\n=== unjudged %s\n%s", at, strings.Join(output[at], ""))
						o.excused[at.top()] = append(o.excused[at.top()], output[at]...)
					}
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return o, fmt.Errorf("read test output: %w", err)
		}
	}
	return o, nil
}

// notEnded is what the tests printed in which the process ended.
func (o *outcome) notEnded(pkg string, output map[id][]string) (lines []string) {
	for _, at := range slices.SortedFunc(maps.Keys(output), func(a, b id) int { return strings.Compare(a.test, b.test) }) {
		if at.pkg == pkg && at.test != "" && o.results[at] == "" {
			lines = append(lines, output[at]...)
		}
	}
	return lines
}

// finding is a data race, whose report may stand with no test, or a crash.
var finding = regexp.MustCompile(`(?m)WARNING: DATA RACE|^\s*(panic|fatal error): `)

// crashed is the finding with which the process ends.
var crashed = regexp.MustCompile(`(?m)^\s*(panic|fatal error): `)

// excuse is the reason of a test that is skipped because it could not be judged.
var excuse = regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: ` + standstill.Word + `\b`)

// endedInDisorder says whether a package failed for more than its failed tests: its process
// ended within a test (out of time, os.Exit, a crash), and those after it never ran, or what
// belongs to no test has a finding. A test that crashed says so itself, so that the package
// is not counted beside it.
func (o *outcome) endedInDisorder(pkg string, rest, own []string) bool {
	if len(rest) == 0 && !finding.MatchString(strings.Join(own, "")) {
		return false
	}
	return !slices.ContainsFunc(o.failures, func(f failed) bool {
		return f.pkg == pkg && crashed.MatchString(strings.Join(f.output, ""))
	})
}

// addFailure counts a failed test, unless a subtest of it already was counted.
// Subtests end before their parents, and so come first.
func (o *outcome) addFailure(out io.Writer, at id, output []string, brokenBelow map[id]bool) {
	fmt.Fprintf(out, "\n=== FAIL %s\n%s", at, strings.Join(output, ""))
	if !brokenBelow[at] {
		o.failures = append(o.failures, failed{at, output})
	}
	brokenBelow[id{at.pkg, ""}] = true
	for _, above := range at.above() {
		brokenBelow[above] = true
	}
}

// addPackage prints how a package ended, and counts it if it failed by itself.
func (o *outcome) addPackage(out io.Writer, e event, output []string, explained bool) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(out, "ok      %-45s %6.1fs\n", e.Package, e.Elapsed)
	case "skip":
		fmt.Fprintf(out, "none    %-45s\n", e.Package)
	case "fail":
		fmt.Fprintf(out, "FAIL    %-45s %6.1fs\n", e.Package, e.Elapsed)
		if !explained {
			fmt.Fprint(out, strings.Join(output, ""))
			o.failures = append(o.failures, failed{id{e.Package, ""}, output})
		}
	}
}

// parts counts those that passed and were skipped among tests, each once.
func (o *outcome) parts(among func(id) bool) (passed, skipped int) {
	parents := map[id]bool{}
	for at := range o.results {
		for _, above := range at.above() {
			parents[above] = true
		}
	}
	for at, result := range o.results {
		switch {
		case !among(at) || result == "fail" || parents[at]:
		case result == "pass":
			passed++
		case result == "skip":
			skipped++
		}
	}
	return passed, skipped
}

// tally counts every test once.
func (o *outcome) tally() tally {
	var t tally
	t.Passed, t.Skipped = o.parts(func(id) bool { return true })
	o.unjudged(&t)
	for _, f := range o.failures {
		t.fail(f.String(), essence(f.output))
	}
	slices.SortFunc(t.Failures, func(a, b note) int { return strings.Compare(a.Name, b.Name) })
	return t
}
