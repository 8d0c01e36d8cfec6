package simulation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	again     = 5  // runs of a failing seed, to say how often it fails
	red       = 2  // violated in so many of them, it is no chance
	shrinkMax = 60 // runs to make it smaller
)

// report runs a violated schedule again and says whether that is red. The seed fixes the
// schedule and not the order of goroutines: violated once and hardly ever again, it is said
// with its story and is not red, so that a rare old fault rejects no other change. The proof
// plays the same seeds.
func report(t *testing.T, s schedule, o outcome, dir string) (isRed bool) {
	t.Helper()
	fails := 0
	for range again {
		if o2 := run(t, s, dir, true); len(o2.Violations) > 0 {
			fails, o = fails+1, o2
		}
	}
	violated := fmt.Sprintf("%s\nviolated:\n  %s\nand in %d of %d more runs", s, strings.Join(o.Violations, "\n  "), fails, again)
	if fails < red {
		t.Logf("FLAKY: seed %d: %s\n%s\n%s", s.Seed, o.Violations[0], violated, strings.Join(o.Story, "\n"))
		return false
	}
	small, traced := shrink(t, s, dir)
	if traced == nil {
		traced = &o
	}
	t.Errorf("%s. The least that does it:\n\n%s\n%s\nviolates:\n  %s\n\nwhat happened:\n%s",
		violated, small, small.code(fmt.Sprintf("seed %d", s.Seed)), strings.Join(traced.Violations, "\n  "), strings.Join(traced.Story, "\n"))
	return true
}

// shrink drops events as long as the rest still fails, halves first. It returns the
// smallest schedule and a traced run of it that failed; nil: none did.
func shrink(t *testing.T, s schedule, dir string) (schedule, *outcome) {
	runs := 0
	failing := func(s schedule) bool {
		for range 2 { // one may be lucky
			runs++
			if len(run(t, s, dir, false).Violations) > 0 {
				return true
			}
		}
		return false
	}
	for size := max(1, len(s.Events)/2); size >= 1 && runs < shrinkMax; {
		dropped := false
		for at := 0; at+size <= len(s.Events) && runs < shrinkMax; {
			less := s
			less.Events = slices.Delete(slices.Clone(s.Events), at, at+size)
			if failing(less) {
				s, dropped = less, true
			} else {
				at += size
			}
		}
		if !dropped || size > len(s.Events) {
			if size == 1 {
				break
			}
			size = max(1, size/2)
		}
	}
	for range again {
		if o := run(t, s, dir, true); len(o.Violations) > 0 {
			return s, &o
		}
	}
	return s, nil
}
