package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
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

// count reads one run to its end, prints failures with their output and a line for
// each package, and returns the counts.
func count(in io.Reader, out io.Writer) (tally, error) {
	t := tally{silent: true}
	output := map[id][]string{}
	build := map[string][]string{}
	results := map[id]string{}
	parents := map[id]bool{}
	brokenBelow := map[id]bool{} // a failure was counted here or below

	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(out, line) // the go command's own words
			} else {
				t.silent = false
				at := id{e.Package, e.Test}
				switch e.Action {
				case "output":
					output[at] = append(output[at], e.Output)
				case "build-output":
					build[e.ImportPath] = append(build[e.ImportPath], e.Output)
				case "pass", "fail", "skip":
					if e.Test == "" {
						lines := output[at]
						for other, its := range output { // of tests in which the process ended
							if other.pkg == at.pkg && other.test != "" && results[other] == "" {
								lines = append(its, lines...)
							}
						}
						t.addPackage(out, e, lines, build[e.FailedBuild], brokenBelow[at])
						break
					}
					results[at] = e.Action
					above := at
					for {
						i := strings.LastIndexByte(above.test, '/')
						if i < 0 {
							break
						}
						above.test = above.test[:i]
						parents[above] = true
					}
					if e.Action == "fail" {
						t.addFailure(out, at, output[at], brokenBelow)
					}
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return t, fmt.Errorf("read test output: %w", err)
		}
	}
	for at, result := range results {
		switch {
		case result == "fail" || parents[at]:
		case result == "pass":
			t.Passed++
		case result == "skip":
			t.Skipped++
		}
	}
	slices.Sort(t.Failures)
	return t, nil
}

// addFailure counts a failed test, unless a subtest of it already was counted.
// Subtests end before their parents, and so come first.
func (t *tally) addFailure(out io.Writer, at id, output []string, brokenBelow map[id]bool) {
	fmt.Fprintf(out, "\n=== FAILED %s %s\n%s", at.pkg, at.test, strings.Join(output, ""))
	if !brokenBelow[at] {
		t.Failed++
		t.Failures = append(t.Failures, at.pkg+" "+at.test)
	}
	brokenBelow[id{at.pkg, ""}] = true
	for above := at; ; {
		i := strings.LastIndexByte(above.test, '/')
		if i < 0 {
			return
		}
		above.test = above.test[:i]
		brokenBelow[above] = true
	}
}

// addPackage prints how a package ended, and counts it if it failed by itself.
func (t *tally) addPackage(out io.Writer, e event, output, build []string, explained bool) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(out, "ok      %-45s %6.1fs\n", e.Package, e.Elapsed)
	case "skip":
		fmt.Fprintf(out, "none    %-45s\n", e.Package)
	case "fail":
		fmt.Fprintf(out, "FAILED  %-45s %6.1fs\n", e.Package, e.Elapsed)
		if !explained {
			fmt.Fprint(out, strings.Join(build, ""), strings.Join(output, ""))
			t.Failed++
			t.Failures = append(t.Failures, e.Package)
		}
	}
}
