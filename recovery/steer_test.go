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
		hold Halt
	}{
		{"active", decided(active), Active, HaltNone},
		{"active, by a person", decided(*byPerson(Active)), Active, HaltNone},
		{"drained", decided(drained), Drained, HaltNone},
		{"nothing before the startup decision", SteerFacts{Attached: true}, "", HaltUndecided},
		{"nothing to another process than the one it was about", with(decided(active), func(f *SteerFacts) { f.Decided = false }), "", HaltUndecided},
		{"nothing of a mode that cannot be read", decided(ModeRecord{Mode: Unreadable}), "", HaltUndecided},
		{"not active while detached", with(decided(active), func(f *SteerFacts) { f.Attached = false }), "", HaltDetached},
		{"nor drained: the fence has the broker to itself", with(decided(drained), func(f *SteerFacts) { f.Attached = false }), "", HaltDetached},
		{"draining waits until nothing is served", decided(draining), "", HaltServing},
		{"draining is over when nothing is served", with(decided(draining), func(f *SteerFacts) { f.Idle = true }), Drained, HaltNone},
		{"a broker whose cluster assigns drains by being drained", with(decided(draining), func(f *SteerFacts) { f.Assigns = true }), Drained, HaltNone},
		{"a pause holds back what recovery decided", with(decided(active), func(f *SteerFacts) { f.Paused = true }), "", HaltPaused},
		{"a pause holds back a drain by recovery", with(decided(drained), func(f *SteerFacts) { f.Paused = true }), "", HaltPaused},
		{"a person's word passes it", with(decided(*byPerson(Drained)), func(f *SteerFacts) { f.Paused = true }), Drained, HaltNone},
	} {
		t.Run(row.name, func(t *testing.T) {
			if to, hold := DecideSteer(row.f); to != row.to || hold != row.hold {
				t.Errorf("told %q, held %q; want %q, %q", to, hold, row.to, row.hold)
			}
		})
	}
}
