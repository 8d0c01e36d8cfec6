package recovery

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testseed"
)

var update = flag.Bool("update", false, "write the golden files")

// departsWell are the facts of a broker that may leave.
func departsWell() DepartFacts {
	return DepartFacts{Now: time.Hour, Process: "p1", Up: true, UpAtStop: true, Mode: ModeRecord{Active, ReasonBoot, ByHoldfast}, Decided: true,
		Leased: true, Held: true, LeaveTimeout: 5 * time.Minute, RestartGrace: 3 * time.Second, Hears: 8 * time.Second}
}

// What becomes of the facts.
var (
	isSilent  = func(f *DepartFacts) { f.Up = false }
	isGone    = func(f *DepartFacts) { f.Up, f.Gone, f.Ended = false, true, true }
	isAnother = func(f *DepartFacts) { f.Process, f.Up, f.Gone, f.Ended, f.Decided = "p2", true, false, false, false }
	saysSo    = func(f *DepartFacts) { f.Word, f.Words = "p1", "lame duck mode" }
	isPaused  = func(f *DepartFacts) { f.Paused = true }
	fences    = func(f *DepartFacts) { f.FencesItself = true }
	isRevoked = func(f *DepartFacts) {
		f.Leased, f.Held, f.Released, f.Detached, f.Fell = false, false, true, true, true
	}
	isOff     = func(f *DepartFacts) { f.Held, f.Detached, f.Fell = false, true, true }
	isDrained = func(f *DepartFacts) { f.Mode = ModeRecord{Drained, "disk swap", ByOperator} }
	isLate    = func(f *DepartFacts) { f.Now += 5 * time.Minute }
	isUnknown = func(f *DepartFacts) { f.Mode = ModeRecord{} }
	tick      = func(f *DepartFacts) { f.Now += time.Second }
)

// words are what is to be done, for people.
func (do DepartActs) words() string {
	var each []string
	for _, w := range []struct {
		is    bool
		words string
	}{
		{do.Cancel, "what is under way is cancelled"}, {do.Unsure, "the note may be written yet"},
		{do.Say.To != "", fmt.Sprintf("event %s/%s", do.Say.Kind, do.Say.To)}, {do.Remember, "the next sidecar is to know it"},
		{do.Freed, "that it is revoked is remembered"},
		{do.Answered && do.Answer == nil, "whoever asked hears: done"}, {do.Answered && do.Answer != nil, fmt.Sprintf("whoever asked hears: %v", do.Answer)},
		{do.Prove, "clients away, what is served is withdrawn"}, {do.Note && !do.Stop && !do.Crash, "the note is written"},
		{do.Note && do.Stop, "the note is written: its process is to end"}, {do.Note && do.Crash, "the note of a crash is written"},
		{do.Look, "the registration is looked at"},
	} {
		if w.is {
			each = append(each, w.words)
		}
	}
	return strings.Join(each, "; ")
}

// inPhase is a departure in each phase, asked for where that may be.
func inPhase(p DeparturePhase) (Departure, DepartFacts) {
	d, f := Departure{Phase: p, Process: "p1"}, departsWell()
	switch p {
	case Staying:
		d.Process = ""
	case Seen:
		d.Cause, d.Gone, d.Next = CausePause, true, f.Now+time.Second
		isGone(&f)
	case Dropped:
		d.Gone = true
		isGone(&f)
	case Proving, Noting, Awaiting, Left, Releasing:
		d.Cause = CauseLeave
		d.Until, d.Next = f.Now+time.Minute, f.Now+time.Minute
	}
	return d, f
}

var departPhases = []DeparturePhase{Staying, Seen, Proving, Awaiting, Noting, Releasing, Left, Dropped, Returning}

// Each phase, and each event beside facts that ask for nothing themselves.
func TestEachEventInEachPhaseOfADeparture(t *testing.T) {
	events := []DepartEvent{{Kind: Looked}, {Kind: Asked}, {Kind: AskedBriefly}, {Kind: Abandoned, Why: "not done in time"}, {Kind: Activated},
		{Kind: Proved, Proof: FenceQuiesced}, {Kind: Proved}, {Kind: Proved, Err: errors.New("1 topic serves")}, {Kind: NoteCame}, {Kind: NoteCame, Err: errors.New("no answer")},
		{Kind: TakenUp}, {Kind: LeftFound, Process: "p1", At: 2 * time.Hour}, {Kind: StopAsked}}
	var got strings.Builder
	for _, p := range departPhases {
		for _, e := range events {
			d, f := inPhase(p)
			after, do := d.Step(e, f)
			if after == d && do == (DepartActs{}) {
				continue // nothing
			}
			kind := string(e.Kind)
			if e.Err != nil {
				kind += ", in vain"
			} else if e.Kind == Proved {
				kind += fmt.Sprintf(" %t", e.Proof.Proven())
			}
			to := string(after.Phase)
			if after.Off != d.Off {
				to += ", to be called off"
			}
			fmt.Fprintf(&got, "%-9s  %-16s  %-9s  %s\n", stayingOr(p), kind, stayingOr(DeparturePhase(to)), do.words())
		}
	}
	golden(t, "departure_pairs", "Phase, event, the phase after it, and what is done. A pair that is not listed changes nothing.\n\n"+got.String())
	if len(departSteps) != 10 {
		t.Errorf("%d kinds of events", len(departSteps))
	}
}

func stayingOr(p DeparturePhase) string {
	if s := string(p); s != "" && !strings.HasPrefix(s, ",") {
		return s
	}
	return "staying" + string(p)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s: %v; differs (-update writes it):\n%s", path, err, got)
	}
}

// telling is one departure, told line by line: what happens, the phase after it, and what is done.
type telling struct {
	d    Departure
	f    DepartFacts
	told bytes.Buffer
}

func begins(about string, change ...func(*DepartFacts)) *telling {
	s := &telling{f: departsWell()}
	for _, c := range change {
		c(&s.f)
	}
	fmt.Fprintf(&s.told, "%s\n\n", about)
	return s
}

func (s *telling) event(words string, e DepartEvent, change ...func(*DepartFacts)) *telling {
	for _, c := range change {
		c(&s.f)
	}
	var do DepartActs
	s.d, do = s.d.Step(e, s.f)
	fmt.Fprintf(&s.told, "  %s\n    %s", words, stayingOr(s.d.Phase))
	if w := do.words(); w != "" {
		fmt.Fprintf(&s.told, ": %s", w)
	}
	s.told.WriteString("\n")
	return s
}

func (s *telling) look(words string, change ...func(*DepartFacts)) *telling {
	return s.event(words, DepartEvent{Kind: Looked}, change...)
}

func (s *telling) asked() *telling { return s.event("it is asked to leave", DepartEvent{Kind: Asked}) }
func (s *telling) idle() *telling {
	return s.event("it serves nothing any more", DepartEvent{Kind: Proved, Proof: FenceQuiesced, At: s.f.Now})
}
func (s *telling) noted() *telling {
	return s.event("the note is written", DepartEvent{Kind: NoteCame})
}
func (s *telling) lostNote() *telling {
	return s.event("etcd does not answer: the note may be written, or not", DepartEvent{Kind: NoteCame, Err: errors.New("deadline exceeded")})
}
func (s *telling) refused() *telling {
	return s.event("etcd refuses the note", DepartEvent{Kind: NoteCame, Err: nothing("it is drained (disk swap) by now")})
}
func (s *telling) stopped() *telling {
	return s.event("the sidecar gets SIGTERM", DepartEvent{Kind: StopAsked})
}
func (s *telling) activated() *telling {
	return s.event("an operator activates it", DepartEvent{Kind: Activated})
}
func (s *telling) left() *telling {
	return s.asked().idle().noted().look("etcd confirms the revocation", isRevoked)
}

func TestDeparturesAsTheyAreTold(t *testing.T) {
	var got bytes.Buffer
	for _, s := range []*telling{
		begins("A stop of the sidecar.").stopped().idle().noted(),
		begins("A stop of the sidecar whose broker is not proven to serve nothing.").stopped().
			event("it may serve", DepartEvent{Kind: Proved}),
		begins("A stop of the sidecar while its broker is restarted, too.").stopped().
			event("the next process answers, and serves nothing", DepartEvent{Kind: Proved, Proof: FenceQuiesced}, isAnother).noted(),
		begins("A stop of the sidecar beside a broker that is drained.", isDrained).stopped(),
		begins("A stop of the sidecar after its broker had ended by itself.", isGone, func(f *DepartFacts) { f.UpAtStop = false }).
			look("its process has ended").stopped(),
		begins("A broker leaves, is stopped and started again.").left().look("its process has ended", isGone).look("the next process answers", isAnother),
		begins("A broker leaves, and nobody stops it.").left().look("it still runs after --leave-timeout", isLate),
		begins("A broker leaves, and is activated while its process is there.").left().activated(),
		begins("A broker leaves, is stopped, and activated while it is away: it keeps its note.").left().look("its process has ended", isGone).activated(),
		begins("Asked for twice, and once more when it has left.").asked().asked().idle().noted().look("etcd confirms the revocation", isRevoked).asked(),
		begins("Whoever asked waits no more.").asked().
			event("nobody waits any more", DepartEvent{Kind: Abandoned, Why: "not done within 5s"}).
			event("what was under way has ended", DepartEvent{Kind: Proved, Err: errors.New("context canceled")}).
			event("its registration was looked at", DepartEvent{Kind: TakenUp}),
		begins("It cannot be quiesced.").asked().event("it may serve", DepartEvent{Kind: Proved, Err: errors.New("1 topic quiesced: refused")}).
			asked().event("its registration was looked at", DepartEvent{Kind: TakenUp}),
		begins("An operator drains it while it leaves.").asked().look("it is drained", isDrained).idle(),
		begins("An operator drains it while the note is on its way, and etcd refuses that.").asked().idle().look("it is drained", isDrained).refused(),
		begins("It is cut off while it leaves.").asked().look("it is detached", isOff).idle(),
		begins("Another process answers while it leaves.").asked().look("another process answers", isAnother).idle(),
		begins("The answer to the note is lost: held back until its registration was looked at, which takes a note away.").asked().idle().lostNote().
			look("a second later", tick).event("its registration was looked at", DepartEvent{Kind: TakenUp}),
		begins("The answer to the revocation is lost: its lease runs out.").asked().idle().noted().look("a second later", tick).
			look("nobody waits for it any more", func(f *DepartFacts) { f.Now += f.Hears }),
		begins("SIGTERM while a broker leaves: the sidecar's end goes on with it.").asked().stopped().idle().noted(),
		begins("SIGTERM while the note is on its way.").asked().idle().stopped().
			event("its process has ended", DepartEvent{Kind: Proved, Proof: FenceGone}).noted(),
		begins("SIGTERM while a broker leaves that an operator has activated: a stop of the sidecar, and no more.").asked().activated().stopped().idle().noted(),
		begins("SIGTERM after a broker has left: that is noted.").left().stopped(),
		begins("SIGTERM after a broker has left and was drained.").left().look("it is drained", isDrained).stopped(),
		begins("A broker leaves for the restart of its sidecar, and whoever stops the broker asks, too.").
			event("it is asked to leave with its sidecar", DepartEvent{Kind: AskedBriefly}).idle().noted().asked().look("etcd confirms the revocation", isRevoked),
		begins("A broker that must not run without its registration is stopped by somebody else.").asked().
			event("it serves nothing, and runs", DepartEvent{Kind: Proved}).look("it does not answer any more", isSilent, tick).
			look("its process has ended", isGone).noted().look("etcd confirms the revocation", isRevoked),
		begins("Such a broker is drained meanwhile.").asked().event("it serves nothing, and runs", DepartEvent{Kind: Proved}).look("it is drained", isDrained),
		begins("Such a broker ends, and etcd is silent for a moment: it is noted while it is held.").asked().event("it serves nothing, and runs", DepartEvent{Kind: Proved}).
			look("its process has ended", isGone).lostNote().look("at once").look("a second later", tick).noted(),
		begins("Such a broker is stopped from here while etcd is silent: its last answer counts for a moment yet.").asked().
			event("it is stopped", DepartEvent{Kind: Proved, Proof: FenceGone}).lostNote().look("at once").look("a second later", isGone, tick).noted(),
		begins("Nobody would know when such a broker has ended.", func(f *DepartFacts) { f.Unproven = "its process is not seen" }).asked(),
		begins("Lame duck: a broker ends by its own word.", saysSo).look("it says so").look("it is silent", isSilent, tick).
			look("its process has ended", isGone).noted().look("the next process answers", isAnother),
		begins("Lame duck, and it stays: once for each process.", saysSo).look("it says so").look("its time is over", isLate).look("it says so again", tick),
		begins("Lame duck, drained meanwhile: that is kept.", saysSo).look("it says so").look("it is drained", isDrained).look("its process has ended", isGone),
		begins("Lame duck, cut off meanwhile.", saysSo).look("it says so").look("it is detached", isOff),
		begins("Lame duck, and the sidecar gets SIGTERM.", saysSo).look("it says so").stopped().event("its process has ended", DepartEvent{Kind: Proved, Proof: FenceGone}).noted(),
		begins("Lame duck, and SIGTERM between its end and the note.", saysSo).look("it says so").look("its process has ended", isGone, func(f *DepartFacts) { f.UpAtStop = false }).stopped().
			event("its process has ended", DepartEvent{Kind: Proved, Proof: FenceGone}).noted(),
		begins("A broker ends during a pause.", isPaused).look("its process has ended", isGone).noted().
			look("it is still away", tick).look("the next process answers", isAnother),
		begins("A pause that begins after the end is none.").look("its process has ended", isGone).look("recovery is paused", isPaused),
		begins("It had been drained.", isPaused, isDrained).look("its process has ended", isGone),
		begins("A crash, and back within the grace: the registration takes the note away.", fences).look("its process has ended", isGone).noted().
			look("the next process answers", isAnother),
		begins("A crash, and gone: the lease is revoked after the grace, by whoever renews it.", fences).look("its process has ended", isGone).lostNote().
			look("at once").look("a second later", tick).noted().look("the lease is revoked", isRevoked),
		begins("Its process is back while the crash is noted: it is registered after that.", fences).look("its process has ended", isGone).
			look("the next process answers", isAnother).noted().look("it goes on"),
		begins("A crash while etcd refuses the note.", fences).look("its process has ended", isGone).refused().look("a second later", tick),
		begins("A crash of a broker that was cut off leaves no note.", fences, isOff).look("its process has ended", isGone),
		begins("SIGTERM while a crash is noted.", fences).look("its process has ended", isGone, func(f *DepartFacts) { f.UpAtStop = false }).stopped().
			event("its process has ended", DepartEvent{Kind: Proved, Proof: FenceGone}).noted(),
		begins("One command stops both, and the broker ends first: that is no crash.", fences).look("its process has ended", isGone).stopped().
			event("its process has ended", DepartEvent{Kind: Proved, Proof: FenceGone}).noted(),
		begins("SIGTERM while a crash is noted, and its process is back: the note is not cut short.", fences).look("its process has ended", isGone).
			look("the next process answers", isAnother).stopped(),
		begins("A sidecar finds a process that had left under the one before, until it is another.", isUnknown, func(f *DepartFacts) { f.Leased, f.Held = false, false }).
			event("it has left", DepartEvent{Kind: LeftFound, Process: "p1", At: time.Hour + time.Minute}).look("a second later", tick).look("the next process answers", isAnother).
			event("the note of the one before is found, too", DepartEvent{Kind: LeftFound, Process: "p1", At: 2 * time.Hour}),
	} {
		got.Write(s.told.Bytes())
		got.WriteString("\n")
	}
	golden(t, "departures", got.String())
}

// While any sequence of events: one thing under way at a time, nothing noted of a broker that is drained or
// not held, nothing revoked but after a note, nothing taken up while a note is on its way, and a look
// that is repeated finds nothing to do.
func TestDeparturesUnderRandomEvents(t *testing.T) {
	seed := testseed.Value()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 1000 {
		var d Departure
		f := departsWell()
		proving, noting, noted := false, false, false
		type line struct {
			e             DepartEvent
			before, after DeparturePhase
			do            DepartActs
		}
		var story []line
		for range 40 {
			for _, c := range []struct {
				of     int
				change func(*DepartFacts)
			}{
				{3, tick}, {30, isLate}, {12, isGone}, {12, isSilent}, {20, isDrained}, {15, func(f *DepartFacts) { f.Mode = ModeRecord{Active, ReasonBoot, ByHoldfast} }},
				{20, isPaused}, {20, func(f *DepartFacts) { f.Paused = false }}, {20, fences}, {25, isOff}, {30, isRevoked}, {30, saysSo},
				{10, func(f *DepartFacts) {
					before := *f
					*f = departsWell()
					if f.Now, f.Process, f.Mode = before.Now, before.Process, before.Mode; before.Gone {
						f.Process += "'"
					}
				}},
				{15, func(f *DepartFacts) { isAnother(f); f.Process = fmt.Sprint("p", r.IntN(1000)) }}, {6, func(f *DepartFacts) { f.Decided = true }},
			} {
				if r.IntN(c.of) == 0 {
					c.change(&f)
				}
			}
			events := []DepartEvent{{Kind: Looked}, {Kind: Looked}, {Kind: Looked}, {Kind: Asked}, {Kind: AskedBriefly}, {Kind: Abandoned, Why: "late"},
				{Kind: Activated}, {Kind: TakenUp}, {Kind: LeftFound, Process: f.Process, At: f.Now + time.Minute}}
			if proving {
				events = append(events, DepartEvent{Kind: Proved}, DepartEvent{Kind: Proved, Proof: FenceQuiesced, At: f.Now}, DepartEvent{Kind: Proved, Proof: FenceGone}, DepartEvent{Kind: Proved, Err: errors.New("no")})
			}
			if noting {
				events = append(events, DepartEvent{Kind: NoteCame}, DepartEvent{Kind: NoteCame, Err: errors.New("lost")}, DepartEvent{Kind: NoteCame, Err: nothing("drained")})
			}
			e := events[r.IntN(len(events))]
			if e.Kind == NoteCame && e.Err == nil && f.Mode.Mode != Active {
				e.Err = nothing("the transaction is guarded by the mode")
			}
			if e.Kind == TakenUp && d.Bars(f.Process) {
				continue
			}
			if e.Proof == FenceGone && !f.Gone {
				isGone(&f)
			}
			proving, noting = proving && e.Kind != Proved, noting && e.Kind != NoteCame
			noted = noted || e.Kind == NoteCame && e.Err == nil
			after, do := d.Step(e, f)
			story = append(story, line{e, d.Phase, after.Phase, do})
			fail := func(what string) {
				t.Helper()
				for _, l := range story {
					t.Logf("%-13s %-9s -> %-9s %s", l.e.Kind, stayingOr(l.before), stayingOr(l.after), l.do.words())
				}
				t.Fatalf("seed %d: %s; facts %+v", seed, what, f)
			}
			again, nothingNew := after.Step(DepartEvent{Kind: Looked}, f)
			switch {
			case (do.Prove || do.Note) && (proving || noting), do.Prove && do.Note:
				fail("two things are under way")
			case do.Note && (f.Mode.Mode != Active || !f.Leased || !f.Decided || f.Fell):
				fail("noted of a broker that is drained, not held or not decided about")
			case after.Revokes() && !noted, do.Remember && !noted:
				fail("revoked or remembered without a note")
			case (after.Phase == Noting || after.Phase == Proving) && !after.Bars(after.Process):
				fail("it may be registered anew, which takes the note away")
			case after.Gone && (after.Phase == Seen || after.Phase == Noting) && !after.OwesNote(false):
				fail("its lease may be revoked before it is noted")
			case after.Phase != Staying && !after.Gone && !after.HoldsBack():
				fail("it may serve")
			case e.Kind == Looked && (nothingNew != (DepartActs{}) || again != after):
				fail("a look that is repeated does something: " + nothingNew.words())
			}
			d, proving, noting, noted = after, proving || do.Prove, noting || do.Note, noted && !do.Note
		}
	}
}

func TestWhatADepartureMeansMeanwhile(t *testing.T) {
	asked, own := Departure{Cause: CauseLeave, Process: "p1"}, Departure{Cause: CauseOwnWord, Process: "p1"}
	in := func(d Departure, p DeparturePhase, gone bool) Departure {
		d.Phase, d.Gone = p, gone
		return d
	}
	for _, row := range []struct {
		d      Departure
		ended  bool   // its process, as far as is seen
		words  string // the start of them
		bars   bool   // that process
		others bool   // and any other
	}{
		{Departure{}, false, "", false, false},
		{in(asked, Proving, false), false, "it leaves on purpose", true, false},
		{in(asked, Noting, false), false, "it leaves on purpose", true, false},
		{in(asked, Noting, true), true, "it leaves on purpose", true, true},
		{in(asked, Awaiting, false), false, "it leaves on purpose and must be stopped now", false, false},
		{in(asked, Seen, true), true, "it leaves on purpose", false, false},
		{in(asked, Releasing, false), false, "it leaves on purpose", true, false},
		{in(asked, Left, false), false, "it has left on purpose: stop it", true, false},
		{in(asked, Left, false), true, "it has left on purpose: start it", true, false},
		{in(own, Awaiting, false), false, "it leaves by itself", false, false},
		{in(own, Seen, true), true, "", false, false},
		{in(own, Noting, true), true, "", true, true},
		{in(own, Left, true), true, "", false, false},
		{in(Departure{Process: "p1"}, Returning, false), false, "it was to leave on purpose, and stays", false, false},
		{in(Departure{Process: "p1"}, Dropped, true), true, "", false, false},
	} {
		words := row.d.Words(row.ended)
		same := words == row.words || row.words != "" && row.words != "it leaves on purpose" && strings.HasPrefix(words, row.words)
		if !same || row.d.Bars("p1") != row.bars || row.d.Bars("p2") != row.others || row.d.HoldsBack() != (row.words != "") {
			t.Errorf("%+v: %q, bars %t and others %t, holds back %t", row.d, words, row.d.Bars("p1"), row.d.Bars("p2"), row.d.HoldsBack())
		}
		ended := row.d.Phase == Left || row.d.Phase == Dropped
		if row.d.OwesNote(true) == ended || row.d.OwesNote(false) != (row.d.Gone && !ended) {
			t.Errorf("%+v: owes a note %t, and %t where its storage fences it", row.d, row.d.OwesNote(false), row.d.OwesNote(true))
		}
	}
}

func TestDeparturesAtTheVeryMoment(t *testing.T) {
	f := departsWell()
	if d, _ := (Departure{Phase: Releasing, Cause: CauseLeave, Process: "p1", Next: f.Now, Until: f.Now + time.Minute}).Step(DepartEvent{Kind: Looked}, f); d.Phase != Left {
		t.Errorf("the answer to the revocation is waited for too long: %s", d.Phase)
	}
	f.Mode = ModeRecord{}
	if d, _ := (Departure{}).Step(DepartEvent{Kind: LeftFound, Process: "p1", At: f.Now}, f); d.Phase != Staying || !d.Recalled {
		t.Errorf("its time is over, and it is %s", d.Phase)
	}
	f = departsWell()
	isGone(&f)
	f.FencesItself, f.RestartGrace = true, 0
	if d, _ := (Departure{}).Step(DepartEvent{Kind: Looked}, f); d.Phase != Dropped {
		t.Errorf("its registration is kept, and its crash is %s", d.Phase)
	}
}

// Of what may be noted when a process ends, the first of the table is.
func TestWhyTheEndOfAProcessIsNoted(t *testing.T) {
	for _, row := range []struct {
		leaves, paused, fences bool
		cause                  Cause
		said                   string
	}{
		{cause: ""},
		{fences: true, cause: CauseCrash},
		{paused: true, cause: CausePause, said: "its process has ended during a maintenance pause"},
		{paused: true, fences: true, cause: CausePause, said: "its process has ended during a maintenance pause"},
		{leaves: true, paused: true, fences: true, cause: CauseOwnWord, said: "it said that it leaves, and its process has ended"},
	} {
		f := departsWell()
		f.Paused, f.FencesItself = row.paused, row.fences
		var d Departure
		if row.leaves {
			saysSo(&f)
			d, _ = d.Step(DepartEvent{Kind: Looked}, f)
		}
		isGone(&f)
		d, do := d.Step(DepartEvent{Kind: Looked}, f)
		if d.Cause != row.cause || do.Note != (row.cause != "") || do.Crash != (row.cause == CauseCrash) {
			t.Errorf("%+v: %s, to be done %+v", row, d.Cause, do)
		}
		if _, do = d.Step(DepartEvent{Kind: NoteCame}, f); do.Say.Detail != row.said {
			t.Errorf("%+v: %q", row, do.Say.Detail)
		}
	}
}

// docs/concepts.md quotes the table.
func TestTheTableOfDeparturesIsQuoted(t *testing.T) {
	page, err := os.ReadFile("../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	table := "| the broker … | before the note | then | called off by |\n|---|---|---|---|\n"
	for _, e := range Departures {
		table += fmt.Sprintf("| %s | %s | %s | %s |\n", e.When, e.Proof, e.Then, e.Off)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("it is to have\n%s", table)
	}
}

// Wherever events have brought a departure: once all is well with a process that stays, it is over, and
// whoever waited has been answered. The end of a sidecar hears whether it is noted.
func TestEachDepartureComesToItsEnd(t *testing.T) {
	seed := testseed.Value()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 1000 {
		var d Departure
		var pending DepartKind
		waiting, f, story := 0, departsWell(), ""
		var do DepartActs
		step := func(e DepartEvent) {
			if e.Kind == Proved || e.Kind == NoteCame {
				pending = ""
			}
			if e.Kind == Asked || e.Kind == AskedBriefly {
				waiting++
			}
			before := d.Phase
			if d, do = d.Step(e, f); do.Answered {
				waiting = 0
			}
			if do.Prove {
				pending = Proved
			}
			if do.Note {
				pending = NoteCame
			}
			story += fmt.Sprintf("%s: %s -> %s: %s\n", e.Kind, before, d.Phase, do.words())
			if e.Kind == StopAsked {
				pending = map[bool]DepartKind{true: Proved}[do.Answer == nil && d.Phase == Proving]
			} else if held := d.Phase == Proving || d.Phase == Noting; held != (pending != "") && !d.Stopping {
				t.Fatalf("seed %d: %q is awaited\n%s", seed, pending, story)
			}
		}
		answer := func() {
			switch pending {
			case Proved:
				step([]DepartEvent{{Kind: Proved}, {Kind: Proved, Proof: FenceQuiesced, At: f.Now}, {Kind: Proved, Proof: FenceGone}, {Kind: Proved, Err: errors.New("no")}}[r.IntN(4)])
			case NoteCame:
				step([]DepartEvent{{Kind: NoteCame}, {Kind: NoteCame, Err: errors.New("lost")}, {Kind: NoteCame, Err: nothing("drained")}}[r.IntN(3)])
			}
		}
		changes := []func(*DepartFacts){tick, isLate, isSilent, isGone, isAnother, saysSo, isPaused, fences, isRevoked, isOff, isDrained, isUnknown,
			func(f *DepartFacts) { now := f.Now; *f = departsWell(); f.Now = now }, func(f *DepartFacts) { f.Decided, f.UpAtStop = true, false }}
		for range r.IntN(25) {
			changes[r.IntN(len(changes))](&f)
			switch r.IntN(3) {
			case 0:
				answer()
			case 1:
				step([]DepartEvent{{Kind: Asked}, {Kind: AskedBriefly}, {Kind: Abandoned, Why: "late"}, {Kind: Activated}, {Kind: LeftFound, Process: f.Process, At: f.Now + time.Minute}}[r.IntN(5)])
			}
			step(DepartEvent{Kind: Looked})
		}
		if r.IntN(4) == 0 { // the sidecar ends first
			if step(DepartEvent{Kind: StopAsked}); do.Answer == nil && !d.Planned() {
				for answer(); pending != ""; {
					answer()
				}
				if !do.Answered || (do.Answer == nil) != d.Planned() {
					t.Fatalf("seed %d: planned %t, answer %v\n%s", seed, d.Planned(), do.Answer, story)
				}
			}
			continue
		}
		process, now := []string{"p1", "p2"}[r.IntN(2)], f.Now
		for range 12 {
			f = departsWell()
			now += time.Minute
			f.Now, f.Process = now, process
			answer()
			step(DepartEvent{Kind: Looked})
			if !d.Bars(process) {
				step(DepartEvent{Kind: TakenUp})
			}
		}
		if d.Phase != Staying || waiting > 0 {
			t.Fatalf("seed %d: %s (%s), %d wait\n%s", seed, d.Phase, d.Cause, waiting, story)
		}
	}
}
