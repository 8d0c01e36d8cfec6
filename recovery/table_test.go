package recovery

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

var (
	byPerson   = func(m Mode) *ModeRecord { return &ModeRecord{m, "disk swap", "operator"} }
	byHoldfast = func(m Mode, r Reason) *ModeRecord { return &ModeRecord{m, r, ByHoldfast} }
	byBroker   = &ModeRecord{Active, ReasonBoot, "broker"}
	justLeft   = &PlannedStop{At: noon}
	rules      = Rules{TTL: 32 * time.Second, Renewal: 4 * time.Second, Within: time.Hour, Share: 0.5, Policy: PolicyDrain}
)

// situation is what a decision rests on.
type situation struct {
	Facts
	Rules
}

func (s situation) decide() Decision {
	return Decide(s.Facts, s.Rules)
}

// gone is a new process of a broker that was active and is not registered any more, while others are.
func gone(change func(s *situation)) situation {
	s := situation{Facts{Now: noon, Revision: 500, Others: true, EraAt: 100, Begun: true, Memory: true, Confirmed: Proven{390, noon.Add(-time.Minute)},
		Stored: byHoldfast(Active, ReasonBoot), Last: byHoldfast(Active, ReasonBoot),
		Boot:   BootFacts{BrokerStartedAt: noon.Add(-5 * time.Second), OldestMarker: noon.Add(-time.Hour)},
		Member: &Member{Revision: 200, At: noon.Add(-time.Hour)}}, rules}
	if change != nil {
		change(&s)
	}
	return s
}

// lost is the same process, with its registration gone.
func lost(change func(s *situation)) situation {
	return gone(func(s *situation) {
		s.Same = true
		if change != nil {
			change(s)
		}
	})
}

func member(s *situation) *Member { m := *s.Member; s.Member = &m; return &m }

// fresh is a broker of whom nobody ever heard.
func fresh(s *situation) {
	s.Memory, s.Confirmed, s.Last, s.Stored, s.Member, s.NoMember = false, Proven{}, nil, nil, nil, ""
}

func firstBoot(s *situation) { fresh(s); s.Boot.OldestMarker = time.Time{} }

func stands(s *situation) { s.Holder, s.Stands = Us, true }

func suspectOf(row Reason) func(s *situation) {
	return func(s *situation) {
		member(s).Suspect = &Suspect{Proven{300, noon.Add(-2 * time.Minute)}, row}
		s.Stored, s.Last = byHoldfast(Drained, row), byHoldfast(Drained, row)
	}
}

func TestTable(t *testing.T) {
	all := func(of ...func(*situation)) func(*situation) {
		return func(s *situation) {
			for _, f := range of {
				f(s)
			}
		}
	}
	for _, c := range []struct {
		name   string
		s      situation
		step   Step
		mode   Mode
		reason Reason
	}{
		{"first boot into an empty cluster", gone(all(firstBoot, func(s *situation) { s.Others = false })), Register, Active, ReasonBoot},
		{"first boot beside others", gone(firstBoot), Register, Active, ReasonBoot},
		{"first boot of a broker that registered itself", gone(all(firstBoot, func(s *situation) { s.Holder = Us })), Keep, Active, ReasonBoot},
		{"joins for the first time", gone(all(firstBoot, func(s *situation) { s.Join = true })), Register, Drained, ReasonJoin},
		{"joins with old data", gone(all(fresh, func(s *situation) { s.Join = true })), Register, Drained, ReasonJoin},
		{"joins again after it was activated", gone(all(stands, func(s *situation) { s.Join, s.Stored = true, byPerson(Active) })), Keep, Active, ReasonFastRestart},
		{"joins again before it was activated", gone(all(stands, func(s *situation) { s.Join, s.Stored, s.Last = true, byHoldfast(Drained, ReasonJoin), nil })), Keep, Drained, ReasonJoin},
		{"back within the TTL", gone(stands), Keep, Active, ReasonFastRestart},
		{"back within the TTL, drained by an operator", gone(all(stands, func(s *situation) { s.Stored = byPerson(Drained) })), Keep, Drained, "disk swap"},
		{"gone while others stood", gone(nil), Register, Drained, ReasonStaleRestart},
		{"gone while others stood, without a memory", gone(func(s *situation) { s.Memory, s.Confirmed, s.Last = false, Proven{}, nil }), Register, Drained, ReasonStaleRestart},
		{"without a memory, the era written since its member record", gone(func(s *situation) { s.Memory, s.Confirmed, s.Last, s.EraAt = false, Proven{}, nil, 201 }), Register, Active, ReasonFullClusterRestart},
		{"without memory and member record", gone(func(s *situation) { s.Memory, s.Confirmed, s.Last, s.Member, s.EraAt = false, Proven{}, nil, nil, 450 }), Register, Drained, ReasonStaleRestart},
		{"nobody else is registered", gone(func(s *situation) { s.Others = false }), Register, Active, ReasonFullClusterRestart},
		{"the era was written since its last renewal", gone(func(s *situation) { s.EraAt = 391 }), Register, Active, ReasonFullClusterRestart},
		{"the era's key was written since, and no era began", gone(func(s *situation) { s.EraAt, s.Begun = 391, false }), Register, Drained, ReasonStaleRestart},
		{"a suspect, back within the TTL, its state key deleted and its state file lost", gone(all(suspectOf(ReasonStaleRestart), stands, func(s *situation) { s.Stored, s.Last = nil, nil })), Keep, Drained, ReasonStaleRestart},
		{"a suspect, back within the TTL, its state key deleted and its state file older", gone(all(suspectOf(ReasonStaleRestart), stands, func(s *situation) { s.Stored, s.Last = nil, byHoldfast(Active, ReasonBoot) })), Keep, Drained, ReasonStaleRestart},
		{"every other one is younger", gone(func(s *situation) { s.Younger = true }), Register, Active, ReasonFullClusterRestart},
		{"the era was written before", gone(func(s *situation) { s.EraAt = 390 }), Register, Drained, ReasonStaleRestart},
		{"its own registration is there again", gone(func(s *situation) { s.Holder = Us }), Keep, Drained, ReasonStaleRestart},
		{"never registered here", gone(fresh), Register, Active, ReasonFirstRegistration},
		{"never registered here, and serves others' topics", gone(all(fresh, func(s *situation) { s.Strange = "/default/a" })), Register, Drained, ReasonUnknownData},
		{"the member record cannot be read", gone(func(s *situation) { s.Member, s.NoMember = nil, "?" }), Register, Drained, ReasonUnreadableRecord},
		{"the member record cannot be read, and the registration stands", gone(all(stands, func(s *situation) { s.Member, s.NoMember = nil, "?" })), Keep, Active, ReasonFastRestart},
		{"the member record cannot be read, and the era was written since", gone(func(s *situation) { s.Member, s.NoMember, s.EraAt = nil, "?", 391 }), Register, Active, ReasonFullClusterRestart},
		{"the member record cannot be read, and nothing is remembered", gone(func(s *situation) { s.Member, s.NoMember, s.EraAt, s.Confirmed = nil, "?", 400, Proven{} }), Register, Drained, ReasonUnreadableRecord},
		{"the era was written since, and cannot be read", gone(func(s *situation) { s.EraAt, s.NoEra = 391, "?" }), Register, Drained, ReasonUnreadableRecord},
		{"the era was written before, and cannot be read", gone(func(s *situation) { s.EraAt, s.NoEra = 390, "?" }), Register, Drained, ReasonStaleRestart},
		{"its note of a planned stop cannot be read", gone(func(s *situation) { member(s).Left = &PlannedStop{At: noon, Unread: "?"} }), Register, Drained, ReasonUnreadableRecord},
		{"its state file cannot be read, drained by an operator", gone(func(s *situation) { s.Corrupt, s.Stored = "?", byPerson(Drained) }), Register, Drained, "disk swap"},
		{"its state file cannot be read, draining by an operator", gone(func(s *situation) { s.Corrupt, s.Stored = "?", byPerson(Draining) }), Register, Drained, ReasonCorruptState},
		{"its state file cannot be read, a suspect", gone(all(suspectOf(ReasonStaleRestart), func(s *situation) { s.Corrupt = "?" })), Register, Drained, ReasonCorruptState},
		{"its storage fences it, and it is to reconnect", gone(func(s *situation) { s.FencesItself, s.Policy = true, PolicyReconnect }), Register, Active, ReasonStaleRestart},
		{"it is to reconnect, and is another process", gone(func(s *situation) { s.Policy = PolicyReconnect }), Register, Drained, ReasonStaleRestart},
		{"a suspect, back within the TTL", gone(all(suspectOf(ReasonStaleRestart), stands)), Keep, Drained, ReasonStaleRestart},
		{"a suspect, gone again", gone(suspectOf(ReasonStaleRestart)), Register, Drained, ReasonStaleRestart},
		{"a suspect, gone again, nobody else there", gone(all(suspectOf(ReasonStaleRestart), func(s *situation) { s.Others = false })), Register, Active, ReasonFullClusterRestart},
		{"a suspect, gone again, the era written since its first loss", gone(all(suspectOf(ReasonStaleRestart), func(s *situation) { s.EraAt = 301 })), Register, Active, ReasonFullClusterRestart},
		{"a suspect that an operator drained", gone(all(suspectOf(ReasonStaleRestart), func(s *situation) { s.Stored, s.Others = byPerson(Drained), false })), Register, Drained, "disk swap"},

		{"survived", lost(stands), Keep, Active, ReasonBoot},
		{"survived, drained by an operator", lost(all(stands, func(s *situation) { s.Stored = byPerson(Drained) })), Keep, Drained, "disk swap"},
		{"survived, and the mode is garbled", lost(all(stands, func(s *situation) { s.Garbled, s.Stored = true, nil })), Keep, Active, ReasonBoot},
		{"survived, a suspect", lost(all(suspectOf(ReasonRegistrationExpired), stands)), Keep, Drained, ReasonRegistrationExpired},
		{"lost while others stood", lost(nil), Register, Drained, ReasonRegistrationExpired},
		{"lost, nobody else is registered", lost(func(s *situation) { s.Others = false }), Register, Active, ReasonFleetExpired},
		{"lost, draining by recovery's word", lost(func(s *situation) { s.Others, s.Last, s.Stored = false, byPerson(Draining), byPerson(Draining) }), Register, Draining, "disk swap"},
		{"lost again as a suspect, nobody else is registered", lost(all(suspectOf(ReasonRegistrationExpired), func(s *situation) { s.Others = false })), Register, Active, ReasonFleetExpired},
		{"lost, the broker brought its key back", lost(func(s *situation) { s.Holder = Us }), Keep, Drained, ReasonRegistrationExpired},
		{"lost, to be stopped", lost(func(s *situation) { s.Policy = PolicyShutdown }), Shutdown, Active, ReasonBoot},
		{"lost, to be stopped, nobody else is registered", lost(func(s *situation) { s.Policy, s.Others = PolicyShutdown, false }), Register, Active, ReasonFleetExpired},
		{"lost, to reconnect", lost(func(s *situation) { s.Policy = PolicyReconnect }), Register, Active, ReasonBoot},
		{"lost, to reconnect, retries used up", lost(func(s *situation) { s.Policy, s.RetriesUsed = PolicyReconnect, true }), Shutdown, Active, ReasonBoot},
		{"lost, activated by the broker's own boot over an operator's drain", lost(func(s *situation) { s.Stored, s.Last = byBroker, byPerson(Drained) }), Register, Drained, "disk swap"},
		{"lost, without an etcd", lost(func(s *situation) { s.NoEtcd = true }), Register, Drained, ReasonRegistrationExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.s.decide()
			if d.Step != c.step || d.Mode.Mode != c.mode || d.Mode.Reason != c.reason {
				t.Errorf("%s by %s: %s; want %s %s (%s)", d, d.Row, d.Detail, c.step, c.mode, c.reason)
			}
			suspicion := d.Mode.Mode == Drained && d.Mode.By == ByHoldfast && (d.Mode.Reason == ReasonStaleRestart || d.Mode.Reason == ReasonRegistrationExpired)
			if (d.Suspect != nil) != (suspicion && !c.s.NoEtcd) {
				t.Errorf("suspect %v", d.Suspect)
			}
		})
	}
}

// A mode that etcd has already is not written again, and why a note does not count is said.
func TestWhatADecisionWritesAndSays(t *testing.T) {
	for _, c := range []struct {
		s     situation
		write bool
		says  string
	}{
		{lost(stands), false, "survived"},
		{lost(func(s *situation) { stands(s); s.Stored = nil }), true, "survived"},
		{gone(func(s *situation) { stands(s); s.Stored = byPerson(Drained) }), false, "operator"},
		{gone(func(s *situation) { s.Corrupt, s.Stored = "it is cut off", byPerson(Drained) }), false, "it is cut off"},
		{gone(func(s *situation) { member(s).Left = &PlannedStop{At: noon.Add(-2 * time.Hour)} }), true, "; it left on purpose, but"},
		{gone(nil), true, "other brokers are registered"},
	} {
		if d := c.s.decide(); d.Write != c.write || !strings.Contains(d.Detail, c.says) || strings.HasSuffix(d.Detail, "; ") {
			t.Errorf("%s: write %t, %q", d, d.Write, d.Detail)
		}
	}
}

// The first loss stays the one that is asked about.
func TestASuspectIsAskedAboutItsFirstLoss(t *testing.T) {
	for _, s := range []situation{gone(suspectOf(ReasonStaleRestart)), lost(suspectOf(ReasonStaleRestart)), gone(func(s *situation) { suspectOf(ReasonStaleRestart)(s); stands(s) })} {
		if d := s.decide(); d.Suspect == nil || d.Suspect.Lost.Revision != 300 {
			t.Errorf("%s: %+v", d, d.Suspect)
		}
	}
	for _, c := range []struct {
		change func(*situation)
		lost   Proven
	}{
		{nil, Proven{390, noon.Add(-time.Minute)}},
		{func(s *situation) { member(s).Revision = 395 }, Proven{395, noon.Add(-time.Minute)}},
		{func(s *situation) { s.Member = nil }, Proven{390, noon.Add(-time.Minute)}},
		{func(s *situation) { s.Confirmed = Proven{} }, Proven{Revision: 200}},
		{func(s *situation) { s.Member, s.Confirmed = nil, Proven{} }, Proven{Revision: 500}},
	} {
		if d := gone(c.change).decide(); d.Suspect.Lost != c.lost {
			t.Errorf("%+v, want %+v", d.Suspect, c.lost)
		}
	}
}

func TestOfTwoRowsTheEarlierDecides(t *testing.T) {
	type s = *situation
	byOperator, byRecovery, draining := byPerson(Drained), byHoldfast(Drained, ReasonDataMissing), byPerson(Draining)
	decide := func(s situation) Decision { return s.decide() }
	decidesFirst(t, gone(nil), decide, []rule[situation]{
		{"another incarnation is registered", RowConflict, "holder", func(f s) { f.Holder = Another }},
		{"a revision above etcd's is remembered", ReasonRestoredBackup, "", func(f s) { f.Restored = "etcd is at revision 500" }},
		{"the state file is torn", ReasonCorruptState, "", func(f s) { f.Corrupt = "torn" }},
		{"the mode is garbled", ReasonUnreadableMode, "state", func(f s) { f.Garbled, f.Stored = true, nil }},
		{"an operator drained it", RowKept, "state", func(f s) { f.Stored = byOperator }},
		{"an operator drains it", RowKept, "state", func(f s) { f.Stored = draining }},
		{"recovery drained it", RowKept, "state", func(f s) { f.Stored, f.Last = byRecovery, byRecovery }},
		{"it was drained, and its state key is gone", RowKept, "state", func(f s) { f.Stored, f.Last = nil, byOperator }},
		{"--join, no member yet", ReasonJoin, "state member", func(f s) { f.Join, f.Member, f.NoMember, f.Stored = true, nil, "", nil }},
		{"its data is gone", ReasonDataMissing, "", func(f s) { f.HadData, f.Boot.DirGone = "jetstream@7:1", "/data" }},
		{"first boot", ReasonBoot, "state member", func(f s) { firstBoot(f) }},
		{"its registration is there", ReasonFastRestart, "holder", func(f s) { stands(f) }},
		{"it crashed a moment ago", ReasonFastRestart, "member", func(f s) { f.Member = &Member{Revision: 200, Left: &PlannedStop{At: noon, Crash: true}} }},
		{"it left on purpose", ReasonPlannedRestart, "member", func(f s) { f.Member = &Member{Revision: 200, Left: justLeft} }},
		{"nobody is registered", ReasonFullClusterRestart, "", func(f s) { f.Others = false }},
		{"the era was written since", ReasonFullClusterRestart, "", func(f s) { f.EraAt = 450 }},
		{"the policy is reconnect, and its storage fences it", RowReconnected, "", func(f s) { f.Policy, f.FencesItself = PolicyReconnect, true }},
		{"its member record cannot be read", ReasonUnreadableRecord, "member", func(f s) { f.Member, f.NoMember = nil, "?" }},
		{"others stand", ReasonStaleRestart, "", func(s) {}},
	})
	decidesFirst(t, lost(nil), decide, []rule[situation]{
		{"another incarnation is registered", RowConflict, "holder", func(f s) { f.Holder = Another }},
		{"a revision above etcd's is remembered", ReasonRestoredBackup, "", func(f s) { f.Restored = "etcd is at revision 500" }},
		{"the state file is torn", ReasonCorruptState, "", func(f s) { f.Corrupt = "torn" }},
		{"the registration survived", RowSurvived, "holder", func(f s) { stands(f) }},
		{"the mode is garbled", ReasonUnreadableMode, "state holder", func(f s) { f.Garbled, f.Stored = true, nil }},
		{"an operator drained it meanwhile", RowKept, "state", func(f s) { f.Stored = byOperator }},
		{"it was drained, and its state key is gone", RowKept, "state", func(f s) { f.Stored, f.Last = nil, byRecovery }},
		{"nobody is registered", ReasonFleetExpired, "", func(f s) { f.Others = false }},
		{"the era was written since", ReasonFleetExpired, "", func(f s) { f.EraAt = 450 }},
		{"the policy is shutdown", ReasonSessionExpired, "policy", func(f s) { f.Policy = PolicyShutdown }},
		{"the policy is reconnect, retries used up", ReasonSessionExpired, "policy", func(f s) { f.Policy, f.RetriesUsed = PolicyReconnect, true }},
		{"the policy is reconnect", RowReconnected, "policy", func(f s) { f.Policy = PolicyReconnect }},
		{"its member record cannot be read", ReasonUnreadableRecord, "", func(f s) { f.Member, f.NoMember = nil, "?" }},
		{"others stand", ReasonRegistrationExpired, "", func(s) {}},
	})
}

// random is a situation that nobody thought of.
func random(r *rand.Rand) situation {
	yes := func() bool { return r.IntN(2) == 0 }
	modes := []*ModeRecord{nil, byHoldfast(Active, ReasonBoot), byPerson(Active), byPerson(Drained), byPerson(Draining), byHoldfast(Drained, ReasonStaleRestart), byBroker}
	any := func() *ModeRecord { return modes[r.IntN(len(modes))] }
	return gone(func(s *situation) {
		s.Same, s.Others, s.Memory = yes(), yes(), yes()
		s.Holder = []Holder{Nobody, Us, Another}[r.IntN(3)]
		s.Stands = s.Holder == Us && yes()
		s.Stored, s.Last, s.EraAt = any(), any(), []int64{0, 100, 450}[r.IntN(3)]
		if s.Garbled = r.IntN(5) == 0; s.Garbled {
			s.Stored = nil
		}
		switch r.IntN(4) {
		case 0:
			s.Member = nil
		case 1:
			s.Member, s.NoMember = nil, "?"
		case 2:
			member(s).Left = &PlannedStop{At: noon.Add(-time.Duration(r.IntN(2)) * 2 * time.Hour), Crash: yes()}
		}
		if s.Member != nil {
			if yes() {
				s.Member.Suspect = &Suspect{Proven{300, noon}, ReasonStaleRestart}
			}
		}
		if yes() {
			s.Confirmed = Proven{}
		}
		if r.IntN(4) == 0 {
			s.Restored = "older"
		}
		if r.IntN(4) == 0 {
			s.Corrupt = "torn"
		}
		if yes() {
			s.Boot = BootFacts{}
		}
		s.Policy = []Policy{PolicyDrain, PolicyReconnect, PolicyShutdown}[r.IntN(3)]
		s.Join, s.RetriesUsed, s.FencesItself, s.NoEtcd = yes(), yes(), yes(), r.IntN(5) == 0
	})
}

func TestWhateverIsTrue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		s := random(r)
		d := s.decide()
		person := s.Stored != nil && s.Stored.By == "operator" && s.Stored.Mode != Active
		forgotten := s.Stored == nil && s.Last != nil && s.Last.By == "operator" && s.Last.Mode != Active
		switch {
		case (person || forgotten) && d.Step != Conflict && (d.Mode.Mode == Active || d.Step == Shutdown):
			t.Fatalf("an operator's drain is lifted by %s: %+v", d.Row, s)
		case d.Row == "" || Otherwise(d.Row) == "":
			t.Fatalf("%s: row %q says nothing: %+v", d, d.Row, s)
		case d.Suspect != nil && (d.Mode.Mode != Drained || d.Mode.By != ByHoldfast):
			t.Fatalf("a suspect is %s: %+v", d, s)
		case d.Step == Keep && s.Holder != Us, d.Step == Register && s.Holder == Us:
			t.Fatalf("%s, and the registration is held by %d: %+v", d, s.Holder, s)
		case d.Mode.Mode == Active && d.Step < Conflict && s.Others && !s.Stands && !s.Same && strings.Contains(string(d.Row), "restart") && s.EraAt == 0 && s.Member == nil && s.NoMember == "" && s.Memory:
			t.Fatalf("active by %s without a reason: %+v", d.Row, s)
		}
	}
}

// docs/concepts.md quotes the table.
func TestTheTableIsQuoted(t *testing.T) {
	page, err := os.ReadFile("../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	table := "| the broker … | then | mode's reason, or row |\n|---|---|---|\n"
	for _, row := range Table {
		table += fmt.Sprintf("| %s | %s | `%s` |\n", row.When, row.Then, row.Name)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("it is to have\n%s", table)
	}
}
