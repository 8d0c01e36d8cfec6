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
		doubt            bool
	}{
		{"a second passes", time.Second, time.Second, time.Second, ClockNews{}, false},
		{"a busy host reads them apart", time.Second, time.Second - 99*time.Millisecond, time.Second, ClockNews{}, false},
		{"suspended", 31 * time.Second, time.Second, 31 * time.Second, ClockNews{Suspended: 30 * time.Second}, true},
		{"suspended for the least", 1100 * time.Millisecond, time.Second, 1100 * time.Millisecond, ClockNews{Suspended: 100 * time.Millisecond}, true},
		{"set forward", time.Second, time.Second, 301 * time.Second, ClockNews{Jumped: 5 * time.Minute}, true},
		{"set back", time.Second, time.Second, -299 * time.Second, ClockNews{Jumped: -5 * time.Minute}, true},
		{"set forward by the least", time.Second, time.Second, 2 * time.Second, ClockNews{Jumped: time.Second}, true},
		{"set back by the least", time.Second, time.Second, 0, ClockNews{Jumped: -time.Second}, true},
		{"slewed", time.Second, time.Second, 1999 * time.Millisecond, ClockNews{}, false},
		{"suspended, and set when it woke up", 31 * time.Second, time.Second, time.Minute + 31*time.Second, ClockNews{Suspended: 30 * time.Second, Jumped: time.Minute}, true},
		{"the host did not run, no clock stood still", time.Hour, time.Hour, time.Hour, ClockNews{}, false},
	} {
		now := Clocks{Boot: before.Boot.Add(tt.boot), Mono: before.Mono + tt.mono, Wall: before.Wall.Add(tt.wall)}
		if got := CompareClocks(before, now); got != tt.want || got.RaisesDoubt() != tt.doubt {
			t.Errorf("%s: %+v, want %+v; doubt: %v", tt.name, got, tt.want, got.RaisesDoubt())
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
