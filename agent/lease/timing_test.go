package lease

import (
	"testing"
	"time"
)

// defaults are those of the public contract.
var defaults = Timing{TTL: 32 * time.Second, RenewInterval: 4 * time.Second, Margin: 32 * time.Second / 3,
	BackoffInitial: 250 * time.Millisecond, BackoffMax: 5 * time.Second}

func TestDefaultsSurviveAFifteenSecondCut(t *testing.T) {
	if got := defaults.SurvivesDetach(); got < 15*time.Second || got > 17*time.Second {
		t.Errorf("a cut of %v does not detach", got)
	}
	if got := defaults.SurvivesExpiry(); got < 25*time.Second || got > 27*time.Second {
		t.Errorf("a cut of %v does not expire the registration", got)
	}
	if got := defaults.SurvivesExpiry() - defaults.SurvivesDetach(); got != defaults.Margin {
		t.Errorf("the two differ by %v, want the margin %v", got, defaults.Margin)
	}
}

func TestAttemptTimeoutIsAnEighthOfTheTTLAndAtLeastHalfASecond(t *testing.T) {
	for _, c := range []struct{ ttl, want time.Duration }{
		{32 * time.Second, 4 * time.Second},
		{8 * time.Second, time.Second},
		{4 * time.Second, 500 * time.Millisecond},
		{2 * time.Second, 500 * time.Millisecond},
		{0, 500 * time.Millisecond},
	} {
		if got := (Timing{TTL: c.ttl}).AttemptTimeout(); got != c.want {
			t.Errorf("TTL %v: %v, want %v", c.ttl, got, c.want)
		}
	}
}
