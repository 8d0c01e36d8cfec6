package lease

import (
	"slices"
	"testing"
	"time"
)

// renewals are the sends of a fleet's renewals, each sidecar in a world of its own; all
// worlds begin at the same moment.
func renewals(t *testing.T, jitter time.Duration, network cut, until time.Duration) (all []time.Duration) {
	const fleet = 100
	for i := range int64(fleet) {
		inWorld(t, func(w *world) {
			w.nextID = 1000 * i
			w.set.Timing.Jitter = jitter
			w.cuts, w.refuses = []cut{network}, true
		}, func(w *world) {
			w.until(until)
			for _, c := range w.made("keepalive", 0) {
				all = append(all, c.at)
			}
			if v := w.k.View(); v.Losses != 0 || v.FailureStreak != 0 {
				t.Errorf("sidecar %d: %+v", i, v)
			}
		})
	}
	slices.Sort(all)
	return all
}

// peak is the largest number of sends within a window, between two ages.
func peak(sends []time.Duration, window, from, to time.Duration) (most int) {
	for i, first := range sends {
		if first < from || first >= to {
			continue
		}
		end, _ := slices.BinarySearch(sends, first+window)
		most = max(most, end-i)
	}
	return most
}

// Spread over 4 s, an eighth of a hundred renewals fall into half a second.
func TestAFleetInStepIsSpreadAfterTwoRenewals(t *testing.T) {
	const half, interval = 500 * time.Millisecond, 4 * time.Second
	healed := cut{30 * time.Second, 45 * time.Second}
	sends := renewals(t, defaults.RenewInterval/10, healed, 90*time.Second)
	for _, c := range []struct {
		name     string
		from, to time.Duration
	}{
		{"after the start", 2 * interval, healed.from},
		{"after the heal", healed.to + 2*interval, 90 * time.Second},
	} {
		if n := peak(sends, half, c.from, c.to); n > 30 {
			t.Errorf("%s: %d of 100 renewals within %v", c.name, n, half)
		}
		n, _ := slices.BinarySearch(sends, c.to)
		from, _ := slices.BinarySearch(sends, c.from)
		if each := (c.to - c.from) * time.Duration(100) / time.Duration(n-from); each < interval*9/10 || each > interval {
			t.Errorf("%s: a renewal each %v, want about each %v", c.name, each, interval)
		}
	}
	if n := peak(renewals(t, 0, healed, 90*time.Second), half, healed.to+2*interval, 90*time.Second); n < 60 {
		t.Errorf("without jitter %d of 100 renewals within %v: this test proves nothing", n, half)
	}
}
