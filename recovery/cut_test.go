package recovery

import (
	"strings"
	"testing"
	"time"
)

func TestALossIsSharedByWhoLostTheirsOrWasCutOffMeanwhile(t *testing.T) {
	lives := Companion{ID: "lives"}
	cut := Companion{ID: "cut", BackAt: 100}
	earlier := Companion{ID: "earlier", BackAt: 99} // back when we were confirmed for the last time
	lost := Companion{ID: "lost", Lost: true}
	left := Companion{ID: "left", Lost: true, Left: true}
	garbled := Companion{ID: "garbled", Lost: true, Unread: `the record of garbled cannot be read: "x" at key /cluster/members/garbled`}
	for _, c := range []struct {
		name         string
		beside       []Companion
		looked, lost int
		half, says   string // half: reaches a share of 0.5
	}{
		{"nobody was there", nil, 0, 0, "no", ""},
		{"one lived on", []Companion{lives}, 1, 0, "no", "of 1 that were registered beside it 0 lost"},
		{"one lost its own", []Companion{lost}, 1, 1, "yes", "(lost)"},
		{"one was cut off meanwhile", []Companion{cut}, 1, 1, "yes", "(cut)"},
		{"one had been cut off before", []Companion{earlier}, 1, 0, "no", "of 1"},
		{"half", []Companion{lives, cut}, 2, 1, "yes", "of 2 that were registered beside it 1"},
		{"less than half", []Companion{lives, lost, lives}, 3, 1, "no", "of 3 that were registered beside it 1"},
		{"who left on purpose counts for nothing", []Companion{left, lives}, 1, 0, "no", "of 1"},
		{"all others left on purpose", []Companion{left, left}, 0, 0, "no", ""},
		{"who cannot be read counts for nothing", []Companion{garbled, lives}, 1, 0, "no", "/cluster/members/garbled"},
		{"nobody can be read", []Companion{garbled}, 0, 0, "no", "not known: the record of garbled"},
		{"more than a sentence bears", []Companion{lost, lost, lost, cut, cut}, 5, 5, "yes", "(lost, lost, lost, …)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := CompareLoss(c.beside, 100)
			if s.Looked != c.looked || s.Lost != c.lost || s.Reaches(0.5) != (c.half == "yes") {
				t.Errorf("%d of %d, reaches half: %v", s.Lost, s.Looked, s.Reaches(0.5))
			}
			if said := s.String(); !strings.Contains(said, c.says) || (said == "") != (c.says == "") {
				t.Errorf("says %q", said)
			}
			if s.Reaches(0) {
				t.Error("a share of 0 is reached")
			}
		})
	}
}

// A share of the fleet competes with whatever else would decide about a loss.
func TestALossThatTheFleetSharesKeepsTheMode(t *testing.T) {
	had := *byHoldfast(Active, ReasonBoot)
	shared := CompareLoss([]Companion{{ID: "b", Lost: true}, {ID: "c", BackAt: 500}}, 400)
	single := CompareLoss([]Companion{{ID: "b", Lost: true}, {ID: "c"}, {ID: "d"}}, 400)
	for _, c := range []struct {
		name   string
		f      OutageFacts
		beside SharedLoss
		share  float64
		row    Reason
		mode   Mode
		says   string
	}{
		{"shared, to be drained", OutageFacts{}, shared, 0.5, ReasonFleetExpired, Active, "of 2 that were registered beside it 2"},
		{"shared, to be stopped", OutageFacts{Policy: PolicyShutdown}, shared, 0.5, ReasonFleetExpired, Active, "(b, c)"},
		{"shared, the retries used up", OutageFacts{Policy: PolicyReconnect, RetriesUsed: true}, shared, 0.5, ReasonFleetExpired, Active, ""},
		{"shared by just enough", OutageFacts{}, shared, 1, ReasonFleetExpired, Active, ""},
		{"shared, and the setting is off", OutageFacts{}, shared, 0, ReasonRegistrationExpired, Drained, ""},
		{"shared by too few", OutageFacts{}, single, 0.5, ReasonRegistrationExpired, Drained, "of 3 that were registered beside it 1 lost their registrations, or were cut off from etcd, at the same time (b), fewer than --fleet-loss-share 0.5"},
		{"shared by too few, to be stopped", OutageFacts{Policy: PolicyShutdown}, single, 0.5, ReasonSessionExpired, Active, "fewer than --fleet-loss-share 0.5"},
		{"nobody was looked at", OutageFacts{}, SharedLoss{Unknown: "no right"}, 0.5, ReasonRegistrationExpired, Drained, "not known: no right"},
		{"shared, an operator's drain", OutageFacts{ClusterFacts: ClusterFacts{Stored: byPerson(Drained)}}, shared, 0.5, RowKept, Drained, ""},
		{"shared, after a backup was restored", OutageFacts{ClusterFacts: ClusterFacts{Remembered: 501}}, shared, 0.5, ReasonRestoredBackup, Drained, ""},
		{"shared, and the registration stands", OutageFacts{ClusterFacts: ClusterFacts{Holder: Us}}, shared, 0.5, RowSurvived, Active, ""},
		{"shared, and it is another's", OutageFacts{ClusterFacts: ClusterFacts{Holder: Another}}, shared, 0.5, RowConflict, Active, ""},
		{"shared, and the fleet is known to have outlived us", OutageFacts{ClusterFacts: ClusterFacts{Era: 4, Outlived: "for long"}}, shared, 0.5, ReasonRegistrationExpired, Drained, "for long"},
		{"shared, and nobody is registered", OutageFacts{ClusterFacts: ClusterFacts{Era: 4}}, shared, 0.5, ReasonFleetExpired, Active, "era went"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.f
			facts := member(nil)
			facts.Holder, facts.Remembered = f.Holder, max(facts.Remembered, f.Remembered)
			if f.Stored != nil {
				facts.Stored = f.Stored
			}
			facts.Era, facts.Outlived = max(facts.Era, f.Era), f.Outlived
			f.ClusterFacts, f.Had, f.Beside, f.LossShare = facts, had, c.beside, c.share
			d := DecideOutage(f)
			if d.Row != c.row || d.Mode.Mode != c.mode || !strings.Contains(d.Detail, c.says) {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
		})
	}
}

// So does a restart, unless the fleet is known to have outlived the broker.
func TestARestartThatTheFleetSharesDrainsNobody(t *testing.T) {
	shared := CompareLoss([]Companion{{ID: "b", Lost: true}, {ID: "c", BackAt: 500}}, 400)
	single := CompareLoss([]Companion{{ID: "b", Lost: true}, {ID: "c"}, {ID: "d"}}, 400)
	for _, c := range []struct {
		name   string
		f      StartupFacts
		beside SharedLoss
		row    Reason
		mode   Mode
		says   string
	}{
		{"shared", StartupFacts{ClusterFacts: member(nil)}, shared, ReasonFleetExpired, Active, "of 2 that were registered beside it 2"},
		{"shared by too few", StartupFacts{ClusterFacts: member(nil)}, single, ReasonStaleRestart, Drained, "(b), fewer than --fleet-loss-share 0.5"},
		{"nobody was looked at", StartupFacts{ClusterFacts: member(nil)}, SharedLoss{}, ReasonStaleRestart, Drained, "n2 lived on"},
		{"shared, and who lives is not known yet", StartupFacts{ClusterFacts: member(watched(Unwatched))}, shared, RowAwait, "", ""},
		{"shared, and what stood only lingered", StartupFacts{ClusterFacts: member(watched(Lingering))}, shared, ReasonFullClusterRestart, Active, ""},
		{"shared, and the fleet was alive for long after it", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Era, f.Outlived = 4, "the fleet was alive" })}, shared, ReasonStaleRestart, Drained, "the fleet was alive"},
		{"shared, an operator's drain", StartupFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Drained) })}, shared, RowKept, Drained, ""},
		{"shared, and its data is missing", StartupFacts{Missing: "gone", ClusterFacts: member(nil)}, shared, ReasonDataMissing, Drained, ""},
		{"shared, after a planned stop of the same data", StartupFacts{ClusterFacts: member(nil), Left: &PlannedStop{At: time.Unix(100, 0)}, Return: Return{Now: time.Unix(101, 0), Within: time.Hour}}, shared, ReasonPlannedRestart, Active, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.f
			f.Boot, f.Beside, f.LossShare = Restart, c.beside, 0.5
			if d := DecideStartup(f); d.Row != c.row || d.Mode.Mode != c.mode || !strings.Contains(d.Detail, c.says) {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
		})
	}
}
