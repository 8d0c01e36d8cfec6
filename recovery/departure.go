package recovery

import (
	"errors"
	"fmt"
	"time"
)

// Cause is why a registration ends on purpose, or because its process is proven to have ended.
type Cause string

// Causes.
const (
	CauseStop    Cause = "stop"
	CauseLeave   Cause = "leave"
	CauseBriefly Cause = "leave_with_sidecar"
	CauseOwnWord Cause = "own_word"
	CausePause   Cause = "pause"
	CauseCrash   Cause = "crash"
)

// Ending is one row of the departures.
type Ending struct {
	Cause Cause
	When  string // it begins when the broker …
	Proof string // before the note
	Then  string // after it
	Off   string // what calls it off
	// asked: somebody wants this process without a registration, and waits for that. stops: it is to end.
	asked, stops, crash bool
	said                string                 // when the end of its process is noted
	is                  func(DepartFacts) bool // as the end of a process is seen; nil: it begins otherwise
}

const (
	provesIdle = "it serves nothing; one that must not run without its registration has ended"
	provesGone = "its process has ended"
	callsOff   = "a drain, a detachment, another process, `holdfast activate`, no note in time, nobody waits for it any more"
	isBack     = "its process is back"
)

// Departures are the ways in which a registration ends on purpose, or proven. Of those that begin with
// the end of a process the first that holds counts, as it is when the end is seen.
var Departures = []Ending{
	{Cause: CauseStop, When: "is up, active and attached when its sidecar is stopped (not with `--leave-registered`)", Proof: provesIdle,
		Then: "noted, and the lease revoked", Off: "a drain; what is not noted by the end of the sidecar is not"},
	{Cause: CauseLeave, asked: true, stops: true,
		When: "is up, active and attached, and `holdfast leave` is given", Proof: provesIdle,
		Then: "noted, and the lease revoked; this process is registered again only if it still runs after `--leave-timeout`", Off: callsOff},
	{Cause: CauseBriefly, asked: true, When: "the same, with `--with-sidecar`", Proof: provesIdle,
		Then: "the same, and the next sidecar takes it back", Off: callsOff},
	{Cause: CauseOwnWord, stops: true, said: "it said that it leaves, and its process has ended",
		When:  "says that it ends (NATS: lame duck mode), and is attached",
		Proof: provesGone + ", within `--leave-timeout`: it is renewed meanwhile, unready, and not stopped",
		Then:  "noted; the lease runs out, or is revoked after `--restart-grace`", Off: "a detachment, another process, `holdfast activate`, that time is over"},
	{Cause: CausePause, said: "its process has ended during a maintenance pause",
		When: "ends during a maintenance pause", Proof: provesGone, is: func(f DepartFacts) bool { return f.Paused },
		Then: "noted; the lease runs out, or is revoked after the pause and `--restart-grace`", Off: isBack},
	{Cause: CauseCrash, crash: true, When: "ends otherwise, where its storage fences it and `--restart-grace` is set", Proof: provesGone,
		is:   func(f DepartFacts) bool { return f.FencesItself && f.RestartGrace > 0 },
		Then: "noted as a crash, which counts for the TTL; the lease is revoked after `--restart-grace`", Off: isBack},
}

// DeparturePhase is how far a departure has come.
type DeparturePhase string

// Phases.
const (
	Staying   DeparturePhase = ""
	Seen      DeparturePhase = "seen"      // its process has ended: noted as soon as that may be
	Proving   DeparturePhase = "proving"   // what it serves is withdrawn
	Awaiting  DeparturePhase = "awaiting"  // renewed until its process has ended
	Noting    DeparturePhase = "noting"    // the note is on its way
	Releasing DeparturePhase = "releasing" // noted, and the lease is being revoked
	Left      DeparturePhase = "left"      // noted; only the end of that process, or the next one, is awaited
	Dropped   DeparturePhase = "dropped"   // its process has ended, and that is not to be noted
	Returning DeparturePhase = "returning" // taken back; a note may stand: held back until the registration was looked at, which takes it away
)

// Departure is the one ending of a registration that is under way. The zero Departure is none.
type Departure struct {
	Phase    DeparturePhase
	Cause    Cause
	Process  string
	Gone     bool    // that process is proven to have ended
	ProvenAt Instant // when it was last seen to serve nothing; 0: its process has ended, or another sidecar saw it
	Until    Instant // Awaiting, Releasing, Left: until when the process has time to end
	Next     Instant // Seen: no other note before. Releasing: no answer to the revocation is waited for after it
	Off      string  // why it is called off, once what is under way has ended; empty: it is not
	Heeded   string  // the process whose word that it ends was heeded: once each
	// Stopping: the sidecar ends. Recalled: a process that had left under the one before was heard of.
	Stopping, Recalled bool
}

// DepartFacts is what a step rests on.
type DepartFacts struct {
	Now     Instant
	Process string // that answered last
	// Up: it answers. Gone: it is proven to have ended, and none is in its place. Ended: the process that served
	// is proven to have ended. Decided: it is the one that was decided about. UpAtStop: it was up when the stop
	// of the sidecar was asked for.
	Up, Gone, Ended, Decided, UpAtStop bool
	// Leased: its registration is not known to be lost. Held: it is surely held. Released: etcd has confirmed that
	// it is given up. Fell: it is detached after it was attached.
	Leased, Held, Released, Detached, Fell bool
	Mode                                   ModeRecord
	Barred                                 string // why no broker of this sidecar leaves now; empty: it may
	Unproven                               string // why nobody would know when it has ended that must have; empty: somebody would
	Word, Words                            string // the process that said that it ends, and how
	Paused, FencesItself                   bool   // recovery; the broker's storage
	LeaveTimeout, RestartGrace             time.Duration
	Hears                                  time.Duration // how long the answer to a revocation is waited for
}

// DepartEvent is what a step is about.
type DepartEvent struct {
	Kind    DepartKind
	Process string  // LeftFound
	At      Instant // LeftFound: until when the process has time to end. Proved: when it was seen
	Proof   Fence   // Proved
	Err     error   // Proved, NoteCame
	Why     string  // Abandoned
}

// DepartKind is a kind of DepartEvent.
type DepartKind string

// Kinds.
const (
	Looked       DepartKind = "looked"        // nothing but the facts
	Asked        DepartKind = "asked"         // to leave
	AskedBriefly DepartKind = "asked briefly" // the sidecar is stopped next, and perhaps not the broker
	Abandoned    DepartKind = "abandoned"     // nobody waits any more
	Activated    DepartKind = "activated"     // by an operator
	Proved       DepartKind = "proved"        // what was done to prove it has ended
	NoteCame     DepartKind = "note"          // so has the note
	TakenUp      DepartKind = "taken up"      // its registration was looked at
	LeftFound    DepartKind = "left found"    // a process that had left under the sidecar before
	StopAsked    DepartKind = "stop asked"    // of the sidecar
)

// DepartActs is what is to be done, in this order.
type DepartActs struct {
	Cancel   bool // what is under way
	Unsure   bool // a note may be written yet: whoever takes the registration up writes the member record in any case
	Say      Said
	Remember bool // that this process has left, for the next sidecar
	Freed    bool // remember that etcd has confirmed the revocation
	Answered bool // whoever waits, with Answer
	Answer   error
	Prove    bool // clients away, loading off, then what is served is withdrawn, or the process stopped. Proved answers
	// Note is written in a transaction that is guarded by registration, mode and member record as they are then;
	// Stop: the process was to end, and may not have yet. NoteCame answers.
	Note, Stop, Crash bool
	Look              bool // have the registration looked at
}

// Said is one line of the log, and one event. Either may be empty.
type Said struct {
	Log                            string
	Warn                           bool
	Kind, From, To, Reason, Detail string
}

var (
	// ErrNothingToLeave is why a broker leaves no note that could not come back by one.
	ErrNothingToLeave = errors.New("no planned stop is noted")
	// ErrStays is why a broker is not leaving any more.
	ErrStays = errors.New("the broker stays")
)

func nothing(why string) error { return fmt.Errorf("%w: %s", ErrNothingToLeave, why) }

// row is that of its cause; the zero Ending if it has none.
func (d Departure) row() Ending {
	for _, e := range Departures {
		if e.Cause == d.Cause {
			return e
		}
	}
	return Ending{}
}

// HoldsBack reports whether nothing may be served because the broker leaves.
func (d Departure) HoldsBack() bool { return d.Phase != Staying && (!d.Gone || d.row().asked) }

// GivenUp reports whether the registration is given up, because somebody asked for that.
func (d Departure) GivenUp() bool {
	return d.row().asked && (d.Phase == Releasing || d.Phase == Left)
}

// Revokes reports whether its lease is to be revoked at once.
func (d Departure) Revokes() bool { return d.row().asked && d.Phase == Releasing }

// Planned reports whether it is noted that it left on purpose.
func (d Departure) Planned() bool { return (d.Phase == Releasing || d.Phase == Left) && !d.row().crash }

// ToEnd reports whether its process was to end.
func (d Departure) ToEnd() bool { return d.row().asked || d.row().stops }

// Bars reports whether no registration of that process is taken up: that would take the note away.
// While the end of a process is noted nobody's is.
func (d Departure) Bars(process string) bool {
	return d.Phase == Noting && d.Gone || d.Process == process && (d.Phase == Proving || d.Phase == Noting || d.GivenUp())
}

// OwesNote reports whether the lease of a broker that is down is kept for its note. One whose storage
// fences it keeps its lease until its end is proven, too.
func (d Departure) OwesNote(fencesItself bool) bool {
	return (d.Gone || fencesItself) && d.Phase != Left && d.Phase != Dropped
}

// Words say what an operator has to know of a broker that leaves; empty: nothing.
func (d Departure) Words(gone bool) string {
	switch {
	case !d.HoldsBack():
		return ""
	case d.Phase == Returning:
		return "it was to leave on purpose, and stays: its registration is looked at first"
	case d.Phase == Awaiting && d.Cause == CauseOwnWord:
		return "it leaves by itself, by its own word: its end is awaited"
	case d.Phase == Awaiting:
		return "it leaves on purpose and must be stopped now; to take it back: 'holdfast activate'"
	case d.Phase == Left && gone:
		return "it has left on purpose: start it when the work is done"
	case d.Phase == Left:
		return "it has left on purpose: stop it, or take it back with 'holdfast activate'"
	}
	return "it leaves on purpose"
}

// bars is why no departure of the broker may be noted; empty: it may. Something else than the departure
// keeps such a broker from serving, or may have had it declared dead, and that has to be looked at when
// it comes back.
func (f DepartFacts) bars() string {
	switch {
	case f.Barred != "":
		return f.Barred
	case f.Mode.Mode == "":
		return "what becomes of the broker is not decided yet (the note of an earlier planned stop stands until then)"
	case f.Mode.Mode != Active:
		return fmt.Sprintf("the broker is %s (%s)", f.Mode.Mode, f.Mode.Reason)
	case !f.Held:
		return "its registration is not surely held"
	case f.Fell:
		return "it is detached from the cluster"
	case !f.Decided:
		return "the decision about the process that answers is to come"
	}
	return ""
}

// departing is one step.
type departing struct {
	Departure
	f  DepartFacts
	do DepartActs
}

// Step takes an event up, and says what is to be done before the next step.
func (d Departure) Step(e DepartEvent, f DepartFacts) (Departure, DepartActs) {
	s := &departing{d, f, DepartActs{}}
	departSteps[e.Kind](s, e)
	return s.Departure, s.do
}

var departSteps = map[DepartKind]func(*departing, DepartEvent){
	Looked: (*departing).look, Asked: (*departing).begin, AskedBriefly: (*departing).begin, Abandoned: (*departing).callOff,
	Activated: (*departing).activate, Proved: (*departing).proved, NoteCame: (*departing).noted, TakenUp: (*departing).takenUp,
	LeftFound: (*departing).recall, StopAsked: (*departing).stop,
}

func (s *departing) look(DepartEvent) {
	f := s.f
	if another := f.Process != s.Process && (f.Up || f.Gone); another && (s.GivenUp() || s.Phase == Awaiting || s.Phase == Seen && s.row().asked) {
		s.answer(nil)
		s.do.Freed = s.Phase == Releasing && f.Released
		s.over()
	}
	s.lookAtTheEnd()
	s.follow()
	s.heed()
	switch {
	case s.Phase != Seen:
	case f.Mode.Mode.Known() && f.Mode.Mode != Active: // that is kept, whatever the lease
		if s.Phase, s.Cause = Dropped, ""; !f.Gone {
			s.over()
		}
	case f.Now >= s.Next && f.bars() == "":
		s.note()
	}
}

func (s *departing) takenUp(DepartEvent) {
	if s.Phase == Returning {
		s.over()
	}
}

// activate keeps a broker whose process is there. One that is away keeps its note.
func (s *departing) activate(e DepartEvent) {
	e.Why = "an operator activated it"
	if s.callOff(e); s.f.Up && s.f.Process == s.Process && (s.GivenUp() || s.Phase == Awaiting) {
		s.comeBack(e.Why)
	}
}

func (s *departing) answer(err error) { s.do.Answered, s.do.Answer = true, err }

// over ends it: the next may begin.
func (s *departing) over() {
	s.Departure = Departure{Heeded: s.Heeded, Recalled: s.Recalled, Stopping: s.Stopping}
}

// begin has a broker leave that is asked to. Asked for again, the same goes on; the longer of two
// absences counts.
func (s *departing) begin(e DepartEvent) {
	f, asked, briefly := s.f, s.row().asked, e.Kind == AskedBriefly
	if s.Cause == CauseBriefly && !briefly {
		s.Cause, s.do.Remember = CauseLeave, s.GivenUp()
	}
	switch why := f.bars(); {
	case asked && (s.Phase == Left || s.Phase == Awaiting || s.Phase == Seen):
		s.answer(nil)
	case s.Phase == Returning:
		s.answer(nothing("it was just taken back"))
	case s.HoldsBack(): // the one under way answers
	case why != "":
		s.answer(nothing(why))
	case !f.Up || f.Gone || s.Phase == Noting:
		s.answer(nothing("the broker is not up"))
	case f.Unproven != "":
		s.answer(nothing(f.Unproven))
	default:
		s.over()
		s.Phase, s.Cause, s.Process, s.do.Prove = Proving, CauseLeave, f.Process, true
		if briefly {
			s.Cause = CauseBriefly
		}
		s.do.Say = Said{Log: "the broker leaves: clients away, nothing served, then its registration is given up",
			Kind: "operator", To: "leaving", Reason: "operator"}
	}
}

// heed has a broker leave that says itself that it ends, once for each process. It may be silent from then on.
func (s *departing) heed() {
	f := s.f
	if s.Phase == Staying && f.Word != "" && f.Word == f.Process && f.Word != s.Heeded && f.Leased && !f.Detached && !f.Gone {
		s.Phase, s.Cause, s.Process, s.Heeded, s.Until = Awaiting, CauseOwnWord, f.Process, f.Process, f.Now+f.LeaveTimeout
		s.do.Say = Said{Log: fmt.Sprintf("the broker leaves by itself: it is registered until its process has ended, for %s at most", f.LeaveTimeout),
			Kind: "broker", To: "leaving", Detail: f.Words}
	}
}

// lookAtTheEnd sees the end of a process.
func (s *departing) lookAtTheEnd() {
	f, asked := s.f, s.row().asked
	switch {
	case s.Phase == Awaiting && (asked && f.Ended || !asked && f.Gone):
		s.answer(nil)
		s.Phase, s.Gone = Seen, true
	case s.HoldsBack() || s.Phase == Noting: // it goes on
	case !f.Gone:
		s.over()
	case s.Phase == Staying || s.Process != f.Process:
		s.over()
		s.Phase, s.Process, s.Gone = Dropped, f.Process, true
		for _, row := range Departures {
			if s.Phase == Dropped && row.is != nil && row.is(f) {
				s.Phase, s.Cause = Seen, row.Cause
			}
		}
	}
}

func (s *departing) note() {
	s.Phase, s.do.Note, s.do.Stop, s.do.Crash = Noting, true, s.row().stops && !s.Gone, s.row().crash
}

// follow looks what a broker that leaves must be called off for, and after the time that it has.
func (s *departing) follow() {
	f, own, why := s.f, s.Cause == CauseOwnWord, s.barred()
	if own && !f.Detached && f.Leased {
		why = ""
	}
	if s.Phase == Releasing && (f.Released || f.Now >= s.Next) {
		s.Phase, s.do.Freed = Left, f.Released
		s.do.Say.Log = "the broker has left: stop it now; its next start is active again"
		s.answer(nil)
	}
	switch {
	case (s.Phase == Proving || s.Phase == Noting) && why != "":
		s.callOff(DepartEvent{Why: why})
	case s.Phase == Awaiting && why != "":
		s.stays(fmt.Errorf("%w: its process had not ended yet, and %s", ErrStays, why))
	case f.Now < s.Until || !own && (!f.Up || f.Gone || f.Ended): // it has its time, or has ended
	case s.Phase == Awaiting || s.row().asked && (s.Phase == Left || s.Phase == Seen):
		s.comeBack(fmt.Sprintf("it still runs %s after it left (--leave-timeout)", f.LeaveTimeout))
	}
}

// barred is why one that is under way is called off: for a loss, and for no doubt.
func (s *departing) barred() string {
	f := s.f
	f.Held = f.Leased
	return f.bars()
}

// proved takes up what was proven, and when.
func (s *departing) proved(e DepartEvent) {
	if s.Phase != Proving {
		return
	}
	s.Until = s.f.Now + s.f.LeaveTimeout
	if s.Off == "" && !s.Stopping { // else it was asked for with the stop
		s.Off = s.barred()
	}
	switch {
	case s.Off != "", e.Err != nil:
		s.stays(e.Err)
	case e.Proof.Proven():
		if s.Gone = e.Proof == FenceGone; !s.Gone {
			s.ProvenAt = e.At
		}
		s.note()
	case s.Stopping:
		s.stays(nothing("the broker is not proven to serve nothing"))
	default:
		s.Phase = Awaiting
		s.do.Say.Log = fmt.Sprintf("the broker serves nothing and must be stopped now, within %s: it is registered until it has ended", s.f.LeaveTimeout)
		s.answer(nil)
	}
}

// noteAgain is the pause before a note is tried again.
const noteAgain = time.Second

// noted takes up what came of the note. What is to be noted of a process that has ended is tried again
// while its registration is held: there is nothing to take it back to.
func (s *departing) noted(e DepartEvent) {
	row, again, err, said := s.row(), s.Gone && !s.Stopping, e.Err, &s.do.Say
	switch {
	case s.Phase != Noting:
		return
	case s.Off != "", err != nil && !again:
		s.stays(err)
		return
	}
	s.do.Look = again && !row.asked // the next process may have been kept waiting for the note
	*said = Said{Kind: "registration", From: "held", To: "left", Detail: row.said}
	switch {
	case err != nil:
		*said = Said{Log: "the end of the broker's process is not noted", Warn: true, Detail: err.Error()}
		s.Phase, s.Next, s.do.Unsure = Seen, s.f.Now+noteAgain, true
		if errors.Is(err, ErrNothingToLeave) {
			s.Phase, s.Cause = Dropped, ""
		}
	case row.asked && !s.Stopping:
		s.Phase, s.do.Remember = Releasing, row.stops
		s.Until, s.Next = s.f.Now+s.f.LeaveTimeout, s.f.Now+s.f.Hears
		return
	case row.crash:
		s.Phase, said.Log, said.Reason = Left, "the broker's process has ended: its registration is given up", "crash"
		if s.Stopping {
			err = nothing("its process had ended by itself, which is noted")
		}
	default:
		s.Phase, said.Log = Left, "the broker has left on purpose: its next start is active again"
		s.do.Remember = row.asked && row.stops
	}
	s.answer(err)
}

// recall has a process stay away for the rest of its time that had left under the sidecar before, once.
func (s *departing) recall(e DepartEvent) {
	if s.Recalled || s.Phase != Staying || s.f.Mode.Mode != "" {
		return
	}
	if s.Recalled = true; e.At > s.f.Now {
		s.Phase, s.Cause, s.Process, s.Until = Left, CauseLeave, e.Process, e.At
		s.do.Say.Log = fmt.Sprintf("the broker has left on purpose: it is registered again if it stays for %s", (e.At - s.f.Now).Round(time.Second))
	}
}

// callOff has one that is not noted yet taken back when what is under way has ended. The end of a process
// cannot be taken back.
func (s *departing) callOff(e DepartEvent) {
	if (s.Phase == Proving || s.Phase == Noting) && !s.Gone && s.Off == "" {
		s.Off, s.do.Cancel = e.Why, true
	}
}

// stays takes one back that may be noted yet: what was withdrawn is served again.
func (s *departing) stays(err error) {
	process := s.Process
	if s.Off != "" {
		err = fmt.Errorf("%w: %s", ErrStays, s.Off)
	}
	if s.answer(err); s.Stopping {
		return
	}
	s.over()
	s.Phase, s.Process, s.do.Unsure, s.do.Look = Returning, process, true, true
	s.do.Say = Said{Log: "the broker does not leave", Warn: true, Kind: "operator", From: "leaving", To: "stays", Detail: err.Error()}
}

// comeBack lets a process be registered again that has left and is still there, which takes the note away.
func (s *departing) comeBack(why string) {
	s.answer(fmt.Errorf("%w: %s", ErrStays, why))
	s.over()
	s.do.Look = true
	s.do.Say = Said{Log: "the broker is taken back after it left", Warn: true, Kind: "operator", From: "left", To: "stays", Detail: why}
}

// stop joins the departure under way, or begins one, for the end of the sidecar: what it may note is
// proven anew. It answers why nothing is noted.
func (s *departing) stop(DepartEvent) {
	why := s.f.bars()
	s.Stopping, s.do.Cancel = true, why == "" || !s.Gone // the note of an end is not cut short where none follows
	switch {
	case s.Planned() && (!s.row().asked || s.f.Mode.Mode == Active):
		why = ""
	case why != "":
	case s.f.UpAtStop && (s.Off != "" || !s.ToEnd()):
		s.Phase, s.Cause, s.Process, s.Off = Proving, CauseStop, s.f.Process, ""
	case s.ToEnd() || s.Phase == Seen || s.Phase == Noting:
		s.Phase, s.Gone, s.Off = Proving, false, ""
	default:
		why = "the broker was not up when the stop was asked for"
	}
	if s.answer(nil); why != "" {
		s.answer(nothing(why))
	}
}
