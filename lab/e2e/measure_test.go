package e2e

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

// hops is how many processes what is measured goes through: a sidecar, etcd or a broker, and
// this one, which sees it.
const hops = 3

// within checks a claim about how long something took at most, from its begin on. For as
// long as this process stood still meanwhile, so may have each of those that are measured.
func within(t testing.TB, what string, began time.Time, took, most time.Duration) {
	t.Helper()
	stood := harness.StoodStill(began, began.Add(took))
	if stood > 0 {
		t.Logf("%s: the machine stood still for %v of %v", what, stood.Round(time.Millisecond), took.Round(time.Millisecond))
	}
	if took > most+hops*stood {
		t.Errorf("%s after %v, want at most %v (the machine stood still for %v)", what, took.Round(time.Millisecond), most, stood.Round(time.Millisecond))
	}
}

// inOrder checks a safety claim: that what ends a broker's service was seen before what
// entitles others to take over.
func inOrder(t testing.TB, end string, at time.Time, entitled string, gone time.Time) {
	t.Helper()
	if late := at.Sub(gone); late >= 0 {
		t.Errorf("%s%s %v after %s", harness.ViolationBy(late, gone.Add(-time.Second), at), end, late, entitled)
	}
}
