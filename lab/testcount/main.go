// Command testcount makes the output of `go test -json` readable and counts it over
// several runs.
//
//	go test -json ./... | testcount -total FILE -leg NAME   prints, and adds to FILE
//	testcount -total FILE -fail NAME                        adds a failed step that is no test
//	testcount -total FILE -sum                              prints: N passed, M failed, K skipped
//
// A test with subtests is not counted beside them, unless it failed and none of
// them did. A package that failed without a failed test (it did not build, it
// panicked, it ran out of time) counts as one failure, and so does a run that says
// nothing at all. Nothing else is counted.
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
)

func main() {
	total := flag.String("total", "", "file in which the counts add up; required")
	leg := flag.String("leg", "", "name of this run, for the failures")
	fail := flag.String("fail", "", "name of a step that failed")
	sum := flag.Bool("sum", false, "print the sum of all runs")
	flag.Parse()
	failed, err := run(os.Stdin, os.Stdout, *total, *leg, *fail, *sum)
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
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Skipped  int      `json:"skipped"`
	Failures []string `json:"failures,omitempty"`

	silent bool // nothing was read
}

func run(in io.Reader, out io.Writer, path, leg, fail string, sum bool) (failed bool, err error) {
	if path == "" {
		return false, errors.New("-total is required: name a file")
	}
	all, err := read(path)
	if err != nil {
		return false, err
	}
	if sum {
		for _, f := range all.Failures {
			fmt.Fprintln(out, "failed:", f)
		}
		fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.Passed, all.Failed, all.Skipped)
		return all.Failed > 0, nil
	}
	var now tally
	if fail != "" {
		now = tally{Failed: 1, Failures: []string{fail}}
	} else if now, err = count(in, out); err != nil {
		return false, err
	}
	if fail == "" && now.silent {
		now.Failed++
		now.Failures = append(now.Failures, "go test said nothing")
	}
	for _, f := range now.Failures {
		if leg != "" {
			f = leg + ": " + f
		}
		all.Failures = append(all.Failures, f)
	}
	all.Passed += now.Passed
	all.Failed += now.Failed
	all.Skipped += now.Skipped
	if fail == "" {
		fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", leg, now.Passed, now.Failed, now.Skipped)
	}
	return now.Failed > 0 && fail == "", write(path, all)
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
