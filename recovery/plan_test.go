package recovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

var planNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ago is a moment before planNow.
func ago(d time.Duration) time.Time { return planNow.Add(-d) }

func attachedIn(m Mode) Orders { return Orders{Epoch: 7, Mode: m, Attached: true, Instance: "a"} }

func pausedIn(m Mode) Orders {
	o := attachedIn(m)
	o.Paused = true
	return o
}

func steering(o Orders, s Steering) Orders {
	o.Steering = s
	return o
}

func TestPlanAsksForExactlyWhatIsMissingAndWhatIsNotOurs(t *testing.T) {
	missing := PlanFacts{Assigned: true}
	served := PlanFacts{Assigned: true, Serving: true}
	paused := PlanFacts{Assigned: true, Quiesced: true}
	orphan := PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(SettleTime)}
	freshOrphan := PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(SettleTime - time.Millisecond)}
	quarantined := PlanFacts{Quiesced: true, UnassignedAt: ago(time.Hour)}
	all := map[string]PlanFacts{
		"/n/missing": missing, "/n/served": served, "/n/paused": paused,
		"/n/orphan": orphan, "/n/fresh": freshOrphan, "/n/quarantined": quarantined,
	}
	counts := Counts{Assigned: 3, Served: 1, Missing: 2, Orphan: 2, Quarantined: 1}
	for _, row := range []struct {
		name          string
		orders        Orders
		unknown       bool // assignments
		unlisted      bool // broker
		places        bool // its own cluster says what it serves
		load, quiesce []string
		hold          Halt
		again         time.Time
	}{
		{name: "active loads missing and quiesced topics and quiesces settled orphans", orders: attachedIn(Active),
			load: []string{"/n/missing", "/n/paused"}, quiesce: []string{"/n/orphan"}, again: planNow.Add(time.Millisecond)},
		{name: "draining loads nothing", orders: attachedIn(Draining), quiesce: []string{"/n/orphan"}, again: planNow.Add(time.Millisecond)},
		{name: "drained quiesces everything served, settled or not", orders: attachedIn(Drained),
			quiesce: []string{"/n/fresh", "/n/orphan", "/n/served"}},
		{name: "a broker that is not active yet is given nothing", orders: steering(attachedIn(Active), SteerPending),
			quiesce: []string{"/n/orphan"}, again: planNow.Add(time.Millisecond)},
		{name: "nor one that does not become active", orders: steering(attachedIn(Active), SteerFailing),
			quiesce: []string{"/n/orphan"}, again: planNow.Add(time.Millisecond)},
		{name: "one that has become active is given what is missing", orders: steering(attachedIn(Active), SteerDone),
			load: []string{"/n/missing", "/n/paused"}, quiesce: []string{"/n/orphan"}, again: planNow.Add(time.Millisecond)},
		{name: "a broker that is being drained gives its topics up itself", orders: steering(attachedIn(Drained), SteerPending)},
		{name: "one that cannot be drained is quiesced", orders: steering(attachedIn(Drained), SteerFailing),
			quiesce: []string{"/n/fresh", "/n/orphan", "/n/served"}},
		{name: "what a drained broker serves nevertheless is quiesced", orders: steering(attachedIn(Drained), SteerDone),
			quiesce: []string{"/n/fresh", "/n/orphan", "/n/served"}},
		{name: "but not where its own cluster says what it serves", places: true, orders: steering(attachedIn(Drained), SteerDone)},
		{name: "unless it has no mode of its own", places: true, orders: attachedIn(Drained), quiesce: []string{"/n/fresh", "/n/orphan", "/n/served"}},
		{name: "detached does nothing", orders: Orders{Mode: Active}, hold: HaltDetached},
		{name: "detached and drained does nothing", orders: Orders{Mode: Drained}, hold: HaltDetached},
		{name: "paused does nothing", orders: pausedIn(Active), hold: HaltPaused},
		{name: "paused and drained does nothing", orders: pausedIn(Drained), hold: HaltPaused},
		{name: "paused and detached", orders: Orders{Mode: Active, Paused: true}, hold: HaltDetached},
		{name: "assignments not read", orders: attachedIn(Active), unknown: true, hold: HaltAssignments},
		{name: "broker not listed", orders: attachedIn(Active), unlisted: true, hold: HaltBroker},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := Plan(PlanInput{
				Now: planNow, Orders: row.orders, AssignedKnown: !row.unknown, ServedKnown: !row.unlisted,
				Topics: maps.All(all), Window: 30 * time.Second, Share: 0.5, Assigns: row.places,
			})
			if !slices.Equal(w.Load, row.load) || !slices.Equal(w.Quiesce, row.quiesce) {
				t.Errorf("load %v, quiesce %v; want %v, %v", w.Load, w.Quiesce, row.load, row.quiesce)
			}
			if w.Hold != row.hold || !w.Again.Equal(row.again) {
				t.Errorf("hold %q, again %v; want %q, %v", w.Hold, w.Again, row.hold, row.again)
			}
			if w.Counts != counts {
				t.Errorf("counts %+v, want %+v", w.Counts, counts)
			}
		})
	}
}

// group adds n topics with the same facts.
func group(facts map[string]PlanFacts, prefix string, n int, f PlanFacts) {
	for i := range n {
		facts[fmt.Sprintf("/n/%s-%04d", prefix, i)] = f
	}
}

func planWith(facts map[string]PlanFacts, m MassChange, share float64) Work {
	return Plan(PlanInput{
		Now: planNow, Orders: attachedIn(Active), AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(facts), MassChange: m, Window: 30 * time.Second, Share: share,
	})
}

// Two brokers must never serve one topic, whoever works on one of them.
func TestATopicThatAnotherBrokerOwnsIsQuiescedDuringAPause(t *testing.T) {
	facts := map[string]PlanFacts{"/n/theirs": {Assigned: true, Serving: true, Claim: ClaimElsewhere},
		"/n/missing": {Assigned: true}, "/n/orphan": {Serving: true, UnassignedAt: ago(time.Hour)}}
	for _, m := range []Mode{Active, Draining, Drained} {
		w := Plan(PlanInput{Now: planNow, Orders: pausedIn(m), AssignedKnown: true, ServedKnown: true, Topics: maps.All(facts)})
		if w.Hold != HaltPaused || !slices.Equal(w.Quiesce, []string{"/n/theirs"}) || len(w.Load) > 0 {
			t.Errorf("%s: hold %q, quiesce %v, load %v", m, w.Hold, w.Quiesce, w.Load)
		}
	}
}

// What loses its assignment during a pause is believed no sooner after it.
func TestTheGuardWatchesDuringAPause(t *testing.T) {
	facts := map[string]PlanFacts{}
	group(facts, "lost", 20, PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)})
	w := Plan(PlanInput{Now: planNow, Orders: pausedIn(Active), AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(facts), Window: 30 * time.Second, Share: 0.5})
	if w.Hold != HaltPaused || !w.MassChange.Tripped() {
		t.Errorf("hold %q, tripped %v", w.Hold, w.MassChange.Tripped())
	}
	after := Plan(PlanInput{Now: planNow.Add(time.Hour), Orders: attachedIn(Active), AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(facts), MassChange: w.MassChange, Window: 30 * time.Second, Share: 0.5})
	if len(after.Quiesce) > 0 {
		t.Errorf("%d topics quiesced at the resume", len(after.Quiesce))
	}
}

func TestMassChangeGuardTripsOnTheShareOfWhatWasAssigned(t *testing.T) {
	kept := PlanFacts{Assigned: true, Serving: true}
	lost := PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)}
	lostAndQuiesced := PlanFacts{Quiesced: true, Lost: true, UnassignedAt: ago(20 * time.Second)}
	longLost := PlanFacts{Quiesced: true, Lost: true, UnassignedAt: ago(31 * time.Second)}
	young := PlanFacts{Assigned: true, Serving: true, AssignedAt: ago(10 * time.Second)}
	youngLost := PlanFacts{Serving: true, Lost: true, AssignedAt: ago(10 * time.Second), UnassignedAt: ago(2 * time.Second)}
	foreign := PlanFacts{Serving: true, UnassignedAt: ago(2 * time.Second)}
	type part struct {
		n int
		f PlanFacts
	}
	for _, row := range []struct {
		name  string
		parts []part
		share float64
		cause MassCause
		count int
		of    int
	}{
		{"nine of nine is no mass", []part{{9, lost}}, 0.5, MassNone, 0, 0},
		{"ten of ten", []part{{10, lost}}, 0.5, MassLost, 10, 10},
		{"exactly the share passes", []part{{50, lost}, {50, kept}}, 0.5, MassNone, 0, 0},
		{"one more than the share", []part{{51, lost}, {49, kept}}, 0.5, MassLost, 51, 100},
		{"what is already quarantined counts", []part{{1, lost}, {50, lostAndQuiesced}, {49, kept}}, 0.5, MassLost, 51, 100},
		{"what went before the window does not", []part{{1, lost}, {90, longLost}, {9, kept}}, 0.5, MassNone, 0, 0},
		{"all replaced by others", []part{{60, lost}, {60, young}}, 0.5, MassLost, 60, 60},
		{"a few of many that are new", []part{{20, youngLost}, {100, young}}, 0.5, MassNone, 0, 0},
		{"most of many that are new", []part{{60, youngLost}, {40, young}}, 0.5, MassLost, 60, 100},
		{"first plan after a start, nothing assigned", []part{{10, foreign}}, 0.5, MassOrphans, 10, 10},
		{"first plan after a start, few assigned and not served", []part{{20, foreign}, {30, PlanFacts{Assigned: true}}}, 0.5, MassOrphans, 20, 20},
		{"a minority of orphans", []part{{20, foreign}, {30, kept}}, 0.5, MassNone, 0, 0},
		{"share 0 is off", []part{{100, lost}}, 0, MassNone, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			facts := map[string]PlanFacts{}
			for i, p := range row.parts {
				group(facts, fmt.Sprint(i), p.n, p.f)
			}
			w := planWith(facts, MassChange{}, row.share)
			m := w.MassChange
			if m.Cause != row.cause || m.Count != row.count || m.Of != row.of {
				t.Fatalf("guard %+v, want %s %d of %d", m, row.cause, row.count, row.of)
			}
			if m.Tripped() && len(w.Quiesce) > 0 {
				t.Errorf("tripped, and yet %d topics are quiesced", len(w.Quiesce))
			}
			if !m.Tripped() && len(w.Quiesce) != w.Counts.Orphan {
				t.Errorf("not tripped, and yet %d of %d orphans are quiesced", len(w.Quiesce), w.Counts.Orphan)
			}
			if m.Tripped() && !(strings.Contains(m.Detail(), fmt.Sprintf("%d of %d", row.count, row.of)) && strings.Contains(m.Detail(), "holdfast confirm")) {
				t.Errorf("detail %q lacks the numbers or the next step", m.Detail())
			}
		})
	}
}

func TestTrippedGuardStaysTrippedWhenTheWindowHasPassed(t *testing.T) {
	facts := map[string]PlanFacts{}
	group(facts, "kept", 40, PlanFacts{Assigned: true, Serving: true})
	group(facts, "lost", 60, PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)})
	m := planWith(facts, MassChange{}, 0.5).MassChange
	later := Plan(PlanInput{
		Now: planNow.Add(time.Hour), Orders: attachedIn(Active), AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(facts), MassChange: m, Window: 30 * time.Second, Share: 0.5,
	})
	if !later.MassChange.Tripped() || len(later.Quiesce) > 0 {
		t.Fatalf("an hour later: guard %+v, %d topics to quiesce; want it to hold", later.MassChange, len(later.Quiesce))
	}
}

func TestTrippedGuardReleasesWhenTheAssignmentsComeBack(t *testing.T) {
	facts := map[string]PlanFacts{}
	group(facts, "kept", 40, PlanFacts{Assigned: true, Serving: true})
	group(facts, "lost", 60, PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)})
	m := planWith(facts, MassChange{}, 0.5).MassChange
	for i := range 9 {
		facts[fmt.Sprintf("/n/lost-%04d", i)] = PlanFacts{Assigned: true, Serving: true}
	}
	w := planWith(facts, m, 0.5)
	if !w.MassChange.Tripped() || w.MassChange.Count != 51 {
		t.Fatalf("51 of 100 still lost: guard %+v, want it tripped", w.MassChange)
	}
	facts["/n/lost-0009"] = PlanFacts{Assigned: true, Serving: true}
	w = planWith(facts, w.MassChange, 0.5)
	if w.MassChange.Tripped() || len(w.Quiesce) != 50 {
		t.Fatalf("50 of 100 lost: guard %+v, %d to quiesce; want it released and 50", w.MassChange, len(w.Quiesce))
	}
}

func TestConfirmCoversWhatHasHappenedAndNothingLater(t *testing.T) {
	if m := (MassChange{}).Confirm(planNow); m != (MassChange{}) {
		t.Fatalf("confirming an untripped guard gave %+v, want no change", m)
	}
	facts := map[string]PlanFacts{}
	group(facts, "kept", 40, PlanFacts{Assigned: true, Serving: true})
	group(facts, "lost", 60, PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)})
	m := planWith(facts, MassChange{}, 0.5).MassChange.Confirm(planNow)
	w := planWith(facts, m, 0.5)
	if w.MassChange.Tripped() || len(w.Quiesce) != 60 {
		t.Fatalf("after confirm: guard %+v, %d to quiesce; want 60", w.MassChange, len(w.Quiesce))
	}
	group(facts, "kept", 30, PlanFacts{Serving: true, Lost: true, UnassignedAt: planNow.Add(time.Second)})
	w = Plan(PlanInput{
		Now: planNow.Add(3 * time.Second), Orders: attachedIn(Active), AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(facts), MassChange: w.MassChange, Window: 30 * time.Second, Share: 0.5,
	})
	if m := w.MassChange; m.Cause != MassLost || m.Count != 30 || m.Of != 40 {
		t.Fatalf("30 of the 40 left went after the confirmation: guard %+v, want it tripped anew", m)
	}
}

func TestDrainedReleasesTheGuard(t *testing.T) {
	facts := map[string]PlanFacts{}
	group(facts, "lost", 60, PlanFacts{Serving: true, Lost: true, UnassignedAt: ago(2 * time.Second)})
	w := Plan(PlanInput{
		Now: planNow, Orders: attachedIn(Drained), AssignedKnown: true, ServedKnown: true, Topics: maps.All(facts),
		MassChange: MassChange{Cause: MassLost, Count: 60, Of: 60}, Window: 30 * time.Second, Share: 0.5,
	})
	if w.MassChange.Tripped() || len(w.Quiesce) != 60 {
		t.Fatalf("guard %+v, %d to quiesce; want it released and 60", w.MassChange, len(w.Quiesce))
	}
}

func TestWhatABrokerServesThatIsNotItsOwn(t *testing.T) {
	assigned := map[string][]string{"/a": {"n1"}, "/b": {"n2", "n3"}, "/c": {"n2"}, "/d": {"n2"}, "/e": {"n2"}}
	for _, c := range []struct {
		h    Holdings
		want string
	}{
		{Holdings{Serving: []string{"/a"}, Assigned: assigned, Any: true}, ""},
		{Holdings{Serving: []string{"/x"}}, ""},
		{Holdings{Serving: []string{"/x"}, Any: true}, "1 assigned to nobody: /x"},
		{Holdings{Serving: []string{"/b", "/a"}, Assigned: assigned, Any: true}, "1 assigned to others: /b (of n2, n3)"},
		{Holdings{Serving: []string{"/x", "/c"}, Assigned: assigned, Any: true}, "1 assigned to others: /c (of n2); 1 assigned to nobody: /x"},
		{Holdings{Serving: []string{"/e", "/d", "/c"}, Assigned: assigned, Any: true}, "3 assigned to others: /c (of n2), /d (of n2), /e (of n2)"},
		{Holdings{Serving: []string{"/e", "/d", "/c", "/b"}, Assigned: assigned, Any: true}, "4 assigned to others: /b (of n2, n3), /c (of n2), /d (of n2), …"},
	} {
		if got := c.h.Strange("n1"); got != c.want {
			t.Errorf("%v: %q, want %q", c.h.Serving, got, c.want)
		}
	}
}
