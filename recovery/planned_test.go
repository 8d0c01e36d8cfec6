package recovery

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// hour is a --return-within of an hour, at a TTL of 32 s, asked at noon.
var hour = Return{Now: noon, Ahead: 32 * time.Second, Within: time.Hour, Lease: 32 * time.Second}

func TestANoteOfAPlannedStopCountsForItsTime(t *testing.T) {
	pausedUntil := func(end time.Time) Return { r := hour; r.Pause = end; return r }
	for _, c := range []struct {
		name string
		left PlannedStop
		r    Return
		fits bool
		says string
	}{
		{"a moment ago", PlannedStop{At: noon.Add(-3 * time.Second)}, hour, true, "3s ago"},
		{"just within", PlannedStop{At: noon.Add(-time.Hour)}, hour, true, "1h0m0s ago"},
		{"just too long ago", PlannedStop{At: noon.Add(-time.Hour - time.Second)}, hour, false, "longer than --return-within 1h0m0s"},
		{"stopped on Friday, started on Monday", PlannedStop{At: noon.Add(-62 * time.Hour)}, hour, false, "longer than --return-within"},
		{"by a clock that is ahead by a TTL", PlannedStop{At: noon.Add(32 * time.Second)}, hour, true, "0s ago"},
		{"by a clock that is ahead by more", PlannedStop{At: noon.Add(33 * time.Second)}, hour, false, "33s ahead of this clock"},
		{"long ago, and the pause lasts", PlannedStop{At: noon.Add(-8 * time.Hour)}, pausedUntil(noon.Add(time.Minute)), true, "the maintenance pause is not over"},
		{"long ago, and the pause is over", PlannedStop{At: noon.Add(-8 * time.Hour)}, pausedUntil(noon.Add(-time.Second)), false, "longer than --return-within"},
		{"a short while ago, and the pause is over", PlannedStop{At: noon.Add(-time.Minute)}, pausedUntil(noon.Add(-time.Second)), true, "1m0s ago"},
		{"of the future, and the pause lasts", PlannedStop{At: noon.Add(time.Hour)}, pausedUntil(noon.Add(time.Minute)), false, "ahead of this clock"},
		{"a crash a moment ago", PlannedStop{At: noon.Add(-4 * time.Second), Crash: true}, hour, true, "4s ago"},
		{"a crash, just within the TTL", PlannedStop{At: noon.Add(-32 * time.Second), Crash: true}, hour, true, "32s ago"},
		{"a crash, longer ago than the TTL", PlannedStop{At: noon.Add(-33 * time.Second), Crash: true}, hour, false, "longer than the TTL 32s"},
		{"a crash long ago, and the pause lasts", PlannedStop{At: noon.Add(-8 * time.Hour), Crash: true}, pausedUntil(noon.Add(time.Minute)), false, "longer than the TTL"},
		{"on another directory of data", PlannedStop{At: noon, Data: "jetstream@7:1", Found: "jetstream@8:2"}, hour, false, "the directory jetstream is not the one that held its data then"},
		{"the same, and the pause lasts", PlannedStop{At: noon, Data: "jetstream@7:1", Found: "jetstream@8:2"}, pausedUntil(noon.Add(time.Minute)), false, "jetstream"},
		{"on the same data", PlannedStop{At: noon, Data: "jetstream@7:1", Found: "jetstream@7:1"}, hour, true, "0s ago"},
		{"on data that is looked for elsewhere", PlannedStop{At: noon, Data: "jetstream@7:1", Found: ".@8:2"}, hour, true, "0s ago"},
		{"without data of its own then", PlannedStop{At: noon, Found: "jetstream@8:2"}, hour, true, "0s ago"},
		{"and what data it has is not known", PlannedStop{At: noon, Data: "jetstream@7:1"}, hour, true, "0s ago"},
		{"garbled", PlannedStop{At: noon, Unread: `"?" at /cluster/members/n0`}, hour, false, "/cluster/members/n0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if fits, says := c.left.Fits(c.r); fits != c.fits || !strings.Contains(says, c.says) {
				t.Errorf("%v: %q", fits, says)
			}
		})
	}
}
