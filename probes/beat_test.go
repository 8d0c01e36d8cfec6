package probes

import (
	"testing"
	"time"
)

func TestWhatIsDueInWholeSecondsIsDueOnTheBeat(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 300e6, time.UTC)
	for _, c := range []struct {
		name            string
		beat            Beat
		d, after, until time.Duration
	}{
		{"on the beat", NewBeat(from), time.Second, 5 * time.Second, time.Second},
		{"late by a little", NewBeat(from), time.Second, 5*time.Second + time.Millisecond, 999 * time.Millisecond},
		{"in between", NewBeat(from), time.Second, 5*time.Second + 400*time.Millisecond, 600 * time.Millisecond},
		{"several seconds", NewBeat(from), 10 * time.Second, 5*time.Second + 400*time.Millisecond, 9600 * time.Millisecond},
		{"less than a second", NewBeat(from), 200 * time.Millisecond, 5*time.Second + 400*time.Millisecond, 200 * time.Millisecond},
		{"not whole", NewBeat(from), 1500 * time.Millisecond, 5*time.Second + 400*time.Millisecond, 1500 * time.Millisecond},
		{"no beat", Beat{}, time.Second, 400 * time.Millisecond, time.Second},
	} {
		if got := c.beat.Until(c.d, from.Add(c.after)); got != c.until {
			t.Errorf("%s: %v, want %v", c.name, got, c.until)
		}
	}
}
