package recovery

import (
	"strings"
	"testing"
	"time"
)

func TestOnlyAFleetThatOutlivedUsForTwoTTLsDeclaredUsDead(t *testing.T) {
	const ttl = 32 * time.Second
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration, revision int64) FleetAlive { return FleetAlive{now.Add(-d), revision} }
	ours := ago(time.Hour, 100)
	for _, c := range []struct {
		name  string
		fleet FleetAlive
		ours  FleetAlive
		stood bool
		want  bool
	}{
		{"for an hour less a minute", ago(time.Minute, 200), ours, false, true},
		{"by just more than two TTLs", ago(time.Hour-2*ttl-time.Second, 200), ours, false, true},
		{"by two TTLs", ago(time.Hour-2*ttl, 200), ours, false, false},
		{"not at all", ago(time.Hour, 100), ours, false, false},
		{"it ended before us", ago(2*time.Hour, 50), ours, false, false},
		{"nobody knows until when it was alive", FleetAlive{}, ours, false, false},
		{"nobody knows until when we were", ago(time.Minute, 200), FleetAlive{}, false, false},
		{"it says that of our future", ago(-time.Second, 200), ours, false, false},
		{"one clock is five minutes ahead, and nothing came after us in the store", ago(55*time.Minute, 100), ours, false, false},
		{"one clock is five minutes ahead, and our registration stood", ago(55*time.Minute, 103), ours, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := EraFacts{Fleet: c.fleet, Ours: c.ours, Now: now, TTL: ttl, Stood: c.stood}
			if how := f.Outlived(); (how != "") != c.want {
				t.Errorf("outlived: %q", how)
			}
		})
	}
}

func TestWhatIsNotedOfTheFleetBeforeAnEra(t *testing.T) {
	const ttl = 32 * time.Second
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) FleetAlive { return FleetAlive{now.Add(-d), 7} }
	for _, c := range []struct {
		name        string
		fleet, ours FleetAlive
		first, next bool // written by who begins the era, and by another
	}{
		{"nothing is known", FleetAlive{}, FleetAlive{}, false, false},
		{"nothing was noted", FleetAlive{}, ago(time.Hour), true, true},
		{"we know of nothing", ago(time.Hour), FleetAlive{}, false, false},
		{"we were longer, by more than a TTL", ago(time.Hour), ago(time.Hour - ttl - time.Second), true, true},
		{"we were longer, by a TTL", ago(time.Hour), ago(time.Hour - ttl), true, false},
		{"we were not", ago(time.Hour), ago(2 * time.Hour), false, false},
		{"ours is in our future", ago(time.Hour), ago(-time.Second), false, false},
		{"the noted one is in our future", ago(-time.Minute), ago(time.Hour), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := EraFacts{Fleet: c.fleet, Ours: c.ours, Now: now, TTL: ttl}
			for _, first := range []bool{true, false} {
				note, ok := f.Raise(first)
				if want := first && c.first || !first && c.next; ok != want || ok && note != c.ours {
					t.Errorf("first %v: %v, %v", first, note, ok)
				}
			}
		})
	}
}

// The rows that compete with it, and what the cluster's past decides of a start.
func TestAnEraThatGrewAfterTheFleetOutlivedUsIsNoRestartOfAll(t *testing.T) {
	outlived := func(f *ClusterFacts) { f.Era, f.Outlived = 4, "the fleet before it was alive for long" }
	for _, c := range []struct {
		name string
		f    StartupFacts
		row  Reason
	}{
		{"others are registered", StartupFacts{ClusterFacts: member(outlived)}, ReasonStaleRestart},
		{"nobody is", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { outlived(f); f.PeerPresent = false })}, ReasonStaleRestart},
		{"not outlived", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Era = 4 })}, ReasonFullClusterRestart},
		{"drained by an operator", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { outlived(f); f.Stored = byPerson(Drained) })}, RowKept},
		{"the first boot", StartupFacts{ClusterFacts: member(outlived), Boot: FirstBoot}, ReasonBoot},
		{"the registration stands", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { outlived(f); f.Holder = Us })}, ReasonFastRestart},
		{"after a planned stop", StartupFacts{ClusterFacts: member(outlived), Left: &PlannedStop{}, Return: Return{Within: time.Hour}}, ReasonPlannedRestart},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := DecideStartup(c.f)
			if d.Row != c.row {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
			if c.row == ReasonStaleRestart && !strings.Contains(d.Detail, "era went from 3 to 4, and the fleet before it was alive for long") {
				t.Error(d.Detail)
			}
		})
	}
	if d := DecideOutage(OutageFacts{ClusterFacts: member(outlived), Had: *byHoldfast(Active, ReasonBoot)}); d.Row != ReasonRegistrationExpired {
		t.Errorf("%s by %s", d, d.Row)
	}
}

func TestAClockThatIsFiveMinutesWrongOutlivesNobodyInAStoreThatHasForgotten(t *testing.T) {
	const ttl = 32 * time.Second
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for gap, want := range map[time.Duration]bool{5 * time.Minute: false, 10*time.Minute + 2*ttl: false, 10*time.Minute + 2*ttl + time.Second: true} {
		f := EraFacts{Fleet: FleetAlive{now.Add(gap - time.Hour), 200}, Ours: FleetAlive{now.Add(-time.Hour), 100}, Now: now, TTL: ttl, Forgotten: true}
		if how := f.Outlived(); (how != "") != want || want && strings.Contains(how, "had gone by then") {
			t.Errorf("outlived for %v: %q", gap, how)
		}
	}
}
