package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
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
		c := command{total: total, leg: step.leg, fail: step.fail, why: log, run: func(string, ...string) (*outcome, error) {
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
	if _, err := (command{total: whole, unjudged: "bench", why: log}).do(&out, nil); err != nil {
		t.Fatal(err)
	}
	failed, err := command{total: whole, sum: true}.do(&out, nil)
	if err != nil || !failed {
		t.Fatalf("sum failed: %v, %v; want a failure and no error", failed, err)
	}
	want := `--- UNJUDGED: bench
    | the curtain
    | did not rise
--- FAIL: B p (two)
    | b_test.go:7: no
--- FAIL: go test said nothing (three)
--- FAIL: demo
    | the curtain
    | did not rise
unjudged: 1
2 passed, 3 failed, 2 skipped
`
	if out.String() != want {
		t.Fatalf("sum:\n%swant:\n%s", &out, want)
	}
}

const stood = "    a_test.go:7: UNJUDGED: stopped after 2s: stood still for 1s of the 1.5s that the claim allows"

// twice counts a run that came out as first says, and then has judged what is unjudged;
// alone is how the tests of a package come out then.
func twice(t *testing.T, first string, alone map[string]string) (all tally, asked []string, printed string) {
	t.Helper()
	total := filepath.Join(t.TempDir(), "total")
	var out strings.Builder
	run := func(dir string, args ...string) (*outcome, error) {
		asked = append(asked, strings.Join(args, " "))
		in := first
		if len(asked) > 1 {
			in = alone[args[len(args)-1]]
		}
		return count(strings.NewReader(in), &out)
	}
	if _, err := (command{total: total, leg: "leg", run: run}).do(&out, []string{"-short", "-timeout", "5m", "holdfast/lab/e2e", "./..."}); err != nil {
		t.Fatal(err)
	}
	if _, err := (command{total: total, judge: true, run: run}).do(&out, nil); err != nil {
		t.Fatal(err)
	}
	all, err := read(total)
	if err != nil {
		t.Fatal(err)
	}
	return all, asked[1:], out.String()
}

func TestNoFailureIsEverRunAgain(t *testing.T) {
	for _, row := range []struct {
		name, first string
		failed      int
	}{
		{"late", lines("fail p A     a_test.go:1: after 2s, want at most 1s", "fail p -"), 1},
		{"a wait in vain", lines("fail p A     a_test.go:1: await ready for 1m0s", "fail p -"), 1},
		{"a panic", lines("fail p A panic: oh", "fail p -"), 1},
		{"a panic in no test", lines("pass p A", "fail p - panic: oh"), 1},
		{"a data race", lines("fail p A WARNING: DATA RACE", "fail p -"), 1},
		{"out of time", lines("run p A panic: test timed out after 1s", "fail p -"), 1},
		{"did not build", lines("fail p -"), 1},
		{"failed, and its claim was unjudged", lines("fail p A "+stood, "fail p -"), 1},
		{"failed beside a part that was unjudged", lines("skip p A/x "+stood, "fail p A/y", "fail p A", "fail p -"), 1},
		{"an unjudged part of what failed by itself", lines("skip p A/x "+stood, "fail p A", "fail p -"), 1},
		{"the word in what a test printed", lines("fail p A UNJUDGED: I print this", "fail p -"), 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			all, asked, _ := twice(t, row.first, nil)
			if all.Failed != row.failed || len(asked) > 0 || len(all.Unjudged) > 0 {
				t.Errorf("%d failed, %d unjudged, ran again %q; want %d failed", all.Failed, len(all.Unjudged), asked, row.failed)
			}
		})
	}
}

func TestWhatCouldNotBeJudgedIsRunAgainAloneAndCountsAsItComesOutThen(t *testing.T) {
	for _, row := range []struct {
		name                    string
		alone                   string // how A comes out alone
		passed, failed, skipped int
		unjudged                []string
	}{
		{"passes", lines("pass p A/x", "pass p A/y", "pass p A", "pass p -"), 3, 0, 1, nil},
		{"fails", lines("pass p A/x", "fail p A/y", "fail p A", "fail p -"), 2, 1, 1, nil},
		{"panics", lines("fail p A panic: oh", "fail p -"), 1, 1, 1, nil},
		{"passes, and the process fails", lines("pass p A/x", "pass p A/y", "pass p A", "fail p -"), 3, 1, 1, nil},
		{"is skipped for another reason", lines("skip p A     a_test.go:1: not root", "pass p -"), 1, 0, 2, nil},
		{"did not run", lines("pass p -"), 1, 1, 1, nil},
		{"says nothing", "no such package\n", 1, 1, 1, nil},
		{"is unjudged again", lines("pass p A/x", "skip p A/y "+stood, "pass p A", "pass p -"), 2, 0, 2, []string{"A p (leg)"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			first := lines("pass p A/x", "skip p A/y "+stood, "pass p A", "pass p B", "skip p C     c_test.go:1: not root", "pass p -")
			all, asked, printed := twice(t, first, map[string]string{"p": row.alone})
			if want := "-short -timeout 5m -count 1 -p 1 -parallel 1 -run ^(A)$ p"; !slices.Equal(asked, []string{want}) {
				t.Errorf("ran again %q, want %q", asked, want)
			}
			var unjudged []string
			for _, c := range all.Unjudged {
				unjudged = append(unjudged, c.Name)
			}
			want := fmt.Sprintf("%d passed, %d failed, %d skipped", row.passed, row.failed, row.skipped)
			if all.counts() != want || !slices.Equal(unjudged, row.unjudged) {
				t.Errorf("%s, unjudged %q; want %s, %q\n%s", all.counts(), unjudged, want, row.unjudged, printed)
			}
			for _, name := range row.unjudged {
				if end := "--- UNJUDGED: " + name + "\n    | " + strings.TrimSpace(stood) + "\nunjudged: 1\n"; !strings.HasSuffix(printed, end) {
					t.Errorf("the output ends\n%s\nwant\n%s", printed, end)
				}
			}
		})
	}
}

func TestEachPackageIsRunAgainByItselfAndOnlyOnce(t *testing.T) {
	first := lines("skip p A "+stood, "skip q A "+stood, "pass q B", "skip p C "+stood, "pass p -", "pass q -")
	again := map[string]string{"p": lines("skip p A "+stood, "pass p C", "pass p -"), "q": lines("pass q A", "pass q -")}
	all, asked, _ := twice(t, first, again)
	flags := "-short -timeout 5m -count 1 -p 1 -parallel 1 -run "
	if want := []string{flags + "^(A|C)$ p", flags + "^(A)$ q"}; !slices.Equal(asked, want) {
		t.Errorf("ran again %q, want %q", asked, want)
	}
	err := all.judge(io.Discard, func(string, ...string) (*outcome, error) {
		t.Error("what was judged alone is run once more")
		return nil, io.EOF
	})
	if err != nil || all.counts() != "3 passed, 0 failed, 1 skipped" {
		t.Errorf("%s, %v", all.counts(), err)
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
