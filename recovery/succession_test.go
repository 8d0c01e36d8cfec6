package recovery

import "testing"

// A broker that registers itself under another id at each start is judged by the same
// tables as any other.
func TestStartupTableForABrokerWithAnotherIDAtEachStart(t *testing.T) {
	booted := &ModeRecord{Active, ReasonBoot, ""}
	// Of a broker whose process before is gone, registration and state with it, while the
	// cluster lived on; the one that answers has registered itself.
	facts := func(change func(f *ClusterFacts, s *SuccessionFacts)) (ClusterFacts, SuccessionFacts) {
		f := member(func(f *ClusterFacts) { f.Adopted = true })
		s := SuccessionFacts{Own: Us, OwnState: booted}
		if change != nil {
			change(&f, &s)
		}
		return f.Succeeding(s), s
	}
	stands := func(_ *ClusterFacts, s *SuccessionFacts) {
		s.Former, s.FormerState = Us, byHoldfast(Active, ReasonBoot)
	}
	for _, c := range []struct {
		name   string
		boot   BootKind
		join   bool
		change func(f *ClusterFacts, s *SuccessionFacts)
		step   Step
		mode   Mode
		reason Reason
		hands  bool // the assignments over
	}{
		{"first boot", FirstBoot, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.Last, f.KnownMember, f.Remembered = nil, false, 0 }, Keep, Active, ReasonBoot, false},
		{"first boot with --join, over the broker's own word", FirstBoot, true, func(f *ClusterFacts, _ *SuccessionFacts) { f.Last, f.KnownMember, f.Remembered = nil, false, 0 }, Keep, Drained, ReasonJoin, false},
		{"old data, unknown to etcd, beside others", Restart, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.Last, f.KnownMember, f.Remembered = nil, false, 0 }, Keep, Drained, ReasonStaleRestart, false},
		{"within the TTL", Restart, false, stands, Keep, Active, ReasonFastRestart, true},
		{"within the TTL, not registered yet", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.Own, s.OwnState = Nobody, nil }, Register, Drained, ReasonStaleRestart, false},
		{"within the TTL, drained by a person", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.FormerState = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"within the TTL, draining by a person", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.FormerState = byPerson(Draining) }, Keep, Draining, "disk swap", false},
		{"within the TTL, drained by a person whose word was deleted", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, f.Last = nil, byPerson(Drained)
		}, Keep, Drained, "disk swap", false},
		{"within the TTL, activated by a person while it was down", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, f.Last = byPerson(Active), byHoldfast(Drained, ReasonStaleRestart)
		}, Keep, Active, ReasonFastRestart, true},
		{"within the TTL, a person drained the new process", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.OwnState = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"within the TTL, a person drained the former one after we had begun", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) {
			stands(f, s)
			s.OwnBound, s.OwnState, s.FormerState = true, byHoldfast(Active, ReasonFastRestart), byPerson(Drained)
		}, Keep, Drained, "disk swap", false},
		{"within the TTL, the former state is garbled", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) {
			stands(f, s)
			s.FormerState, s.FormerGarbled = nil, true
		}, Keep, Drained, ReasonUnreadableMode, false},
		{"within the TTL, its own state is garbled", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) {
			stands(f, s)
			s.OwnState, s.OwnGarbled = nil, true
		}, Keep, Drained, ReasonUnreadableMode, false},
		{"within the TTL, from a restored backup", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); f.Revision = 399 }, Keep, Drained, ReasonRestoredBackup, false},
		{"finished before, and not known any more", Restart, false, func(_ *ClusterFacts, s *SuccessionFacts) {
			s.OwnBound, s.OwnState = true, byHoldfast(Active, ReasonFastRestart)
		}, Keep, Active, ReasonFastRestart, false},
		{"after the TTL", Restart, false, nil, Keep, Drained, ReasonStaleRestart, false},
		{"after the TTL, drained by a person whose word went with the former process", Restart, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.Last = byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"after the TTL, nobody else is registered", Restart, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.PeerPresent, f.OldestPeer = false, 0 }, Keep, Active, ReasonFullClusterRestart, false},
		{"after the TTL, every peer is younger", Restart, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.OldestPeer = 391 }, Keep, Active, ReasonFullClusterRestart, false},
		{"after the TTL, a full restart, drained by a person", Restart, false, func(f *ClusterFacts, _ *SuccessionFacts) { f.PeerPresent, f.Last = false, byPerson(Drained) }, Keep, Drained, "disk swap", false},
		{"another sidecar keeps the former process", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.Former = Another }, Conflict, "", "", false},
		{"another sidecar keeps the one that answers", Restart, false, func(f *ClusterFacts, s *SuccessionFacts) { stands(f, s); s.Own = Another }, Conflict, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := facts(c.change)
			d := DecideStartup(StartupFacts{ClusterFacts: f, Boot: c.boot, Join: c.join})
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
	each(func(f ClusterFacts) {
		for _, former := range []Holder{Nobody, Us, Another} {
			for _, bound := range []bool{false, true} {
				s := SuccessionFacts{Former: former, FormerState: f.Stored, FormerGarbled: f.StoredGarbled, Own: Us, OwnBound: bound, OwnState: booted}
				d := DecideStartup(StartupFacts{ClusterFacts: f.Succeeding(s), Boot: Restart})
				drained := f.Stored != nil && f.Stored.Mode != Active || f.Stored == nil && f.Last != nil && f.Last.Mode != Active
				if drained && d.Step != Conflict && d.Mode.Mode == Active {
					t.Errorf("%s from %+v, %+v", d, f, s)
				}
				if s.HandsOver(d, false) && former != Us || s.HandsOver(d, true) && former == Another {
					t.Errorf("%s hands over what is not ours, from %+v, %+v", d, f, s)
				}
			}
		}
	})
}
