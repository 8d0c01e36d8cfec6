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
			if fits, says := c.left.fits(c.r); fits != c.fits || !strings.Contains(says, c.says) {
				t.Errorf("%v: %q", fits, says)
			}
		})
	}
}

// A planned stop competes with every other row of the startup table.
func TestAPlannedStopYieldsToEachRowBeforeIt(t *testing.T) {
	left, old := &PlannedStop{At: noon.Add(-time.Minute)}, &PlannedStop{At: noon.Add(-2 * time.Hour)}
	crash, late := &PlannedStop{At: noon.Add(-4 * time.Second), Crash: true}, &PlannedStop{At: noon.Add(-time.Minute), Crash: true}
	moved := &PlannedStop{At: noon.Add(-time.Minute), Data: "jetstream@7:1", Found: "jetstream@8:2"}
	for _, c := range []struct {
		name   string
		left   *PlannedStop
		change func(f *StartupFacts)
		mode   Mode
		reason Reason
	}{
		{"alone", left, nil, Active, ReasonPlannedRestart},
		{"a crash, back at once", crash, nil, Active, ReasonFastRestart},
		{"a crash, back at once, its own registration is there again", crash, func(f *StartupFacts) { f.Holder, f.Reborn = Us, true }, Active, ReasonFastRestart},
		{"a crash, back after the TTL", late, nil, Drained, ReasonStaleRestart},
		{"a crash, drained by an operator meanwhile", crash, func(f *StartupFacts) { f.Stored = byPerson(Drained) }, Drained, "disk swap"},
		{"the state file is lost", left, func(f *StartupFacts) { f.Last, f.Remembered, f.ConfirmedAt = nil, 0, 0 }, Active, ReasonPlannedRestart},
		{"the whole cluster restarted", left, func(f *StartupFacts) { f.Era = 4 }, Active, ReasonPlannedRestart},
		{"activated by an operator meanwhile", left, func(f *StartupFacts) { f.Stored = byPerson(Active) }, Active, ReasonPlannedRestart},
		{"the broker's own registration is there again", left, func(f *StartupFacts) { f.Holder, f.Reborn = Us, true }, Active, ReasonPlannedRestart},
		{"restored backup", left, func(f *StartupFacts) { f.Revision = 399 }, Drained, ReasonRestoredBackup},
		{"corrupt state file", left, func(f *StartupFacts) { f.StateFileCorrupt = "torn" }, Drained, ReasonCorruptState},
		{"garbled mode", left, func(f *StartupFacts) { f.StoredGarbled, f.Stored = true, nil }, Drained, ReasonUnreadableMode},
		{"drained by an operator meanwhile", left, func(f *StartupFacts) { f.Stored = byPerson(Drained) }, Drained, "disk swap"},
		{"draining by an operator meanwhile", left, func(f *StartupFacts) { f.Stored = byPerson(Draining) }, Draining, "disk swap"},
		{"drained by recovery", left, func(f *StartupFacts) { f.Stored = byHoldfast(Drained, ReasonStaleRestart) }, Drained, ReasonStaleRestart},
		{"a first boot", left, func(f *StartupFacts) { f.Boot = FirstBoot }, Active, ReasonBoot},
		{"the registration is still there", left, func(f *StartupFacts) { f.Holder = Us }, Active, ReasonFastRestart},
		{"too long ago, the cluster lived on", old, nil, Drained, ReasonStaleRestart},
		{"too long ago, the whole cluster restarted", old, func(f *StartupFacts) { f.Era = 4 }, Active, ReasonFullClusterRestart},
		{"on other data, the cluster lived on", moved, nil, Drained, ReasonStaleRestart},
		{"on other data, its registration still there", moved, func(f *StartupFacts) { f.Holder = Us }, Active, ReasonFastRestart},
		{"its data is missing", left, func(f *StartupFacts) { f.Missing = "gone" }, Drained, ReasonDataMissing},
		{"garbled, the cluster lived on", &PlannedStop{Unread: "?"}, nil, Drained, ReasonUnreadableRecord},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := StartupFacts{ClusterFacts: member(nil), Boot: Restart, Left: c.left, Return: hour}
			if c.change != nil {
				c.change(&f)
			}
			d := DecideStartup(f)
			if d.Mode.Mode != c.mode || d.Mode.Reason != c.reason || d.Planned != (c.reason == ReasonPlannedRestart || c.left == crash && c.mode == Active) {
				t.Errorf("%s: %s", d, d.Detail)
			}
			if _, why := c.left.fits(hour); c.left != left && c.left != crash && c.reason != ReasonFastRestart && !strings.Contains(d.Detail, why) {
				t.Errorf("%q does not say that %s", d.Detail, why)
			}
		})
	}
}

func TestNothingLiftsAnOperatorsDrain(t *testing.T) {
	each(func(f ClusterFacts) {
		if f.Stored == nil || f.Stored.Mode == Active || f.Holder == Another {
			return
		}
		d := DecideStartup(StartupFacts{ClusterFacts: f, Boot: Restart, Left: &PlannedStop{At: noon}, Return: hour})
		_, doubtful := f.doubt() // which makes a draining broker drained
		if d.Mode.Mode == Active || !doubtful && d.Mode != *f.Stored {
			t.Errorf("%s from %+v", d, f)
		}
	})
}
