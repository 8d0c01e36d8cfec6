package lease

import (
	"testing"
	"time"
)

func TestBackoffDoublesUpToItsCapAndStartsOver(t *testing.T) {
	for _, c := range []struct {
		name         string
		initial, max time.Duration
		want         []time.Duration // before jitter
	}{
		{"1, 2, 4, capped at 5 s", time.Second, 5 * time.Second,
			[]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}},
		{"the defaults", 250 * time.Millisecond, 5 * time.Second,
			[]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}},
		{"initial above the cap", 10 * time.Second, 3 * time.Second, []time.Duration{3 * time.Second, 3 * time.Second}},
		{"a nanosecond", 1, 1, []time.Duration{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := backoff{initial: c.initial, max: c.max}
			for round := range 2 {
				for i, want := range c.want {
					if got := b.next(); got > want || got < want-want/5 {
						t.Errorf("round %d, pause %d: %v, want the last fifth below %v", round, i, got, want)
					}
				}
				b.reset()
			}
		})
	}
}

func TestBackoffIsJittered(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		b := backoff{initial: time.Second, max: time.Second}
		seen[b.next()] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d different pauses in 100: a fleet would come back in step", len(seen))
	}
}
