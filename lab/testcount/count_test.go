package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lines writes go test -json: "action package test", "-" for no test. A fourth word, and
// what follows it, is what the test printed before.
func lines(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		f := strings.SplitN(e, " ", 4)
		test := f[2]
		if test == "-" {
			test = ""
		}
		if len(f) == 4 {
			for line := range strings.Lines(f[3]) {
				fmt.Fprintf(&b, "{\"Action\":\"output\",\"Package\":%q,\"Test\":%q,\"Output\":%q}\n", f[1], test, line)
			}
		}
		fmt.Fprintf(&b, "{\"Action\":%q,\"Package\":%q,\"Test\":%q}\n", f[0], f[1], test)
	}
	return b.String()
}

func counted(t *testing.T, in string) (o *outcome, printed string) {
	t.Helper()
	var out strings.Builder
	o, err := count(strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	return o, out.String()
}

func names(notes []note) (names []string) {
	for _, n := range notes {
		names = append(names, n.Name)
	}
	return names
}

func TestCountIsOfTestsThatHaveNoSubtests(t *testing.T) {
	for _, row := range []struct {
		name                    string
		in                      string
		passed, failed, skipped int
	}{
		{"plain", lines("pass p A", "skip p B", "fail p C", "fail p -"), 1, 1, 1},
		{"subtests instead of their parent", lines("pass p A/x", "pass p A/y", "pass p A", "pass p -"), 2, 0, 0},
		{"one failed subtest fails two tests, counted once", lines("pass p A/x", "fail p A/y", "fail p A", "fail p -"), 1, 1, 0},
		{"parent fails by itself", lines("pass p A/x", "fail p A", "fail p -"), 1, 1, 0},
		{"package fails without a test", lines("pass p A", "fail p -"), 1, 1, 0},
		{"package without tests is nothing", lines("skip p -"), 0, 0, 0},
		{"same test in two packages", lines("pass p A", "pass q A", "pass p -", "pass q -"), 2, 0, 0},
		{"deep", lines("fail p A/x/y", "fail p A/x", "fail p A", "fail p -"), 0, 1, 0},
		{"out of time in one test, after another failed", lines("fail p A", "run p B panic: test timed out after 1s", "fail p -"), 0, 2, 0},
		{"exit in one test, after another failed", lines("fail p A", "run p B === RUN B", "fail p -"), 0, 2, 0},
		{"a crash of a failed test, beside others", lines("run p B === RUN B", "fail p A panic: oh", "fail p -"), 0, 1, 0},
		{"a race that no test noticed, after one failed", lines("fail p A", "fail p - WARNING: DATA RACE"), 0, 2, 0},
		{"noise", "go: downloading something\n" + lines("pass p A"), 1, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			o, out := counted(t, row.in)
			got := o.tally()
			if got.Passed != row.passed || got.Failed != row.failed || got.Skipped != row.skipped {
				t.Fatalf("%d passed, %d failed, %d skipped; want %d, %d, %d\n%s",
					got.Passed, got.Failed, got.Skipped, row.passed, row.failed, row.skipped, out)
			}
			if len(got.Failures) != got.Failed {
				t.Fatalf("failures %q, want %d", got.Failures, got.Failed)
			}
		})
	}
}

func TestSumAddsUpOverRuns(t *testing.T) {
	dir := t.TempDir()
	total, log := filepath.Join(dir, "total"), filepath.Join(dir, "log")
	if err := os.WriteFile(log, []byte("the curtain\ndid not rise\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, step := range []struct {
		in, leg, fail string
		failed        bool
	}{
		{in: lines("pass p A", "skip p B"), leg: "one"},
		{in: lines("pass p A", "fail p B     b_test.go:7: no"), leg: "two", failed: true},
		{in: "go: no such module\n", leg: "three", failed: true},
		{fail: "demo"},
	} {
		c := command{total: total, leg: step.leg, fail: step.fail, why: log, run: func(...string) (*outcome, error) {
			return count(strings.NewReader(step.in), &out)
		}}
		failed, err := c.do(&out, nil)
		if err != nil {
			t.Fatal(err)
		}
		if failed != step.failed {
			t.Fatalf("step %s failed: %v, want %v", step.leg, failed, step.failed)
		}
	}
	out.Reset()
	whole := filepath.Join(dir, "whole")
	for _, part := range []string{filepath.Join(dir, "nothing"), total} {
		if _, err := (command{total: whole, part: part}).do(&out, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (command{total: whole, alone: "bench", why: log}).do(&out, nil); err != nil {
		t.Fatal(err)
	}
	failed, err := command{total: whole, sum: true}.do(&out, nil)
	if err != nil || !failed {
		t.Fatalf("sum failed: %v, %v; want a failure and no error", failed, err)
	}
	want := `passed only alone: bench; the first time it said:
    | the curtain
    | did not rise
--- FAIL: B p (two)
    | b_test.go:7: no
--- FAIL: go test said nothing (three)
--- FAIL: demo
    | the curtain
    | did not rise
2 passed, 3 failed, 1 skipped
`
	if out.String() != want {
		t.Fatalf("sum:\n%swant:\n%s", &out, want)
	}
}

func TestATestThatFailedIsRunOnceMoreUnlessItFoundSomething(t *testing.T) {
	many := []string{"fail lab/e2e -"}
	for i := range mostAgain + 1 {
		many = append(many, fmt.Sprintf("fail lab/e2e T%d", i))
	}
	for _, row := range []struct {
		name string
		in   string
		want []string
	}{
		{"a wait in vain", lines("fail lab/e2e A a_test.go:1: await ready for 1m0s", "fail lab/e2e -"), []string{"A lab/e2e"}},
		{"of its subtests, once", lines("fail lab/e2e A/x", "fail lab/e2e A/y", "fail lab/e2e A", "fail lab/e2e -"), []string{"A lab/e2e"}},
		{"another package", lines("fail recovery A", "fail recovery -"), nil},
		{"a safety claim", lines("fail lab/e2e A     a_test.go:1: VIOLATION: served past the deadline", "fail lab/e2e -"), nil},
		{"a safety claim in one subtest", lines("fail lab/e2e A/x late", "fail lab/e2e A/y VIOLATION: two owners", "fail lab/e2e A"), nil},
		{"a safety claim beside a failed subtest", lines("fail lab/e2e A/x late", "fail lab/e2e A VIOLATION: two owners", "fail lab/e2e -"), nil},
		{"a safety claim in a part that passed", lines("pass lab/e2e A/x VIOLATION: two owners", "fail lab/e2e A/y late", "fail lab/e2e A", "fail lab/e2e -"), nil},
		{"the process ended in another test", lines("fail lab/e2e A late", "run lab/e2e B === RUN B", "fail lab/e2e -"), []string{"A lab/e2e"}},
		{"a data race that is told elsewhere", lines("fail lab/e2e A     testing.go:1: race detected during execution of test"), nil},
		{"a data race", lines("fail lab/e2e A WARNING: DATA RACE"), nil},
		{"a crash", lines("fail lab/e2e A panic: runtime error: x"), nil},
		{"a package by itself", lines("pass lab/e2e A", "fail lab/e2e -"), nil},
		{"too many", lines(many...), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			o, _ := counted(t, row.in)
			tops, _ := o.candidates(regexp.MustCompile(`^lab/`))
			var got []string
			for _, top := range tops {
				got = append(got, top.String())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("run again: %q, want %q", got, row.want)
			}
		})
	}
}

func TestATestCountsOnceAsItCameOutAlone(t *testing.T) {
	first := lines("pass l A/x", "fail l A/y y_test.go:1: late", "fail l A", "pass l B", "fail l C c_test.go:2: late", "fail l -")
	for _, row := range []struct {
		name           string
		a              string // how A comes out alone
		passed, failed int
		alone          []string
	}{
		{"passes", lines("pass l A/x", "pass l A/y", "pass l A", "pass l -"), 3, 1, []string{"A l (leg)"}},
		{"fails again", lines("pass l A/x", "fail l A/y", "fail l A", "fail l -"), 2, 2, nil},
		{"is skipped", lines("skip l A", "pass l -"), 2, 2, nil},
		{"says nothing", "no such package\n", 2, 2, nil},
		{"passes, and a part says what was broken", lines("pass l A/x", "pass l A/y VIOLATION: two owners", "pass l A", "pass l -"), 2, 2, nil},
		{"passes, and the process fails", lines("pass l A/x", "pass l A/y", "pass l A", "fail l -"), 2, 2, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			total := filepath.Join(t.TempDir(), "total")
			var asked [][]string
			c := command{total: total, leg: "leg", again: "^l$", run: func(args ...string) (*outcome, error) {
				asked = append(asked, args)
				in := first
				switch {
				case slices.Contains(args, "^A$"):
					in = row.a
				case slices.Contains(args, "^C$"):
					in = lines("fail l C", "fail l -")
				}
				return count(strings.NewReader(in), io.Discard)
			}}
			if _, err := c.do(io.Discard, []string{"-short", "-timeout", "5m", "holdfast/lab/e2e", "./..."}); err != nil {
				t.Fatal(err)
			}
			all, err := read(total)
			if err != nil {
				t.Fatal(err)
			}
			if all.Passed != row.passed || all.Failed != row.failed || !slices.Equal(names(all.Alone), row.alone) {
				t.Errorf("%+v, want %d passed, %d failed, alone %q", all, row.passed, row.failed, row.alone)
			}
			if want := "-short -timeout 5m -count 1 -parallel 1 -run ^A$ l"; len(asked) != 3 || strings.Join(asked[1], " ") != want {
				t.Errorf("ran %q, want A by %q", asked, want)
			}
		})
	}
}

func TestAFailureIsToldByTheLinesThatSayWhatFailed(t *testing.T) {
	for _, row := range []struct {
		name string
		in   string
		want []string
	}{
		{"without the logs of the lab", "=== RUN   A\n    a_test.go:1: not ready\n    lab.go:64: ---- etcd (etcd.log), running: true\n        noise\n", []string{"    a_test.go:1: not ready"}},
		{"a crash from its first word on", "noise\npanic: oh\n\ngoroutine 1\n", []string{"panic: oh", "goroutine 1"}},
		{"the last ones", strings.Repeat("noise\n", 100) + "the end\n", append(slices.Repeat([]string{"noise"}, mostLines-1), "the end")},
		{"no wide one", strings.Repeat("x", 1000) + "\n", []string{strings.Repeat("x", mostWidth) + "…"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := essence([]string{row.in}); !slices.Equal(got, row.want) {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}
