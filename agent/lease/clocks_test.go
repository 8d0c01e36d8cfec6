package lease

import (
	"testing"
	"time"
)

func TestComparesClocks(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	before := Clocks{Boot: Instant(time.Hour), Mono: time.Minute, Wall: at}
	for _, tt := range []struct {
		name             string
		boot, mono, wall time.Duration // how far each went
		want             ClockNews
	}{
		{"a second passes", time.Second, time.Second, time.Second, ClockNews{}},
		{"a busy host reads them apart", time.Second, time.Second - 99*time.Millisecond, time.Second, ClockNews{}},
		{"suspended", 31 * time.Second, time.Second, 31 * time.Second, ClockNews{Suspended: 30 * time.Second}},
		{"suspended for the least", 1100 * time.Millisecond, time.Second, 1100 * time.Millisecond, ClockNews{Suspended: 100 * time.Millisecond}},
		{"set forward", time.Second, time.Second, 301 * time.Second, ClockNews{Jumped: 5 * time.Minute}},
		{"set back", time.Second, time.Second, -299 * time.Second, ClockNews{Jumped: -5 * time.Minute}},
		{"slewed", time.Second, time.Second, 1999 * time.Millisecond, ClockNews{}},
		{"suspended, and set when it woke up", 31 * time.Second, time.Second, time.Minute + 31*time.Second, ClockNews{Suspended: 30 * time.Second, Jumped: time.Minute}},
		{"the host did not run, no clock stood still", time.Hour, time.Hour, time.Hour, ClockNews{}},
	} {
		now := Clocks{Boot: before.Boot.Add(tt.boot), Mono: before.Mono + tt.mono, Wall: before.Wall.Add(tt.wall)}
		if got := CompareClocks(before, now); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestHostClocksAreReadTogether(t *testing.T) {
	before := HostClocks()
	for range 1000 {
		now := HostClocks()
		if news := CompareClocks(before, now); news != (ClockNews{}) {
			t.Fatalf("%+v", news)
		}
		before = now
	}
}
