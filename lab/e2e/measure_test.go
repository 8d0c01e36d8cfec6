package e2e

import (
	"errors"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// within checks a claim about how long something took at most, from its begin on.
func within(t testing.TB, what string, began time.Time, took, most time.Duration) {
	t.Helper()
	standstill.Within(t, what, began, took, most)
}

// inOrder checks a safety claim: that what ends a broker's service was seen before what
// entitles others to take over.
func inOrder(t testing.TB, end string, at time.Time, entitled string, gone time.Time) {
	t.Helper()
	err := standstill.JudgeOrder(end, at, entitled, gone)
	if err != nil && !errors.Is(err, standstill.ErrUnjudged) {
		t.Errorf(harness.Violation+"%v", err)
		return
	}
	standstill.Check(t, err)
}
