package recovery

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// mostAnew is how often the look for a proof begins anew.
const mostAnew = 3

// Suspicion is the open question whether a peer lived on while our registration was gone (DESIGN,
// safety rule 12). The broker is drained meanwhile. An operator's word ends it: then nobody asks.
type Suspicion struct {
	Suspect
	Written int64   // create revision of the registration that the drain was written with
	Begun   Instant // of the question
	// The look for a proof.
	From  Instant
	At    int64  // the store's revision
	Term  uint64 // of raft
	Anew  int    // how often it was begun anew
	Stood []Standing
}

// Standing is a registration that stood at the first look.
type Standing struct {
	Name  string
	Epoch int64 // its create revision
}

// Companion is another broker of whom there is a member record, or a registration.
type Companion struct {
	Name  string
	Epoch int64 // create revision of its registration; 0: it is not registered
	// Bare: it has no member record, so no sidecar of ours. It has lived since its registration.
	Bare    bool
	Suspect bool
	// Since is the create revision at which its unbroken life began: planned and fast restarts
	// carry it over, a loss begins it anew.
	Since int64
	// Cut is its last confirmed renewal before it had none for longer than it may serve; zero: it
	// always had.
	Cut time.Time
	// Left is the revision at which it left as planned and is still away, Away that at which it had
	// left before this registration; 0: it did not.
	Left, Away int64
	Written    int64  // mod revision of its member record
	Unread     string // why that cannot be read; empty: it can
}

// Look is one look of a suspicion at the others, read at one revision.
type Look struct {
	Now        Instant
	At         int64
	Term       uint64
	Era        int64 // mod revision of the era key, as far as an era began since our member record; 0: none
	Companions []Companion
}

// Answer is what a look makes of a suspicion.
type Answer int

// What a look can make of it.
const (
	StillOpen     Answer = iota // look again
	NobodyLived                 // nobody lived on: active again, by itself
	SomebodyLived               // a peer lived on: the drain waits for an operator
)

// Review looks at the others once more and rules, with a sentence that says how it is known.
func (s Suspicion) Review(l Look, r Rules) (Suspicion, Answer, string) {
	if l.Era > s.Written {
		return s, NobodyLived, "for a moment no broker was registered"
	}
	if l.Now-s.Begun >= r.Renewal {
		if alike, of := s.alike(l, r); r.Share > 0 && len(of) > 0 && float64(len(alike)) >= r.Share*float64(len(of)) {
			return s, NobodyLived, fmt.Sprintf("of %d others that are registered %d were cut off or lost their registrations at the same time (%s): nobody was singled out",
				len(of), len(alike), some(alike))
		}
	}
	switch due := s.Due(r); {
	case s.Anew < mostAnew && l.Term != s.Term:
		return s.begin(l, s.Anew+1), StillOpen, "etcd has elected a leader: the look for a proof begins anew"
	case l.Now < due:
		return s, StillOpen, "whether one of those that were registered then lived on"
	case s.Anew < mostAnew && s.vanished(l) != "":
		return s.begin(l, s.Anew+1), StillOpen, s.vanished(l) + " was registered and is gone without a note: the look for a proof begins anew"
	}
	for _, p := range l.Companions {
		if s.outlived(p, r) {
			return s, SomebodyLived, p.Name + " was registered before, and lived on"
		}
	}
	return s, NobodyLived, "nobody who was registered before proved to have lived on"
}

// Begin is the suspicion of a registration that was written at that revision.
func Begin(of Suspect, written int64, l Look) Suspicion {
	return Suspicion{Suspect: of, Written: written, Begun: l.Now}.begin(l, 0)
}

func (s Suspicion) begin(l Look, anew int) Suspicion {
	before := s.Stood
	s.From, s.At, s.Term, s.Anew, s.Stood = l.Now, l.At, l.Term, anew, nil
	for _, p := range l.Companions {
		left := p.Left != 0 && slices.ContainsFunc(before, func(st Standing) bool { return st.Name == p.Name })
		if p.Epoch != 0 && !p.Suspect || left {
			s.Stood = append(s.Stood, Standing{p.Name, p.Epoch})
		}
	}
	return s
}

// Due is when the proof is judged, if the look does not begin anew.
func (s Suspicion) Due(r Rules) Instant { return s.From + r.TTL + r.TTL/4 + 5*time.Second }

// Next is when to look again.
func (s Suspicion) Next(now Instant, r Rules) Instant {
	if due := s.Due(r); due > now && due < now+r.Renewal {
		return due
	}
	return now + r.Renewal
}

// alike are those that are registered and were hit when we were, of all that are registered.
func (s Suspicion) alike(l Look, r Rules) (names, of []string) {
	for _, p := range l.Companions {
		if p.Epoch == 0 {
			continue
		}
		of = append(of, p.Name)
		if s.hit(p, r) {
			names = append(names, p.Name)
		}
	}
	return names, of
}

// hit reports whether a peer was cut off within one TTL of our own last proven renewal.
func (s Suspicion) hit(p Companion, r Rules) bool {
	if p.Cut.IsZero() || s.Lost.At.IsZero() || p.Unread != "" {
		return false
	}
	return math.Abs(float64(p.Cut.Sub(s.Lost.At))) <= float64(r.TTL)
}

// outlived reports whether a peer proves that somebody lived on: it was registered at our last
// proven renewal, stood at the first look, and stands still, or has left as planned since. Of one
// whose record cannot be read it is not known when its life began: where it stands the drain stays.
func (s Suspicion) outlived(p Companion, r Rules) bool {
	then := slices.ContainsFunc(s.Stood, func(st Standing) bool { return st.Name == p.Name && (st.Epoch == p.Epoch || p.Written > s.At) })
	if !then || p.Suspect || s.hit(p, r) {
		return false
	}
	lost := s.Lost.Revision
	switch {
	case p.Epoch != 0 && (p.Epoch <= lost || p.Unread != ""):
		return true
	case p.Bare || p.Since == 0 || p.Since > lost:
		return false
	}
	return p.Away > lost || p.Left >= lost
}

// vanished is one that stood at the first look and is gone without a note; empty: nobody is.
func (s Suspicion) vanished(l Look) string {
	for _, st := range s.Stood {
		if i := slices.IndexFunc(l.Companions, func(p Companion) bool { return p.Name == st.Name }); i < 0 || l.Companions[i].Epoch == 0 && l.Companions[i].Left == 0 {
			return st.Name
		}
	}
	return ""
}

// Lift is the mode that follows when nobody lived on.
func (s Suspicion) Lift() ModeRecord {
	reason := ReasonFullClusterRestart
	if s.Row == ReasonRegistrationExpired {
		reason = ReasonFleetExpired
	}
	return ModeRecord{Mode: Active, Reason: reason, By: ByHoldfast}
}
