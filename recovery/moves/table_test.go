package moves

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// three is a topic with three messages, of which the first is acknowledged.
func three() *Extent {
	return &Extent{First: 1, Last: 3, Count: 3, Bytes: 30, Floors: map[string]uint64{"c": 1}, Config: "k1", Schema: "s1"}
}

// moveIn is a move that has come to a phase.
func moveIn(p Phase) Move {
	m := Move{ID: "m1", Topic: "/d/t", From: "a", To: "b", By: "an operator", Planned: three()}.Begun(noon)
	if p != Pending && p != Draining {
		m.Sealed = three()
	}
	if p == Undoing || p == Returned {
		m.Why, m.Error = "the disk is full", "the disk is full"
	}
	return m.enter(p, noon)
}

func TestEachPhaseSideAndFactHasItsAct(t *testing.T) {
	type acts struct{ source, peerGone, quiet, target, targetsPeerGone Act }
	table := map[Phase]acts{
		Pending:   {Wait, GiveUp, GiveUp, Accept, Accept},
		Draining:  {Seal, GiveUp, Seal, Wait, Wait},
		Sealed:    {Wait, GiveUp, GiveUp, Copy, Copy},
		Copied:    {HandOver, GiveUp, HandOver, Wait, Wait},
		Switched:  {Wait, Wait, Wait, Resume, Resume},
		Resumed:   {Wait, Wait, Wait, Compare, Compare},
		Verified:  {Remove, Remove, Remove, Wait, Wait},
		Undoing:   {Restore, Restore, Restore, Wait, Wait},
		Returned:  {Wait, Wait, Wait, Discard, Discard},
		Done:      {},
		Cancelled: {},
		Failed:    {},
	}
	for _, p := range Phases {
		want, ok := table[p]
		if !ok {
			t.Errorf("%s: not in the table", p)
		}
		m := moveIn(p)
		for _, c := range []struct {
			what string
			f    Facts
			want Act
		}{
			{"source", Facts{Side: Source}, want.source},
			{"source, the target is gone", Facts{Side: Source, PeerGone: "gone"}, want.peerGone},
			{"source, and nothing is written", Facts{Side: Source, Quiet: silence + 1}, want.quiet},
			{"source, and nothing is written yet", Facts{Side: Source, Quiet: silence}, want.source},
			{"target", Facts{Side: Target}, want.target},
			{"target, and nothing is written", Facts{Side: Target, Quiet: silence + 1}, want.target},
			{"target, the source is gone", Facts{Side: Target, PeerGone: "gone"}, want.targetsPeerGone},
			{"another broker", Facts{Side: Neither, PeerGone: "gone", Taken: "taken"}, Wait},
		} {
			if got := m.Next(c.f).Act; got != c.want {
				t.Errorf("%s, %s: %q, want %q", p, c.what, got, c.want)
			}
		}
		for side, name := range map[Side]string{Source: "source", Target: "target"} {
			step := m.Next(Facts{Side: side, PeerGone: "gone", Taken: "c has it"})
			n, changed := m.After(step, Outcome{}, "a", noon)
			switch {
			case p.Over() && (step.Act != Wait || changed):
				t.Errorf("%s, %s, taken: %q", p, name, step.Act)
			case !p.Over() && (n.Phase != Failed || !n.Taken || !strings.HasSuffix(n.Error, "c has it")):
				t.Errorf("%s, %s, taken: %s, error %q; want it failed", p, name, n.Phase, n.Error)
			}
		}
	}
}

func TestAMoveOfTheBrokersOwnClusterHasOneAct(t *testing.T) {
	for _, p := range Phases {
		m := moveIn(p)
		m.Sent = true
		for _, f := range []Facts{{Side: Source}, {Side: Source, PeerGone: "gone"}, {Side: Target}, {Side: Neither}} {
			want := Wait
			if p == Pending && f.Side == Source {
				want = Send
			}
			if got := m.Next(f).Act; got != want {
				t.Errorf("%s, side %d: %q, want %q", p, f.Side, got, want)
			}
		}
		if m.Held(Source) || m.Held(Target) {
			t.Errorf("%s: held, but its own cluster moves it", p)
		}
	}
	m := moveIn(Pending)
	m.Sent = true
	n, _ := m.After(m.Next(Facts{Side: Source}), Outcome{Seen: "b has it"}, "a", noon)
	if n.Phase != Done || n.Same.Observed != "b has it" {
		t.Errorf("sent: %s, %+v", n.Phase, n.Same)
	}
	n, _ = m.After(m.Next(Facts{Side: Source}), Outcome{Err: errors.New("no leader")}, "a", noon)
	if n, _ = n.After(n.Next(Facts{Side: Source}), Outcome{Err: errors.New("no leader")}, "a", noon.Add(time.Hour)); n.Phase != Pending {
		t.Errorf("an hour without a leader: %s, want it tried again", n.Phase)
	}
}

func TestEachOutcomeHasItsNextPhase(t *testing.T) {
	short, other := three(), three()
	short.Last, short.Count, short.Bytes = 2, 2, 20
	other.Config = "k2"
	fine, differs := &Content{Compared: 3}, &Content{Differs: "message 2"}
	type outcome struct {
		then  Phase
		error string // what it must hold; empty: there is none
	}
	for _, c := range []struct {
		phase    Phase
		side     Side
		good     Outcome
		done     Phase
		refused  outcome
		unfit    Outcome // done, and found wrong
		unfitIs  outcome
		patience outcome // after an error for longer than patience
	}{
		{Pending, Target, Outcome{}, Draining, outcome{Failed, "no"}, Outcome{}, outcome{Draining, ""}, outcome{Failed, "no"}},
		{Draining, Source, Outcome{Extent: three()}, Sealed, outcome{Undoing, "no"}, Outcome{}, outcome{Sealed, ""}, outcome{Undoing, "no"}},
		{Sealed, Target, Outcome{Extent: three()}, Copied, outcome{Undoing, "no"},
			Outcome{Extent: short}, outcome{Undoing, "at the target: the last message is 2, sealed was 3"}, outcome{Undoing, "no"}},
		{Sealed, Target, Outcome{Extent: three()}, Copied, outcome{Undoing, "no"},
			Outcome{Extent: other}, outcome{Undoing, "at the target: another configuration (k2) than was sealed (k1)"}, outcome{Undoing, "no"}},
		{Sealed, Target, Outcome{Extent: three()}, Copied, outcome{Undoing, "no"},
			Outcome{}, outcome{Undoing, "at the target: it was not said where the topic stands"}, outcome{Undoing, "no"}},
		{Copied, Source, Outcome{Extent: three()}, Switched, outcome{Undoing, "no"},
			Outcome{Extent: short}, outcome{Undoing, "at the source by now"}, outcome{Undoing, "no"}},
		{Switched, Target, Outcome{Extent: three()}, Resumed, outcome{Switched, "no"},
			Outcome{Extent: short}, outcome{Failed, "it resumed at 2 messages with 20 bytes, 1 to 2, sealed was 3"}, outcome{Switched, "no"}},
		{Switched, Target, Outcome{Extent: three()}, Resumed, outcome{Switched, "no"},
			Outcome{Extent: &Extent{Empty: true}}, outcome{Failed, "it resumed at empty"}, outcome{Switched, "no"}},
		{Resumed, Target, Outcome{Content: fine, Extent: three()}, Verified, outcome{Failed, "no"},
			Outcome{Content: differs}, outcome{Failed, "the contents differ: message 2"}, outcome{Resumed, "no"}},
		{Resumed, Target, Outcome{Content: fine, Extent: three()}, Verified, outcome{Failed, "no"},
			Outcome{}, outcome{Failed, "it was not said what was compared"}, outcome{Resumed, "no"}},
		{Resumed, Target, Outcome{Content: fine, Extent: three()}, Verified, outcome{Failed, "no"},
			Outcome{Content: &Content{Observed: "nothing was read"}, Extent: &Extent{Empty: true}}, outcome{Failed, "lost since it resumed, and is at empty"}, outcome{Resumed, "no"}},
		{Verified, Source, Outcome{}, Done, outcome{Failed, "no"}, Outcome{}, outcome{Done, ""}, outcome{Verified, "no"}},
		{Undoing, Source, Outcome{Extent: three()}, Returned, outcome{Returned, "the disk is full; then: no"},
			Outcome{}, outcome{Returned, "the disk is full"}, outcome{Undoing, "no"}},
		{Returned, Target, Outcome{}, Failed, outcome{Failed, "the disk is full; then: no"},
			Outcome{}, outcome{Failed, "the disk is full"}, outcome{Returned, "no"}},
	} {
		m, broker := moveIn(c.phase), map[Side]string{Source: "a", Target: "b"}[c.side]
		step := m.Next(Facts{Side: c.side})
		check := func(what string, n Move, changed bool, want outcome, where string) {
			t.Helper()
			fits := strings.Contains(n.Error, want.error) && (want.error != "" || n.Error == "")
			if n.Phase != want.then || !fits || n.Where != where || !changed {
				t.Errorf("%s, %s %s: %s, error %q (%s), changed %t; want %s, %q (%s)",
					c.phase, step.Act, what, n.Phase, n.Error, n.Where, changed, want.then, want.error, where)
			}
			if _, ok := n.Since[n.Phase]; !ok {
				t.Errorf("%s, %s %s: it is not said since when it is %s", c.phase, step.Act, what, n.Phase)
			}
		}
		n, changed := m.After(step, c.good, broker, noon)
		check("done", n, changed, outcome{c.done, m.Why}, "")
		n, changed = m.After(step, Outcome{Err: errors.New("no"), Final: true}, broker, noon)
		check("refused", n, changed, c.refused, broker)
		if where := broker; c.unfitIs.error == m.Why {
			n, changed = m.After(step, c.unfit, broker, noon)
			check("done, and nothing to compare", n, changed, c.unfitIs, "")
		} else {
			n, changed = m.After(step, c.unfit, broker, noon)
			check("unfit", n, changed, c.unfitIs, where)
		}
		failed, changed := m.After(step, Outcome{Err: errors.New("no")}, broker, noon)
		check("failed", failed, changed, outcome{c.phase, "no"}, broker)
		if n, changed = failed.After(step, Outcome{Err: errors.New("no")}, broker, noon.Add(patience)); changed {
			t.Errorf("%s, %s failed again: written again as %s", c.phase, step.Act, n.Phase)
		}
		n, changed = failed.After(step, Outcome{Err: errors.New("no!")}, broker, noon.Add(patience+time.Second))
		check("fails on", n, changed, c.patience, broker)
		back := noon.Add(-time.Hour)
		n, _ = failed.After(step, Outcome{Err: errors.New("no!")}, broker, back)
		n, changed = n.After(step, Outcome{Err: errors.New("no")}, broker, back.Add(patience+time.Second))
		check("fails on by a clock that was set back", n, changed, c.patience, broker)
	}
	if n, changed := moveIn(Pending).After(Step{}, Outcome{}, "a", noon); changed || n.Phase != Pending {
		t.Errorf("no act: %s, changed %t", n.Phase, changed)
	}
}

// What the target cannot resume it copies once more, and by turns while both are refused.
// What is published to it meanwhile would be lost to the other, whose copy is older.
func TestATopicThatIsServedAgainIsNotHandedOver(t *testing.T) {
	m := moveIn(Copied)
	again := three()
	again.Served = true
	n, _ := m.After(m.Next(Facts{Side: Source}), Outcome{Extent: again}, "a", noon)
	if n.Phase != Undoing || !strings.Contains(n.Error, "served again") {
		t.Errorf("%s: %s", n.Phase, n.Error)
	}
}

func TestWhatCannotBeResumedIsCopiedOnceMore(t *testing.T) {
	m, target := moveIn(Switched), Facts{Side: Target}
	for i, c := range []struct {
		act Act
		out Outcome
	}{
		{Resume, Outcome{Err: errors.New("away")}},
		{Resume, Outcome{Err: errors.New("not here"), Final: true}},
		{Copy, Outcome{Err: errors.New("away")}},
		{Copy, Outcome{Err: errors.New("it is here"), Final: true}},
		{Resume, Outcome{Err: errors.New("not here"), Final: true}},
		{Copy, Outcome{Extent: three()}},
		{Resume, Outcome{Extent: three()}},
	} {
		step := m.Next(target)
		if step.Act != c.act {
			t.Fatalf("step %d: %s, want %s", i, step.Act, c.act)
		}
		if step := m.Next(Facts{Side: Source, PeerGone: "gone"}); step.Act != Wait {
			t.Errorf("step %d: the source does %s", i, step.Act)
		}
		m, _ = m.After(step, c.out, "b", noon.Add(time.Hour))
	}
	if m.Phase != Resumed || m.Again || m.Error != "" || m.Copied == nil {
		t.Errorf("%+v", m)
	}
}

func TestCancelUndoesBeforeTheHandoverOnly(t *testing.T) {
	for p, want := range map[Phase]Phase{
		Pending: Cancelled, Draining: Undoing, Sealed: Undoing, Copied: Undoing, Undoing: Undoing, Returned: Returned,
	} {
		n, err := moveIn(p).Cancel("an operator", noon)
		if err != nil || n.Phase != want || !n.CalledOff {
			t.Errorf("%s: %s, %v; want %s", p, n.Phase, err, want)
		}
		for range 2 {
			for _, side := range []Side{Source, Target} {
				if step := n.Next(Facts{Side: side}); step.Act != Wait {
					n, _ = n.After(step, Outcome{Extent: three()}, "a", noon)
				}
			}
		}
		wantError := "called off: an operator"
		if p == Undoing || p == Returned {
			wantError = "the disk is full"
		}
		if n.Phase != Cancelled || n.Error != wantError {
			t.Errorf("called off as %s: it ends as %s, error %q; want %q", p, n.Phase, n.Error, wantError)
		}
	}
	// The broker that has asked may be gone for good, and no other could move the topic then.
	sent, err := (Move{Phase: Pending, Sent: true, From: "a"}).Cancel("an operator", noon)
	if err != nil || sent.Phase != Cancelled || strings.Contains(sent.End(), "a serves") {
		t.Errorf("a move of the brokers' own cluster: %s, %v, %q", sent.Phase, err, sent.End())
	}
	for _, p := range []Phase{Switched, Done, Cancelled, Failed} {
		m := moveIn(p)
		n, err := m.Cancel("an operator", noon)
		if err == nil || n.Phase != p || n.CalledOff {
			t.Errorf("%s: called off: %s, %v", p, n.Phase, err)
		}
	}
}

// The source may be gone for good, and nobody else can end the move then.
func TestAMoveThatTheTargetServesCanBeEndedAndNothingMoreIsDone(t *testing.T) {
	for p, want := range map[Phase]string{
		Resumed:  "called off: an operator; b serves /d/t, and a keeps what it had, withdrawn: compare them before you remove it there",
		Verified: "called off: an operator; b serves /d/t, every message was compared, and what a still has may be removed there",
	} {
		m := moveIn(p)
		if m.Served = three(); p == Verified {
			m.Same = &Content{Compared: 3}
		}
		n, err := m.Cancel("an operator", noon)
		if err != nil || n.Phase != Failed || n.End() != want {
			t.Errorf("%s: %s, %v, %q", p, n.Phase, err, n.End())
		}
		m.Same = &Content{Observed: "they share it"}
		if p == Verified {
			if n, _ = m.Cancel("an operator", noon); !strings.Contains(n.End(), "compare them before you remove") {
				t.Errorf("nothing was compared: %q", n.End())
			}
		}
	}
}

func TestWhoHoldsATopicWhileItMoves(t *testing.T) {
	for _, p := range Phases {
		m := moveIn(p)
		source := p != Pending && p != Returned && !p.Over()
		target := p != Resumed && p != Verified && !p.Over()
		if m.Held(Source) != source || m.Held(Target) != target || m.Held(Neither) {
			t.Errorf("%s: held at source %t, target %t, others %t", p, m.Held(Source), m.Held(Target), m.Held(Neither))
		}
		owner := "a"
		if slices.Contains([]Phase{Switched, Resumed, Verified, Done}, p) {
			owner = "b"
		}
		if m.Owner() != owner {
			t.Errorf("%s: assigned to %s", p, m.Owner())
		}
	}
	over := moveIn(Failed)
	if over.Since = map[Phase]time.Time{Switched: time.Now()}; over.Owner() != "b" {
		t.Errorf("failed after it was handed over: assigned to %s", over.Owner())
	}
	if over.Taken = true; over.Owner() != "" {
		t.Errorf("taken by others: assigned to %s", over.Owner())
	}
	if m := moveIn(Pending); m.Of("a") != Source || m.Of("b") != Target || m.Of("c") != Neither {
		t.Error("sides")
	}
}

func TestWhatFitsWhatWasSealed(t *testing.T) {
	for _, c := range []struct {
		name   string
		sealed func(*Extent)
		now    func(*Extent)
		want   string // empty: it fits
	}{
		{name: "the same"},
		{name: "a message more", now: stands(1, 4, 4, 40), want: "the last message is 4, sealed was 3"},
		{name: "a message less", now: stands(1, 2, 2, 20), want: "the last message is 2, sealed was 3"},
		{name: "one from the middle", now: stands(1, 3, 2, 20), want: "2 messages with 20 bytes, 1 to 3, sealed was 3"},
		{name: "other bytes", now: stands(1, 3, 3, 31), want: "3 messages with 31 bytes"},
		{name: "the first gone", now: stands(2, 3, 2, 20), want: "2 to 3, sealed was"},
		{name: "the first gone by age", sealed: shrinks, now: stands(2, 3, 2, 20)},
		{name: "all gone by age", sealed: shrinks, now: stands(4, 3, 0, 0)},
		{name: "the last gone by age", sealed: shrinks, now: stands(1, 2, 2, 20), want: "the last message is 2"},
		{name: "more where messages go by age", sealed: shrinks, now: stands(1, 3, 4, 30), want: "more than there was"},
		{name: "more bytes where they go by age", sealed: shrinks, now: stands(1, 3, 3, 31), want: "more than there was"},
		{name: "an earlier first where they go by age", sealed: shrinks, now: stands(0, 3, 3, 30), want: "more than there was"},
		{name: "empty where it was not", now: func(e *Extent) { e.Empty = true }, want: "empty, sealed was 3 messages"},
		{name: "empty is not offset 0", sealed: stands(0, 0, 1, 10), now: empty, want: "empty, sealed was 1 message with 10 bytes, 0 to 0"},
		{name: "offset 0 is not empty", sealed: empty, now: stands(0, 0, 1, 10), want: "1 message with 10 bytes, 0 to 0, sealed was empty"},
		{name: "both empty, whatever the numbers", sealed: empty, now: func(e *Extent) { empty(e); e.First, e.Last = 1, 9 }},
		{name: "both empty, another configuration", sealed: empty, now: func(e *Extent) { empty(e); e.Config = "k2" }, want: "another configuration (k2)"},
		{name: "both empty, a consumer is missing", sealed: empty, now: func(e *Extent) { empty(e); e.Floors = nil }, want: `consumer "c"`},
		{name: "a consumer went on", now: func(e *Extent) { e.Floors["c"] = 3 }},
		{name: "a consumer is new", now: func(e *Extent) { e.Floors["d"] = 0 }},
		{name: "a consumer fell back", now: func(e *Extent) { e.Floors["c"] = 0 }, want: `consumer "c" stands at 0, sealed was 1`},
		{name: "a consumer is missing", now: func(e *Extent) { e.Floors = nil }, want: `consumer "c" stands at 0, sealed was 1`},
		{name: "a consumer at 0 is missing", sealed: atZero, now: func(e *Extent) { e.Floors = nil }, want: `consumer "c" stands at 0, sealed was 0`},
		{name: "another configuration", now: func(e *Extent) { e.Config = "k2" }, want: "another configuration (k2) than was sealed (k1)"},
		{name: "a configuration that is not known any more", now: func(e *Extent) { e.Config = "" }, want: "configuration () than was sealed (k1)"},
		{name: "configurations that nobody knows", sealed: func(e *Extent) { e.Config = "" }, now: func(e *Extent) { e.Config = "" }},
		{name: "another schema", now: func(e *Extent) { e.Schema = "s2" }, want: "another schema (s2) than was sealed (s1)"},
		{name: "what it rests on and who is at work", now: func(e *Extent) { e.Rests, e.Active = "a disk", 7 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			sealed, now := three(), three()
			if c.sealed != nil {
				c.sealed(sealed)
			}
			if c.now != nil {
				c.now(now)
			}
			err := sealed.Fits(now, "there")
			if got := errText(err); c.want == "" && got != "" || !strings.Contains(got, c.want) || got != "" && !strings.HasPrefix(got, "there: ") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if err := three().Fits(nil, "there"); err == nil {
		t.Error("nothing fits")
	}
}

func stands(first, last, count, bytes uint64) func(*Extent) {
	return func(e *Extent) { e.First, e.Last, e.Count, e.Bytes = first, last, count, bytes }
}

func atZero(e *Extent)  { e.Floors["c"] = 0 }
func shrinks(e *Extent) { e.Shrinks = true }
func empty(e *Extent)   { e.Empty, e.First, e.Last, e.Count, e.Bytes = true, 0, 0, 0, 0 }

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAJournalIsReadAsItWasWritten(t *testing.T) {
	for _, p := range Phases {
		m := moveIn(p)
		m.Copied, m.Served, m.Same, m.Force, m.CalledOff = three(), three(), &Content{Compared: 3, Hash: "h"}, true, true
		n, err := Parse(m.Topic, m.Value())
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if string(n.Value()) != string(m.Value()) || n.Topic != m.Topic {
			t.Errorf("%s: written %s, read %s", p, m.Value(), n.Value())
		}
	}
}

func TestAJournalThatCannotBeReadIsNamed(t *testing.T) {
	for _, c := range []struct {
		value, want string
		newer       bool
	}{
		{value: ``, want: "unexpected end of JSON input"},
		{value: `garbled`, want: "invalid character"},
		{value: `null`, want: "format 0: want 1"},
		{value: `{}`, want: "format 0: want 1"},
		{value: `[1]`, want: "cannot unmarshal array"},
		{value: `{"format":1,"id":"m1","from":"a","to":"b","phase":"pending"} x`, want: "invalid character 'x'"},
		{value: `{"format":2,"id":7}`, want: "cannot unmarshal number"},
		{value: `{"format":2,"id":"m1","from":"a","to":"b","phase":"flying"}`, want: "format 2: of a newer version of holdfast", newer: true},
		{value: `{"format":-1,"id":"m1","from":"a","to":"b","phase":"pending"}`, want: "format -1: want 1"},
		{value: `{"format":1,"from":"a","to":"b","phase":"pending"}`, want: `id "", from "a", to "b": want three names, and two brokers`},
		{value: `{"format":1,"id":"m1","to":"b","phase":"pending"}`, want: `from ""`},
		{value: `{"format":1,"id":"m1","from":"a","phase":"pending"}`, want: `to ""`},
		{value: `{"format":1,"id":"m1","from":"a","to":"a","phase":"pending"}`, want: `from "a", to "a"`},
		{value: `{"format":1,"id":"m1","from":"a","to":"b"}`, want: `phase "": unknown`},
		{value: `{"format":1,"id":"m1","from":"a","to":"b","phase":"flying"}`, want: `phase "flying": unknown`},
		{value: `{"format":1,"id":"m1","from":"a","to":"b","phase":"pending"}`, want: "without what was planned"},
		{value: `{"format":1,"id":"m1","from":"a","to":"b","phase":"sealed","planned":{}}`, want: "phase sealed without what was sealed"},
		{value: `{"format":1,"id":"m1","from":"a","to":"b","phase":"verified","planned":{}}`, want: "phase verified without what was sealed"},
	} {
		m, err := Parse("/d/t", []byte(c.value))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "move of /d/t: cannot be read: ") {
			t.Errorf("%s: %v, want %q", c.value, err, c.want)
		}
		if errors.Is(err, ErrNewer) != c.newer || m.ID != "" {
			t.Errorf("%s: newer %t, read %+v", c.value, !c.newer, m)
		}
	}
	value := `{"format":1,"id":"m1","from":"a","to":"b","phase":"pending","planned":{},"colour":"red"}`
	if m, err := Parse("/d/t", []byte(value)); err != nil || m.Phase != Pending || m.Topic != "/d/t" {
		t.Errorf("with a field that is not known: %+v, %v", m, err)
	}
}

func TestALaterMoveHasAGreaterID(t *testing.T) {
	first := NewID(noon, "", 0xffffffff)
	for _, c := range []struct {
		name string
		now  time.Time
		last string
	}{
		{"later", noon.Add(time.Millisecond), first},
		{"in the same millisecond", noon, first},
		{"by a clock that was set back", noon.Add(-24 * time.Hour), first},
		{"after an ID of another form", noon.Add(time.Hour), "moved-by-hand"},
	} {
		if id := NewID(c.now, c.last, 0); id <= first || len(id) != len(first) {
			t.Errorf("%s: %s after %s", c.name, id, first)
		}
	}
	if NewID(noon, "", 1) == NewID(noon, "", 2) {
		t.Error("two topics have one ID")
	}
}
