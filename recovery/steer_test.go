package recovery

import "testing"

func TestWhatABrokerIsToldToBe(t *testing.T) {
	decided := func(m ModeRecord) SteerFacts { return SteerFacts{Mode: m, Decided: true, Attached: true} }
	with := func(f SteerFacts, change func(*SteerFacts)) SteerFacts { change(&f); return f }
	active, draining, drained := *byHoldfast(Active, ReasonBoot), *byPerson(Draining), *byHoldfast(Drained, ReasonStaleRestart)
	for _, row := range []struct {
		name string
		f    SteerFacts
		to   Mode
		hold Hold
	}{
		{"active", decided(active), Active, HoldNone},
		{"active, by a person", decided(*byPerson(Active)), Active, HoldNone},
		{"drained", decided(drained), Drained, HoldNone},
		{"nothing before the startup decision", SteerFacts{Attached: true}, "", HoldUndecided},
		{"nothing to another process than the one it was about", with(decided(active), func(f *SteerFacts) { f.Decided = false }), "", HoldUndecided},
		{"nothing of a mode that cannot be read", decided(ModeRecord{Mode: Unreadable}), "", HoldUndecided},
		{"not active while detached", with(decided(active), func(f *SteerFacts) { f.Attached = false }), "", HoldDetached},
		{"nor drained: the fence has the broker to itself", with(decided(drained), func(f *SteerFacts) { f.Attached = false }), "", HoldDetached},
		{"draining waits until nothing is served", decided(draining), "", HoldServing},
		{"draining is over when nothing is served", with(decided(draining), func(f *SteerFacts) { f.Idle = true }), Drained, HoldNone},
		{"a broker whose cluster assigns drains by being drained", with(decided(draining), func(f *SteerFacts) { f.Assigns = true }), Drained, HoldNone},
		{"a pause holds back what recovery decided", with(decided(active), func(f *SteerFacts) { f.Paused = true }), "", HoldPaused},
		{"a pause holds back a drain by recovery", with(decided(drained), func(f *SteerFacts) { f.Paused = true }), "", HoldPaused},
		{"a person's word passes it", with(decided(*byPerson(Drained)), func(f *SteerFacts) { f.Paused = true }), Drained, HoldNone},
	} {
		t.Run(row.name, func(t *testing.T) {
			if to, hold := DecideSteer(row.f); to != row.to || hold != row.hold {
				t.Errorf("told %q, held %q; want %q, %q", to, hold, row.to, row.hold)
			}
		})
	}
}
