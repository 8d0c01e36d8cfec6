// Command testcount runs tests, makes their output readable and counts them over several
// runs.
//
//	testcount -total FILE -leg NAME -- ARG…        runs go test with ARG… and adds to FILE
//	testcount -total FILE -judge                   runs again, alone, what could not be judged
//	testcount -total FILE -fail NAME [-why LOG]    adds a failed step that is no test
//	testcount -total FILE -unjudged NAME [-why LOG]  adds one that could not be judged, alone either
//	testcount -total FILE -add PART                adds the counts of another file
//	testcount -total FILE -sum                     prints: N passed, M failed, K skipped
//
// A test with subtests is not counted beside them, unless it failed and none of
// them did. A package that failed without a failed test (it did not build, it
// panicked, it ran out of time) counts as one failure, and so does a run that says
// nothing at all. So does a package whose process ended before its tests did, beside the
// tests of it that failed before. Nothing else is counted.
//
// No failure is ever run again. A test that was skipped with the word UNJUDGED (package
// standstill: the machine stood still for too long to judge a claim about time) is, by
// -judge, and counts once, as it comes out then. If it is unjudged again, it counts as
// skipped, and -judge and -sum list it.
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
	"strings"

	"holdfast/standstill"
)

func main() {
	var c command
	flag.StringVar(&c.total, "total", "", "file in which the counts add up; required")
	flag.StringVar(&c.leg, "leg", "", "name of this run, for the failures")
	flag.BoolVar(&c.judge, "judge", false, "run again, one at a time, the tests that could not be judged")
	flag.StringVar(&c.fail, "fail", "", "name of a step that failed")
	flag.StringVar(&c.unjudged, "unjudged", "", "name of a step that could not be judged when nothing ran beside it")
	flag.StringVar(&c.why, "why", "", "file with the output of that step")
	flag.StringVar(&c.part, "add", "", "file with counts to be added; one that is not there has none")
	flag.BoolVar(&c.sum, "sum", false, "print the sum of all runs")
	flag.Parse()
	c.run = func(dir string, args ...string) (*outcome, error) { return goTest(os.Stdout, dir, args...) }
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
	Passed   int     `json:"passed"`
	Failed   int     `json:"failed"`
	Skipped  int     `json:"skipped"`
	Failures []note  `json:"failures,omitempty"`
	Unjudged []claim `json:"unjudged,omitempty"` // not in the counts above
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
	of := ""
	if leg != "" {
		of = " (" + leg + ")"
	}
	for _, n := range now.Failures {
		n.Name += of
		t.Failures = append(t.Failures, n)
	}
	for _, c := range now.Unjudged {
		c.Name += of
		if leg != "" {
			c.Leg = leg
		}
		t.Unjudged = append(t.Unjudged, c)
	}
}

// print says what could not be judged and what failed, and then the counts in the last line.
func (t *tally) print(out io.Writer) {
	t.listUnjudged(out)
	for _, n := range t.Failures {
		fmt.Fprintf(out, "--- FAIL: %s\n", n.Name)
		n.print(out)
	}
	fmt.Fprintf(out, "unjudged: %d\n%s\n", len(t.Unjudged), t.counts())
}

func (t *tally) listUnjudged(out io.Writer) {
	for _, c := range t.Unjudged {
		fmt.Fprintf(out, "--- %s: %s\n", standstill.Word, c.Name)
		c.print(out)
	}
}

// counts has what is unjudged count as it came out.
func (t *tally) counts() string {
	passed, skipped := t.Passed, t.Skipped
	for _, c := range t.Unjudged {
		passed, skipped = passed+c.Passed, skipped+c.Skipped
	}
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, t.Failed, skipped)
}

func (n note) print(out io.Writer) {
	for _, line := range n.Lines {
		fmt.Fprintln(out, "    |", strings.TrimSpace(line))
	}
}

// command is one call of the program.
type command struct {
	total, leg, fail, unjudged, why, part string
	judge, sum                            bool
	run                                   runner
}

func (c command) do(out io.Writer, args []string) (failed bool, err error) {
	if c.total == "" {
		return false, errors.New("-total is required: name a file")
	}
	all, err := read(c.total)
	if err != nil {
		return false, err
	}
	before := all.Failed
	switch {
	case c.sum:
		all.print(out)
		return all.Failed > 0, nil
	case c.judge:
		if err := all.judge(out, c.run); err != nil {
			return false, err
		}
		all.listUnjudged(out)
		fmt.Fprintf(out, "unjudged: %d\n", len(all.Unjudged))
		return all.Failed > before, write(c.total, all)
	case c.part != "":
		part, err := read(c.part)
		if err != nil {
			return false, err
		}
		all.add("", part)
	case c.unjudged != "":
		all.Unjudged = append(all.Unjudged, claim{note: note{c.unjudged, lastOf(c.why)}, Skipped: 1, Final: true})
	case c.fail != "":
		all.fail(c.fail, lastOf(c.why))
	default:
		now, err := c.test(args)
		if err != nil {
			return false, err
		}
		all.add(c.leg, now)
		fmt.Fprintf(out, "%s: %s\n", c.leg, now.counts())
		return now.Failed > 0, write(c.total, all)
	}
	return false, write(c.total, all)
}

func (c command) test(args []string) (tally, error) {
	dir, err := os.Getwd()
	if err != nil {
		return tally{}, err
	}
	o, err := c.run(dir, args...)
	if err != nil {
		return tally{}, err
	}
	now := o.tally()
	for i := range now.Unjudged {
		now.Unjudged[i].Dir, now.Unjudged[i].Args = dir, args
	}
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
