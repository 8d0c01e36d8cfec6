package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// stream is what go test -json says of tests that ended: "action package test output".
func stream(lines ...string) io.Reader {
	var b strings.Builder
	for _, l := range lines {
		f := strings.SplitN(l+"   ", " ", 4)
		if out := strings.TrimSpace(f[3]); out != "" {
			fmt.Fprintf(&b, `{"Action":"output","Package":%q,"Test":%q,"Output":%q}`+"\n", f[1], f[2], out+"\n")
		}
		fmt.Fprintf(&b, `{"Action":%q,"Package":%q,"Test":%q,"Elapsed":1}`+"\n", f[0], f[1], f[2])
	}
	return strings.NewReader(b.String())
}

func TestATestCountsOnceAndAFailureIsNeverLost(t *testing.T) {
	const e2e, deep = "holdfast/lab/e2e", "holdfast/recovery"
	for _, row := range []struct {
		name   string
		stream io.Reader
		want   string
		failed string // names
		chance bool
	}{
		{"rows count, their test does not", stream("run p T", "run p T/a", "run p T/b", "pass p T/a", "skip p T/b", "pass p T", "pass p"), "1 passed, 0 failed, 1 skipped", "", false},
		{"a failed row stands for its test and package", stream("fail "+e2e+" T/a late", "fail "+e2e+" T", "fail "+e2e), "0 passed, 1 failed, 0 skipped", "T/a " + e2e, true},
		{"a broken safety rule is no chance", stream("fail "+e2e+" T VIOLATION: served", "fail "+e2e), "0 passed, 1 failed, 0 skipped", "T " + e2e, false},
		{"nor is a deterministic test", stream("fail "+deep+" T wrong", "fail "+deep), "0 passed, 1 failed, 0 skipped", "T " + deep, false},
		{"nor a data race", stream("fail "+e2e+" T WARNING: DATA RACE", "fail "+e2e), "0 passed, 1 failed, 0 skipped", "T " + e2e, false},
		{"a race of no test is the package's", stream("pass "+e2e+" T", "fail "+e2e+"  WARNING: DATA RACE"), "1 passed, 1 failed, 0 skipped", e2e, false},
		{"a package that does not build", stream("fail " + e2e + "  undefined: x"), "0 passed, 1 failed, 0 skipped", e2e, false},
		{"a fault of the race detector itself", stream("run "+deep+" T", "fail "+deep+"  ThreadSanitizer: CHECK failed: tsan_rtl.cpp:282"), "0 passed, 1 failed, 0 skipped", deep, true},
		{"a race beside such a fault", stream("run "+deep+" T", "fail "+deep+"  WARNING: DATA RACE, ThreadSanitizer: CHECK failed"), "0 passed, 1 failed, 0 skipped", deep, false},
		{"a process that ends in a test", stream("fail "+e2e+" T late", "fail "+e2e+"  panic: out of time"), "0 passed, 2 failed, 0 skipped", "T " + e2e + ", " + e2e, false},
		{"one that ends and says nothing", stream("run "+e2e+" T", "run "+e2e+" U", "fail "+e2e+" T late", "fail "+e2e), "0 passed, 2 failed, 0 skipped", "T " + e2e + ", " + e2e, false},
		{"a safety rule that is broken beside a row that is late", stream("fail "+e2e+" T/a late", "fail "+e2e+" T VIOLATION: served", "fail "+e2e), "0 passed, 2 failed, 0 skipped", "T/a " + e2e + ", T " + e2e, false},
	} {
		all, err := read(row.stream, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		got, chance := judge(all), true
		var failed []string
		r := runner{root: t.TempDir()}
		for _, f := range got.failures {
			failed, chance = append(failed, f.id.String()), chance && r.mayBeChance(f)
		}
		if got.counts() != row.want || strings.Join(failed, ", ") != row.failed || len(failed) > 0 && chance != row.chance {
			t.Errorf("%s: %s, failed %q, chance %v; want %s, %q, %v", row.name, got.counts(), failed, chance, row.want, row.failed, row.chance)
		}
	}
}

func TestTheEndSaysWhatFailedWhyAndHowToRepeatIt(t *testing.T) {
	x := expanded{args: fields("-timeout 20m -parallel 5 -run X -schedules 7"), patterns: []string{"TestA/all at once", "TestB"}}
	at := id{"holdfast/lab/e2e", "TestA/all_at_once/n1"}
	repeat := commandLine(leg{dir: "lab"}, append(fields("go test"), x.alone(at)...))
	for i := range 9 {
		var b strings.Builder
		sum := tally{failures: make([]failure, i+1)}
		for k := range sum.failures {
			sum.failures[k] = failure{at, strings.Repeat("no\n", 50) + "served 1s too long\n    lab.go:7: ---- n1.log\n" + strings.Repeat("log\n", 50), repeat}
		}
		sum.print(&b)
		said := b.String()
		for _, want := range []string{"--- FAIL: " + at.String(), "served 1s too long",
			"again: cd lab && go test holdfast/lab/e2e -count 1 -parallel 1 -run '^TestA$/^all at once$' -timeout 20m -schedules 7"} {
			if !strings.Contains(said, want) {
				t.Errorf("%d failures: no %q in\n%s", i+1, want, said)
			}
		}
		if n := strings.Count(said, "\n"); n > 40 {
			t.Errorf("%d failures take %d lines", i+1, n)
		}
	}
}
