package recovery

import "testing"

func TestEveryDecisionNamesItsRow(t *testing.T) {
	bit := func(n, i int) bool { return n>>i&1 == 1 }
	stored := []*ModeRecord{nil, byHoldfast(Active, ReasonBoot), byPerson(Drained), byHoldfast(Drained, ReasonStaleRestart)}
	for n := range 1 << 12 {
		f := member(func(f *ClusterFacts) {
			f.Holder = []Holder{Nobody, Us, Another, Us}[n&3]
			f.Stored = stored[n>>2&3]
			f.PeerPresent, f.KnownMember, f.StoredGarbled, f.Reborn = bit(n, 4), bit(n, 5), bit(n, 6), bit(n, 7)
			if bit(n, 8) {
				f.Era = 4
			}
			if bit(n, 9) {
				f.Remembered = 900
			}
		})
		boot := StartupFacts{ClusterFacts: f, Boot: Restart, Join: bit(n, 10), Unknown: bit(n, 11)}
		for _, kind := range []BootKind{FirstBoot, Restart} {
			boot.Boot = kind
			for _, boot.Strange = range []string{"", "/default/a"} {
				namesItsRow(t, DecideStartup(boot), boot)
			}
		}
		for _, policy := range []Policy{PolicyDrain, PolicyReconnect, PolicyShutdown} {
			outage := OutageFacts{ClusterFacts: f, Policy: policy, Had: *byHoldfast(Active, ReasonBoot)}
			namesItsRow(t, DecideOutage(outage), outage)
		}
	}
}

func namesItsRow(t *testing.T, d Decision, facts any) {
	t.Helper()
	if d.Row == "" || Otherwise(d.Row) == "" {
		t.Errorf("%s: row %q, otherwise %q: %+v", d, d.Row, Otherwise(d.Row), facts)
	}
	// A held drain outlives a doubt about our memory: then the row is not the mode's reason.
	if d.Mode.By == ByHoldfast && d.Mode.Mode == Active && d.Row != d.Mode.Reason && d.Row != RowSurvived && d.Row != RowReconnected && d.Step < Conflict {
		t.Errorf("%s: row %q", d, d.Row)
	}
}
