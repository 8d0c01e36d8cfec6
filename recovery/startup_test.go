package recovery

import "testing"

var (
	byPerson   = func(m Mode) *ModeRecord { return &ModeRecord{m, "disk swap", "operator"} }
	byHoldfast = func(m Mode, r Reason) *ModeRecord { return &ModeRecord{m, r, ByHoldfast} }
	byBroker   = &ModeRecord{Active, ReasonBoot, "broker"}
)

// member is a broker that was registered in era 3 and whose cluster lives on.
func member(change func(f *ClusterFacts)) ClusterFacts {
	f := ClusterFacts{PeerPresent: true, Era: 3, OurEra: 3, KnownMember: true, Revision: 500, Remembered: 400,
		OldestPeer: 100, ConfirmedAt: 390, Peers: Alive, PeersSaid: "n2 lived on",
		Stored: byHoldfast(Active, ReasonBoot), Last: byHoldfast(Active, ReasonBoot)}
	if change != nil {
		change(&f)
	}
	return f
}

func watched(l Life) func(f *ClusterFacts) {
	return func(f *ClusterFacts) {
		f.Peers, f.PeersSaid = l, map[Life]string{Lingering: "n2 did not renew its lease"}[l]
	}
}

func TestStartupTable(t *testing.T) {
	stranger := ClusterFacts{Revision: 500, Era: 3, PeerPresent: true, OldestPeer: 100, Peers: Alive, PeersSaid: "n2 lived on"}
	with := func(base ClusterFacts, change func(f *ClusterFacts)) ClusterFacts { change(&base); return base }
	for _, c := range []struct {
		name   string
		f      StartupFacts
		step   Step
		mode   Mode
		reason Reason
	}{
		{"first boot into an empty cluster", StartupFacts{Boot: FirstBoot, ClusterFacts: ClusterFacts{Revision: 1}}, Register, Active, ReasonBoot},
		{"first boot beside others", StartupFacts{Boot: FirstBoot, ClusterFacts: stranger}, Register, Active, ReasonBoot},
		{"first boot of a broker that registered itself", StartupFacts{Boot: FirstBoot, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.Holder, f.Adopted = Us, true })}, Keep, Active, ReasonBoot},
		{"joins for the first time", StartupFacts{Boot: FirstBoot, Join: true, ClusterFacts: stranger}, Register, Drained, ReasonJoin},
		{"joins with old data", StartupFacts{Boot: Restart, Join: true, ClusterFacts: stranger}, Register, Drained, ReasonJoin},
		{"joins again after it was activated", StartupFacts{Boot: Restart, Join: true, ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byPerson(Active) })}, Keep, Active, ReasonFastRestart},
		{"joins again before it was activated", StartupFacts{Boot: Restart, Join: true, ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byHoldfast(Drained, ReasonJoin) })}, Keep, Drained, ReasonJoin},
		{"restart within the TTL", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Us })}, Keep, Active, ReasonFastRestart},
		{"restart within the TTL, operator's drained", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byPerson(Drained) })}, Keep, Drained, "disk swap"},
		{"restart after the TTL, the cluster lived on", StartupFacts{Boot: Restart, ClusterFacts: member(nil)}, Register, Drained, ReasonStaleRestart},
		{"restart after the TTL, what stands may only linger", StartupFacts{Boot: Restart, ClusterFacts: member(watched(Unwatched))}, Await, "", ""},
		{"restart after the TTL, what stood only lingered", StartupFacts{Boot: Restart, ClusterFacts: member(watched(Lingering))}, Register, Active, ReasonFullClusterRestart},
		{"what may only linger, in a new era", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Era, f.Peers = 4, Unwatched })}, Register, Active, ReasonFullClusterRestart},
		{"what may only linger, our registration stands", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Peers = Us, Unwatched })}, Keep, Active, ReasonFastRestart},
		{"what may only linger, drained by an operator", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Stored, f.Peers = byPerson(Drained), Unwatched })}, Register, Drained, "disk swap"},
		{"what may only linger, restored backup", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Revision, f.Peers = 399, Unwatched })}, Register, Drained, ReasonRestoredBackup},
		{"what may only linger, first boot", StartupFacts{Boot: FirstBoot, ClusterFacts: member(watched(Unwatched))}, Register, Active, ReasonBoot},
		{"what may only linger, first installation", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: with(stranger, watched(Unwatched))}, Register, Active, ReasonFirstRegistration},
		{"what may only linger, no member record", StartupFacts{Boot: Restart, ClusterFacts: with(stranger, watched(Unwatched))}, Await, "", ""},
		{"what only lingered, no member record", StartupFacts{Boot: Restart, ClusterFacts: with(stranger, watched(Lingering))}, Register, Active, ReasonFullClusterRestart},
		{"adopted: what stands decides", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.Peers = true, Unwatched })}, Register, Drained, ReasonStaleRestart},
		{"without an etcd: the broker's cluster knows", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Told, f.Peers = true, Unwatched })}, Register, Drained, ReasonStaleRestart},
		{"restart after the TTL, nobody is registered", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.PeerPresent, f.OldestPeer = false, 0 })}, Register, Active, ReasonFullClusterRestart},
		{"restart after the TTL, somebody came first in a new era", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Era = 4 })}, Register, Active, ReasonFullClusterRestart},
		{"the same, state directory lost", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Era, f.Last, f.Remembered, f.ConfirmedAt = 4, nil, 0, 0 })}, Register, Active, ReasonFullClusterRestart},
		{"late in a rolling restart, state directory lost", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Last, f.Remembered, f.ConfirmedAt = nil, 0, 0 })}, Register, Drained, ReasonStaleRestart},
		{"the data is missing, within the TTL", StartupFacts{Boot: Restart, Missing: "another disk", ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Us })}, Keep, Drained, ReasonDataMissing},
		{"the data is missing, declared dead", StartupFacts{Boot: Restart, Missing: "another disk", ClusterFacts: member(nil)}, Register, Drained, ReasonDataMissing},
		{"the data is missing, after a full restart", StartupFacts{Boot: Restart, Missing: "another disk", ClusterFacts: member(func(f *ClusterFacts) { f.Era = 4 })}, Register, Drained, ReasonDataMissing},
		{"the data is missing, at a first boot", StartupFacts{Boot: FirstBoot, Missing: "another disk", ClusterFacts: stranger}, Register, Drained, ReasonDataMissing},
		{"the data is missing, operator's drained", StartupFacts{Boot: Restart, Missing: "another disk", ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byPerson(Drained) })}, Keep, Drained, "disk swap"},
		{"the data is missing, with --join", StartupFacts{Boot: Restart, Join: true, Missing: "another disk", ClusterFacts: stranger}, Register, Drained, ReasonJoin},
		{"the data is missing, restored backup", StartupFacts{Boot: Restart, Missing: "another disk", ClusterFacts: member(func(f *ClusterFacts) { f.Revision = 399 })}, Register, Drained, ReasonRestoredBackup},
		{"it fences itself, the cluster lived on", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(nil)}, Register, Active, ReasonStaleRestart},
		{"it fences itself, adopted: what stands decides", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.Holder, f.Reborn = true, Us, true })}, Keep, Active, ReasonStaleRestart},
		{"it fences itself, what stands may only linger", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(watched(Unwatched))}, Register, Active, ReasonStaleRestart},
		{"it fences itself, what stood only lingered", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(watched(Lingering))}, Register, Active, ReasonFullClusterRestart},
		{"it fences itself, a record cannot be read", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(func(f *ClusterFacts) { f.Unread.Record, f.KnownMember = "torn", false })}, Register, Active, ReasonStaleRestart},
		{"it fences itself, operator's drained", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Drained) })}, Register, Drained, "disk swap"},
		{"it fences itself, recovery's drained, not activated yet", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byHoldfast(Drained, ReasonStaleRestart) })}, Register, Drained, ReasonStaleRestart},
		{"it fences itself, restored backup", StartupFacts{Boot: Restart, Stays: true, ClusterFacts: member(func(f *ClusterFacts) { f.Revision = 399 })}, Register, Drained, ReasonRestoredBackup},
		{"first installation beside others", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: stranger}, Register, Active, ReasonFirstRegistration},
		{"first installation, alone", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: ClusterFacts{Revision: 500}}, Register, Active, ReasonFirstRegistration},
		{"first installation, serves what is others'", StartupFacts{Boot: Restart, Unknown: true, Strange: "/default/a", ClusterFacts: stranger}, Register, Drained, ReasonUnknownData},
		{"first installation, with --join", StartupFacts{Boot: Restart, Unknown: true, Join: true, ClusterFacts: stranger}, Register, Drained, ReasonJoin},
		{"first installation, drained before by an operator", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.Stored = byPerson(Drained) })}, Register, Drained, "disk swap"},
		{"first installation, garbled mode", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.StoredGarbled = true })}, Register, Drained, ReasonUnreadableMode},
		{"first installation, corrupt state file", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.StateFileCorrupt = "torn" })}, Register, Drained, ReasonCorruptState},
		{"first installation, the broker's own registration is there", StartupFacts{Boot: Restart, Unknown: true, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.Holder, f.Adopted = Us, true })}, Keep, Active, ReasonFastRestart},
		{"first boot, unknown", StartupFacts{Boot: FirstBoot, Unknown: true, ClusterFacts: stranger}, Register, Active, ReasonBoot},
		{"old data, known to etcd by its assignments alone", StartupFacts{Boot: Restart, ClusterFacts: stranger}, Register, Drained, ReasonStaleRestart},
		{"operator's drained, after a full restart", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Era, f.Stored = 4, byPerson(Drained) })}, Register, Drained, "disk swap"},
		{"operator's draining, after the TTL", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Draining) })}, Register, Draining, "disk swap"},
		{"operator's drained before the first boot", StartupFacts{Boot: FirstBoot, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.Stored = byPerson(Drained) })}, Register, Drained, "disk swap"},
		{"recovery's drained, not activated yet", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Era, f.Stored = 4, byHoldfast(Drained, ReasonStaleRestart) })}, Register, Drained, ReasonStaleRestart},
		{"the drained that we had, its key deleted", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored, f.Last = Us, nil, byPerson(Drained) })}, Keep, Drained, "disk swap"},
		{"the drained that we had, overwritten by the broker's boot", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) {
			f.Holder, f.Stored, f.Last = Us, byBroker, byHoldfast(Drained, ReasonStaleRestart)
		})}, Keep, Drained, ReasonStaleRestart},
		{"the drained that we had, lifted by a person meanwhile", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) {
			f.Holder, f.Stored, f.Last = Us, byPerson(Active), byHoldfast(Drained, ReasonStaleRestart)
		})}, Keep, Active, ReasonFastRestart},
		{"adopted, every peer younger than our last renewal", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.OldestPeer = true, 391 })}, Register, Active, ReasonFullClusterRestart},
		{"adopted, a peer as old as our last renewal", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.OldestPeer = true, 390 })}, Register, Drained, ReasonStaleRestart},
		{"adopted, last renewal unknown", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.OldestPeer, f.ConfirmedAt = true, 391, 0 })}, Register, Drained, ReasonStaleRestart},
		{"own, every peer younger: the era decides", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.OldestPeer = 391 })}, Register, Drained, ReasonStaleRestart},
		{"restored backup", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Revision = 399 })}, Register, Drained, ReasonRestoredBackup},
		{"restored backup, our registration in it", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Revision, f.Holder = 399, Us })}, Keep, Drained, ReasonRestoredBackup},
		{"restored backup, the registration that was given up stands", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Undone, f.Holder = true, Us })}, Keep, Drained, ReasonRestoredBackup},
		{"the same, operator's drained", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Undone, f.Holder, f.Stored = true, Us, byPerson(Drained) })}, Keep, Drained, "disk swap"},
		{"restored backup, empty", StartupFacts{Boot: Restart, ClusterFacts: ClusterFacts{Revision: 1, Remembered: 400}}, Register, Drained, ReasonRestoredBackup},
		{"restored backup, operator's drained", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Revision, f.Stored = 399, byPerson(Drained) })}, Register, Drained, "disk swap"},
		{"the revision that we remember", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.Revision, f.Holder = 400, Us })}, Keep, Active, ReasonFastRestart},
		{"corrupt state file", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.StateFileCorrupt, f.Holder = "torn", Us })}, Keep, Drained, ReasonCorruptState},
		{"corrupt state file in a full restart", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.StateFileCorrupt, f.Era = "torn", 4 })}, Register, Drained, ReasonCorruptState},
		{"corrupt state file, operator's draining", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.StateFileCorrupt, f.Stored = "torn", byPerson(Draining) })}, Register, Drained, ReasonCorruptState},
		{"garbled mode", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.StoredGarbled, f.Stored, f.Holder = true, nil, Us })}, Keep, Drained, ReasonUnreadableMode},
		{"garbled mode at a first boot", StartupFacts{Boot: FirstBoot, ClusterFacts: with(stranger, func(f *ClusterFacts) { f.StoredGarbled = true })}, Register, Drained, ReasonUnreadableMode},
		{"garbled mode, a person's drained was ours", StartupFacts{Boot: Restart, ClusterFacts: member(func(f *ClusterFacts) { f.StoredGarbled, f.Stored, f.Last = true, nil, byPerson(Drained) })}, Register, Drained, "disk swap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := DecideStartup(c.f)
			if d.Step != c.step || d.Mode.Mode != c.mode || d.Mode.Reason != c.reason {
				t.Errorf("%s: %s; want %s %s (%s)", d, d.Detail, c.step, c.mode, c.reason)
			}
			if d.Detail == "" && d.Step != Await {
				t.Error("no sentence says why")
			}
			if d.Step == Await {
				return
			}
			if (c.f.Stored == nil || *c.f.Stored != d.Mode) && !d.Write {
				t.Errorf("etcd has %v, and %v is not written", c.f.Stored, d.Mode)
			}
			if c.f.Stored != nil && c.f.Stored.By == "operator" && d.Mode == *c.f.Stored && d.Write {
				t.Error("a person's word is written again")
			}
		})
	}
}

func TestAnotherIncarnationIsLeftAloneAtStartup(t *testing.T) {
	for _, boot := range []BootKind{FirstBoot, Restart} {
		for name, change := range map[string]func(f *ClusterFacts){
			"plain":           func(*ClusterFacts) {},
			"restored backup": func(f *ClusterFacts) { f.Revision = 1 },
			"garbled mode":    func(f *ClusterFacts) { f.StoredGarbled = true },
			"drained":         func(f *ClusterFacts) { f.Stored = byPerson(Drained) },
		} {
			f := member(change)
			f.Holder = Another
			if d := DecideStartup(StartupFacts{ClusterFacts: f, Boot: boot}); d.Step != Conflict || d.Write {
				t.Errorf("%s, %s: %s", boot, name, d)
			}
		}
	}
}

// Whatever the evidence: a broker that may have been declared dead, or of which we
// know less than we should, is not made active.
func TestNoStartupActivatesInDoubt(t *testing.T) {
	each(func(f ClusterFacts) {
		for _, boot := range []BootKind{FirstBoot, Restart} {
			d := DecideStartup(StartupFacts{ClusterFacts: f, Boot: boot})
			if d.Step == Conflict {
				continue
			}
			doubt := f.Remembered > f.Revision || f.Undone || f.StateFileCorrupt != "" || f.StoredGarbled
			held := f.Stored != nil && f.Stored.Mode != Active
			if (doubt || held) && d.Mode.Mode == Active {
				t.Errorf("%s from %+v", d, f)
			}
			if doubt && d.Mode.Mode != Drained {
				t.Errorf("%s in doubt, from %+v", d, f)
			}
			if d.Mode.Mode.Known() == (d.Step == Await) {
				t.Errorf("%s from %+v", d, f)
			}
			// Safety rule 12.
			if d.Step == Await && f.Peers != Unwatched || d.Mode.Reason == ReasonStaleRestart && !held && f.Peers != Alive && f.Last.active() && !(f.Adopted && (f.Peers == Unwatched || !f.KnownMember)) {
				t.Errorf("%s from %+v", d, f)
			}
		}
	})
}

func (m *ModeRecord) active() bool { return m == nil || m.Mode == Active }

// each calls f with every combination of the facts.
func each(do func(f ClusterFacts)) {
	modes := []*ModeRecord{nil, byPerson(Active), byPerson(Drained), byPerson(Draining), byHoldfast(Active, ReasonBoot),
		byHoldfast(Drained, ReasonStaleRestart), byBroker}
	yes := []bool{false, true}
	for _, holder := range []Holder{Nobody, Us, Another} {
		for _, stored := range modes {
			for _, last := range modes {
				for bits := range 3 * 128 {
					bit := func(n int) bool { return yes[bits>>n&1] }
					f := ClusterFacts{Holder: holder, Stored: stored, Last: last, PeerPresent: bit(0), KnownMember: bit(1),
						Adopted: bit(2), Era: 3, OurEra: 3, Revision: 500, Remembered: 400, OldestPeer: 100, ConfirmedAt: 390, Peers: Life(bits / 128)}
					if bit(3) {
						f.Era = 4
					}
					if bit(4) {
						f.Revision = 399
					}
					if bit(5) {
						f.StateFileCorrupt = "torn"
					}
					f.Undone = bit(6)
					do(f)
					if stored == nil {
						f.StoredGarbled = true
						do(f)
					}
				}
			}
		}
	}
}
