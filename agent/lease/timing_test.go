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

func TestTheNextRenewalIsSoonerByAJitterAndNeverLater(t *testing.T) {
	jittered := defaults
	jittered.Jitter = 400 * time.Millisecond
	for _, c := range []struct {
		name   string
		timing Timing
		inStep bool
		from   time.Duration // to RenewInterval
	}{
		{"without jitter", defaults, true, defaults.RenewInterval},
		{"while all is well", jittered, false, defaults.RenewInterval - jittered.Jitter},
		{"after a cut", jittered, true, jittered.Jitter},
	} {
		t.Run(c.name, func(t *testing.T) {
			least, most := time.Hour, time.Duration(0)
			for id := range int64(1000) {
				next := c.timing.untilNext(id, Instant(time.Hour), c.inStep)
				least, most = min(least, next), max(most, next)
				if next != c.timing.untilNext(id, Instant(time.Hour), c.inStep) {
					t.Fatalf("lease %d has two times", id)
				}
			}
			// A thousand draws come near to both ends.
			near := (defaults.RenewInterval - c.from) / 50
			if least < c.from || least > c.from+near || most > defaults.RenewInterval || most < defaults.RenewInterval-near {
				t.Errorf("from %v to %v, want from %v to %v", least, most, c.from, defaults.RenewInterval)
			}
		})
	}
}
