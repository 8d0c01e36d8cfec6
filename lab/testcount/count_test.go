package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// lines writes go test -json: "action package test", "-" for no test.
func lines(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		f := strings.Fields(e)
		test := f[2]
		if test == "-" {
			test = ""
		}
		fmt.Fprintf(&b, "{\"Action\":%q,\"Package\":%q,\"Test\":%q}\n", f[0], f[1], test)
	}
	return b.String()
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
		{"noise", "go: downloading something\n" + lines("pass p A"), 1, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			got, err := count(strings.NewReader(row.in), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got.Passed != row.passed || got.Failed != row.failed || got.Skipped != row.skipped {
				t.Fatalf("%d passed, %d failed, %d skipped; want %d, %d, %d\n%s",
					got.Passed, got.Failed, got.Skipped, row.passed, row.failed, row.skipped, &out)
			}
			if len(got.Failures) != got.Failed {
				t.Fatalf("failures %q, want %d", got.Failures, got.Failed)
			}
		})
	}
}

func TestSumAddsUpOverRuns(t *testing.T) {
	total := filepath.Join(t.TempDir(), "total")
	var out strings.Builder
	for _, step := range []struct {
		in, leg, fail string
		failed        bool
	}{
		{in: lines("pass p A", "skip p B"), leg: "one"},
		{in: lines("pass p A", "fail p B"), leg: "two", failed: true},
		{in: "go: no such module\n", leg: "three", failed: true},
		{fail: "demo"},
	} {
		failed, err := run(strings.NewReader(step.in), &out, total, step.leg, step.fail, false)
		if err != nil {
			t.Fatal(err)
		}
		if failed != step.failed {
			t.Fatalf("step %s failed: %v, want %v", step.leg, failed, step.failed)
		}
	}
	out.Reset()
	failed, err := run(nil, &out, total, "", "", true)
	if err != nil || !failed {
		t.Fatalf("sum failed: %v, %v; want a failure and no error", failed, err)
	}
	want := "failed: two: p B\nfailed: three: go test said nothing\nfailed: demo\n2 passed, 3 failed, 1 skipped\n"
	if out.String() != want {
		t.Fatalf("sum:\n%swant:\n%s", &out, want)
	}
}
