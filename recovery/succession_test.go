package recovery

import (
	"math/rand/v2"
	"testing"
)

// A broker that registers itself under another id at each start is judged by the same
// tables as any other.
func TestStartupTableForABrokerWithAnotherIDAtEachStart(t *testing.T) {
	booted := &ModeRecord{Active, ReasonBoot, ""}
	// Of a broker whose process before is gone, registration and state with it, while the
	// cluster lived on; the one that answers has registered itself.
	facts := func(change func(f *situation, s *SuccessionFacts)) (situation, SuccessionFacts) {
		f := gone(nil)
		s := SuccessionFacts{Own: Us, OwnState: booted}
		if change != nil {
			change(&f, &s)
		}
		f.Facts = f.Succeeding(s)
		return f, s
	}
	stands := func(_ *situation, s *SuccessionFacts) {
		s.Former, s.FormerState = Us, byHoldfast(Active, ReasonBoot)
	}
	for _, c := range []struct {
		name   string
		change func(f *situation, s *SuccessionFacts)
		step   Step
		mode   Mode
		reason Reason
		hands  bool // the assignments over
	}{
		{"first boot", func(f *situation, _ *SuccessionFacts) { firstBoot(f) }, Keep, Active, ReasonBoot, false},
		{"first boot with --join, over the broker's own word", func(f *situation, _ *SuccessionFacts) { firstBoot(f); f.Join = true }, Keep, Drained, ReasonJoin, false},
		{"old data, known to a state file alone, beside others", func(f *situation, _ *SuccessionFacts) { f.Last, f.Member = nil, nil }, Keep, Drained, ReasonStaleRestart, false},
		{"within the TTL", stands, Keep, Active, ReasonFastRestart, true},
		{"within the TTL, not registered yet", func(f *situation, s *SuccessionFacts) { stands(f, s); s.Own, s.OwnState = Nobody, nil }, Register, Drained, ReasonStaleRestart, false},
		{"within the TTL, drained by a person", func(f *situation, s *SuccessionFacts) { stands(f, s); s.FormerState = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"within the TTL, draining by a person", func(f *situation, s *SuccessionFacts) { stands(f, s); s.FormerState = byPerson(Draining) }, Keep, Draining, "disk swap", false},
		{"within the TTL, drained by a person whose word was deleted", func(f *situation, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, f.Last = nil, byPerson(Drained)
		}, Keep, Drained, "disk swap", false},
		{"within the TTL, activated by a person while it was down", func(f *situation, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, f.Last = byPerson(Active), byHoldfast(Drained, ReasonStaleRestart)
		}, Keep, Active, ReasonFastRestart, true},
		{"within the TTL, a person drained the new process", func(f *situation, s *SuccessionFacts) { stands(f, s); s.OwnState = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"within the TTL, a person drained the former one after we had begun", func(f *situation, s *SuccessionFacts) {
			stands(f, s)
			s.OwnBound, s.OwnState, s.FormerState = true, byHoldfast(Active, ReasonFastRestart), byPerson(Drained)
		}, Keep, Drained, "disk swap", false},
		{"within the TTL, the former state is garbled", func(f *situation, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, s.FormerGarbled = nil, true
		}, Keep, Drained, ReasonUnreadableMode, false},
		{"within the TTL, its own state is garbled", func(f *situation, s *SuccessionFacts) {
			stands(f, s)
			s.OwnState, s.OwnGarbled = nil, true
		}, Keep, Drained, ReasonUnreadableMode, false},
		{"within the TTL, from a restored backup", func(f *situation, s *SuccessionFacts) { stands(f, s); f.Restored = "older" }, Keep, Drained, ReasonRestoredBackup, false},
		{"finished before, and not known any more", func(_ *situation, s *SuccessionFacts) {
			s.OwnBound, s.OwnState = true, byHoldfast(Active, ReasonFastRestart)
		}, Keep, Active, ReasonFastRestart, false},
		{"after the TTL", nil, Keep, Drained, ReasonStaleRestart, false},
		{"after the TTL, drained by a person whose word went with the former process", func(f *situation, _ *SuccessionFacts) { f.Last = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"after the TTL, nobody else is registered", func(f *situation, _ *SuccessionFacts) { f.Others = false }, Keep, Active, ReasonFullClusterRestart, false},
		{"after the TTL, a full restart, drained by a person", func(f *situation, _ *SuccessionFacts) { f.Others, f.Last = false, byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"another sidecar keeps the former process", func(f *situation, s *SuccessionFacts) { stands(f, s); s.Former = Another }, Conflict, "", "", false},
		{"another sidecar keeps the one that answers", func(f *situation, s *SuccessionFacts) { stands(f, s); s.Own = Another }, Conflict, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := facts(c.change)
			d := f.decide()
			if d.Step != c.step || d.Mode.Mode != c.mode || d.Mode.Reason != c.reason {
				t.Errorf("%s: %s; want %s %s (%s)", d, d.Detail, c.step, c.mode, c.reason)
			}
			if got := s.HandsOver(d, false); got != c.hands {
				t.Errorf("%s hands over: %v", d, got)
			}
		})
	}
}

// The word that a broker writes for its own boot never wins, whatever else is known.
func TestTheBrokersOwnBootNeverActivatesWhatWasDrained(t *testing.T) {
	booted := &ModeRecord{Active, ReasonBoot, ""}
	r := rand.New(rand.NewPCG(3, 4))
	for range 50_000 {
		f := random(r)
		s := SuccessionFacts{Former: []Holder{Nobody, Us, Another}[r.IntN(3)], FormerState: f.Stored, FormerGarbled: f.Garbled, Own: Us, OwnBound: r.IntN(2) == 0, OwnState: booted}
		f.Facts, f.Same = f.Succeeding(s), false
		d := f.decide()
		person := s.FormerState != nil && s.FormerState.By == "operator" && s.FormerState.Mode != Active
		if person && d.Step < Conflict && d.Mode.Mode == Active {
			t.Fatalf("%s from %+v, %+v", d, f, s)
		}
		if s.HandsOver(d, false) && s.Former != Us || s.HandsOver(d, true) && s.Former == Another {
			t.Fatalf("%s hands over what is not ours, from %+v, %+v", d, f, s)
		}
	}
}

func TestWhoseAssignmentsAreHandedOver(t *testing.T) {
	d := Decision{Step: Keep, Mode: ModeRecord{Mode: Active}}
	for _, c := range []struct {
		former        Holder
		unseen, hands bool
	}{{Us, false, true}, {Us, true, true}, {Nobody, true, true}, {Nobody, false, false}, {Another, true, false}} {
		if got := (SuccessionFacts{Former: c.former}).HandsOver(d, c.unseen); got != c.hands {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
