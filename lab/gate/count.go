package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64 // seconds
}

// id names a test, or a package if test is empty.
type id struct{ pkg, test string }

func (i id) String() string { return strings.TrimSpace(i.test + " " + i.pkg) }

// top is the test that it is a part of.
func (i id) top() id { i.test, _, _ = strings.Cut(i.test, "/"); return i }

// ended is how a test ended, or a package.
type ended struct {
	id
	action  string // pass, fail, skip
	seconds float64
	output  string
	parent  bool // has subtests: counts only where none of them says more
	halted  bool // a package whose process ended before its tests did
}

// failure is a test, a package or a step that failed.
type failure struct {
	id
	output string
	repeat string // the command that does it again
}

// tally is what runs come to.
type tally struct {
	passed, skipped int
	failures        []failure
	flaky           []string // passed when run once more, alone
	leftOut         []string // what the machine lacks for it
}

func (t *tally) add(u tally) {
	t.passed, t.skipped = t.passed+u.passed, t.skipped+u.skipped
	t.failures = append(t.failures, u.failures...)
	t.flaky = append(t.flaky, u.flaky...)
	t.leftOut = append(t.leftOut, u.leftOut...)
}

func (t *tally) counts() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, len(t.failures), t.skipped)
}

// read takes a stream of go test -json in, keeps it, and prints failures whole and a line for
// each package. It returns everything that ended, parts before the whole.
func read(stream io.Reader, kept, out io.Writer) (all []ended, err error) {
	output, build, parents, running := map[id]*strings.Builder{}, map[string]string{}, map[id]bool{}, map[id]bool{}
	of := func(at id) *strings.Builder {
		if output[at] == nil {
			output[at] = &strings.Builder{}
		}
		return output[at]
	}
	lines := bufio.NewReader(io.TeeReader(stream, kept))
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		var e event
		if line == "" {
			continue
		}
		if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
			fmt.Fprint(out, line) // the go command's own words
			continue
		}
		at := id{e.Package, e.Test}
		switch e.Action {
		case "run":
			running[at] = true
			if cut := strings.LastIndexByte(e.Test, '/'); cut >= 0 {
				parents[id{e.Package, e.Test[:cut]}] = true
			}
		case "output":
			of(at).WriteString(e.Output)
		case "build-output":
			build[e.ImportPath] += e.Output
		case "pass", "fail", "skip":
			o := ended{id: at, action: e.Action, seconds: e.Elapsed, output: build[e.FailedBuild] + of(at).String(), parent: parents[at]}
			delete(output, at)
			delete(running, at)
			if e.Test == "" {
				for test := range running { // with what they said in which the process ended
					if test.pkg == e.Package {
						o.halted, o.action = true, "fail"
						o.output += fmt.Sprintf("the process ended in %s\n%s", test.test, of(test))
						delete(running, test)
					}
				}
				fmt.Fprintf(out, "%-7s %-45s %6.1fs\n", e.Action, e.Package, e.Elapsed)
			} else if e.Action == "fail" || saidFlaky.MatchString(o.output) {
				fmt.Fprintf(out, "\n=== %s %s\n%s\n", e.Action, at, tail(o.output, 200))
			}
			all = append(all, o)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return all, err
}

// judge counts what ended. A test with parts, or a package, counts only where it failed and
// nothing in it did, or where it has something of its own to say that no second run excuses.
func judge(all []ended) (t tally) {
	below := map[id]bool{} // a failure was counted here or below
	for _, e := range all {
		switch {
		case e.action == "fail" && e.test == "":
			if !below[e.id] || e.halted || final.MatchString(e.output) {
				t.failures = append(t.failures, failure{id: e.id, output: e.output})
			}
		case e.action == "fail":
			if !below[e.id] || final.MatchString(e.output) {
				t.failures = append(t.failures, failure{id: e.id, output: e.output})
			}
			for at := e.id; at.test != ""; {
				cut := max(0, strings.LastIndexByte(at.test, '/'))
				at.test = at.test[:cut]
				below[at] = true
			}
		case e.test == "" || e.parent:
		case e.action == "pass":
			t.passed++
		case e.action == "skip":
			t.skipped++
		}
		if e.action == "pass" {
			for _, said := range saidFlaky.FindAllString(e.output, -1) {
				t.flaky = append(t.flaky, e.id.String()+": "+said)
			}
		}
	}
	return t
}

var (
	// disorder is what a process prints that ends before its tests do, or a data race.
	disorder = regexp.MustCompile(`(?m)WARNING: DATA RACE|race detected|^\s*(panic|fatal error): `)
	// final is what no second run excuses.
	final = regexp.MustCompile(disorder.String() + `|VIOLATION`)
	// ownEnd is what the race detector prints that ends by a fault of its own and found no race:
	// with testing/synctest it does so now and then (golang/go issue 78156, open with Go 1.26).
	ownEnd = regexp.MustCompile(`ThreadSanitizer: CHECK failed`)
	// saidFlaky is a test's own word that something failed once and not again.
	saidFlaky = regexp.MustCompile(`FLAKY: .*`)
)

const (
	most  = 6   // so many failures are no chance, and are printed at the end
	width = 300 // bytes of a line at the end
)

// print says what failed, and then the counts in the last line; all within 40 lines.
func (t *tally) print(out io.Writer) {
	for _, l := range t.leftOut {
		fmt.Fprintln(out, "left out:", l)
	}
	for _, f := range t.flaky {
		fmt.Fprintln(out, "flaky:", f)
	}
	shown := t.failures[:min(len(t.failures), most)]
	for _, f := range shown {
		fmt.Fprintf(out, "--- FAIL: %s\n", f.id)
		for _, line := range essence(f.output, 24/len(shown)) {
			fmt.Fprintln(out, "    |", line)
		}
		if f.repeat != "" {
			fmt.Fprintln(out, "    again:", f.repeat)
		}
	}
	if more := len(t.failures) - len(shown); more > 0 {
		fmt.Fprintf(out, "and %d more, above\n", more)
	}
	fmt.Fprintln(out, t.counts())
}

var (
	// logs begin the logs of a lab's processes, which come after what failed.
	logs = regexp.MustCompile(`^\s+lab\.go:\d+: ----`)
	// dull is what go test says about the course of a test.
	dull = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME)\b|--- (FAIL|PASS|SKIP): |$)`)
)

// essence is the few lines of a failure that say what failed: the first of a crash, else the
// last before the logs.
func essence(output string, most int) []string {
	var lines []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if logs.MatchString(" " + line) {
			break
		}
		if dull.MatchString(line) {
			continue
		}
		if len(line) > width {
			line = line[:width] + "…"
		}
		lines = append(lines, line)
	}
	if at := slices.IndexFunc(lines, disorder.MatchString); at >= 0 {
		return lines[at:min(len(lines), at+most)]
	}
	return lines[max(0, len(lines)-most):]
}

func tail(s string, most int) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}
