// Command testcount runs tests, makes their output readable and counts them over several
// runs.
//
//	testcount -total FILE -leg NAME [-again PACKAGES] -- ARG…   runs go test with ARG… and adds to FILE
//	testcount -total FILE -fail NAME [-why LOG]                 adds a failed step that is no test
//	testcount -total FILE -alone NAME [-why LOG]                notes a step that failed, and passed alone
//	testcount -total FILE -add PART                             adds the counts of another file
//	testcount -total FILE -sum                                  prints: N passed, M failed, K skipped
//
// A test with subtests is not counted beside them, unless it failed and none of
// them did. A package that failed without a failed test (it did not build, it
// panicked, it ran out of time) counts as one failure, and so does a run that says
// nothing at all. So does a package whose process ended before its tests did, beside the
// tests of it that failed before. Nothing else is counted.
//
// A test of a package that matches -again, if it failed without a finding, is run once
// more, alone; see candidates for why. Such a test counts once, as it came out then, and
// -sum lists it.
//
// The exit code is 1 if this run, or with -sum any run, had a failed test.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

func main() {
	var c command
	flag.StringVar(&c.total, "total", "", "file in which the counts add up; required")
	flag.StringVar(&c.leg, "leg", "", "name of this run, for the failures")
	flag.StringVar(&c.again, "again", "", "packages, as a regular expression, of which a failed test is run once more, alone")
	flag.StringVar(&c.fail, "fail", "", "name of a step that failed")
	flag.StringVar(&c.alone, "alone", "", "name of a step that passed only when nothing ran beside it")
	flag.StringVar(&c.why, "why", "", "file with the output of the step that failed")
	flag.StringVar(&c.part, "add", "", "file with counts to be added; one that is not there has none")
	flag.BoolVar(&c.sum, "sum", false, "print the sum of all runs")
	flag.Parse()
	c.run = func(args ...string) (*outcome, error) { return goTest(os.Stdout, args...) }
	failed, err := c.do(os.Stdout, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

// tally is what the file holds.
type tally struct {
	Passed   int    `json:"passed"`
	Failed   int    `json:"failed"`
	Skipped  int    `json:"skipped"`
	Failures []note `json:"failures,omitempty"`
	Alone    []note `json:"alone,omitempty"` // passed, but only alone
}

// note is a test or a step, and the lines that say why it failed.
type note struct {
	Name  string   `json:"name"`
	Lines []string `json:"lines,omitempty"`
}

func (t *tally) fail(name string, lines []string) {
	t.Failed++
	t.Failures = append(t.Failures, note{name, lines})
}

// add counts a run of a leg in.
func (t *tally) add(leg string, now tally) {
	t.Passed, t.Failed, t.Skipped = t.Passed+now.Passed, t.Failed+now.Failed, t.Skipped+now.Skipped
	of := func(notes []note) []note {
		for i := range notes {
			if leg != "" {
				notes[i].Name += " (" + leg + ")"
			}
		}
		return notes
	}
	t.Failures = append(t.Failures, of(now.Failures)...)
	t.Alone = append(t.Alone, of(now.Alone)...)
}

// print says what failed, and then the counts in the last line.
func (t *tally) print(out io.Writer) {
	for _, n := range t.Alone {
		fmt.Fprintf(out, "passed only alone: %s; the first time it said:\n", n.Name)
		n.print(out)
	}
	for _, n := range t.Failures {
		fmt.Fprintf(out, "--- FAIL: %s\n", n.Name)
		n.print(out)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", t.Passed, t.Failed, t.Skipped)
}

func (n note) print(out io.Writer) {
	for _, line := range n.Lines {
		fmt.Fprintln(out, "    |", strings.TrimSpace(line))
	}
}

// command is one call of the program.
type command struct {
	total, leg, again, fail, alone, why, part string
	sum                                       bool
	run                                       func(args ...string) (*outcome, error)
}

func (c command) do(out io.Writer, args []string) (failed bool, err error) {
	if c.total == "" {
		return false, errors.New("-total is required: name a file")
	}
	all, err := read(c.total)
	if err != nil {
		return false, err
	}
	switch {
	case c.sum:
		all.print(out)
		return all.Failed > 0, nil
	case c.part != "":
		part, err := read(c.part)
		if err != nil {
			return false, err
		}
		all.add("", part)
		return false, write(c.total, all)
	case c.alone != "":
		all.Alone = append(all.Alone, note{c.alone, lastOf(c.why)})
		return false, write(c.total, all)
	case c.fail != "":
		var now tally
		now.fail(c.fail, lastOf(c.why))
		all.add("", now)
		return false, write(c.total, all)
	}
	now, err := c.test(out, args)
	if err != nil {
		return false, err
	}
	all.add(c.leg, now)
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", c.leg, now.Passed, now.Failed, now.Skipped)
	return now.Failed > 0, write(c.total, all)
}

func (c command) test(out io.Writer, args []string) (tally, error) {
	packages, err := regexp.Compile(c.again)
	if err != nil {
		return tally{}, fmt.Errorf("-again %q: %w", c.again, err)
	}
	o, err := c.run(args...)
	if err != nil {
		return tally{}, err
	}
	var alone []note
	if c.again != "" {
		alone, err = o.runAgain(out, packages, func(top id) (*outcome, error) { return c.run(onlyTest(args, top)...) })
		if err != nil {
			return tally{}, err
		}
	}
	now := o.tally()
	now.Alone = alone
	if o.silent {
		now.fail("go test said nothing", nil)
	}
	return now, nil
}

// lastOf is the end of a log, as far as it can be read.
func lastOf(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return essence([]string{string(b)})
}

func read(path string) (tally, error) {
	var t tally
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("read counts: %w", err)
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, fmt.Errorf("read counts in %s: %w", path, err)
	}
	return t, nil
}

func write(path string, t tally) error {
	b, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("write counts: %w", err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return fmt.Errorf("write counts: %w", err)
	}
	return nil
}
