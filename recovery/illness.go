package recovery

import (
	"fmt"
	"time"
)

// A broker that is ill lives and fails: its process runs, and its calls are not answered, or
// answered with errors. What it depends on may be the cause, and then its peers are ill with it:
// to stop one of them, or to give its work to another, would mend nothing. So it loses its
// registration only while a living peer is well (DESIGN, safety rule 13). A process that has
// ended is not ill, and who has lost its lease is judged by that.

// Health is what the member record of a broker says of it.
type Health string

// What a record can say. That of a sidecar which does not know the word says nothing, and so
// does a word that is not known here: such a peer is not known to be well, which counts as not
// well. The other reading would let a fleet that is ill together, and half way through an
// upgrade, be stopped for the sake of peers that are as ill.
const (
	HealthUntold Health = ""
	HealthWell   Health = "well"
	HealthIll    Health = "ill"
)

// PeerSeen is another registered broker, as one look shows it.
type PeerSeen struct {
	Health Health
	// Sighting is of the lease of its registration, where it says that it is well.
	Sighting
}

// Others is what one look at the other brokers shows.
type Others struct {
	Well   string // a peer that says so and whose lease rises; empty: there is none
	Awaits string // a peer that says so and whose lease was not looked at twice; empty: there is none
	Ill    int    // say so
	Silent int    // say neither
	Sunk   int    // say that they are well, under a lease that does not rise
	// Refused says why etcd does not let us look; empty: it does.
	Refused string
}

// Witnesses tells peers that live from records that only linger, look by look.
type Witnesses struct {
	term  uint64
	first map[int64]Sighting      // what a lease is compared with: the first look at it, or that at which it had risen
	risen map[int64]time.Duration // when that was seen last
}

// Look takes in what a look showed in one raft term: a leader that is elected lifts all leases.
// A lease that has risen counts for a quarter of its time, in which whoever keeps it renews it
// twice.
func (w *Witnesses) Look(term uint64, seen []PeerSeen, now time.Duration) (o Others) {
	if w.first == nil || term != w.term {
		w.term, w.first, w.risen = term, map[int64]Sighting{}, map[int64]time.Duration{}
	}
	for _, s := range seen {
		switch {
		case s.Refused != "":
			o.Refused = s.Refused
			o.Silent++
		case s.Health == HealthIll:
			o.Ill++
		case s.Health != HealthWell || !s.told():
			o.Silent++
		default:
			w.witness(s.Sighting, now, &o)
		}
	}
	return o
}

func (w *Witnesses) witness(s Sighting, now time.Duration, o *Others) {
	before, known := w.first[s.Lease]
	if !known {
		w.first[s.Lease] = s
	} else if rose(before, s) {
		w.first[s.Lease], w.risen[s.Lease] = s, now
	}
	at, risen := w.risen[s.Lease]
	switch {
	case risen && now-at <= s.Granted/4:
		o.Well = s.Peer
	case !known || s.Asked-before.Answered < least:
		o.Awaits = s.Peer
	default:
		o.Sunk++
	}
}

// Care is what becomes of the registration of a broker that is ill.
type Care string

// What can become of it.
const (
	CareUndecided Care = ""        // it is not renewed, and runs towards its end
	CareHold      Care = "on_hold" // it is renewed, and nothing is stopped
	CareLetGo     Care = "let_go"
)

// Reasons of a Care.
const (
	ReasonAllIll    Reason = "all_ill"
	ReasonAlone     Reason = "alone"
	ReasonNoneKnown Reason = "none_known_well"
	ReasonPeerWell  Reason = "peer_well"
)

// HeldReasons are those of CareHold.
var HeldReasons = []Reason{ReasonAllIll, ReasonAlone, ReasonNoneKnown}

// HeldWords is why a broker that is ill is held, in words that follow "held: "; empty for any
// other reason.
func HeldWords(r Reason) string {
	switch r {
	case ReasonAllIll:
		return "all are ill"
	case ReasonAlone:
		return "it is alone"
	case ReasonNoneKnown:
		return "no other broker is known to be well"
	}
	return ""
}

// IllFacts is what the care of a broker follows from.
type IllFacts struct {
	// Ill: its process lives, and its calls fail.
	Ill bool
	// Held: its registration surely stands, and it is not detached. Whoever is past that is
	// judged by the deadline.
	Held   bool
	Looked bool    // etcd answered a look; false: nothing is known but Before
	Before Illness // by the look before, of this illness
	Others Others  // by this look
}

// Illness is a Care with its reason.
type Illness struct {
	Care   Care
	Reason Reason
	Detail string
}

// RuleIllness says what becomes of the registration of a broker that may be ill.
func RuleIllness(f IllFacts) Illness {
	switch o := f.Others; {
	case !f.Ill || !f.Held:
		return Illness{}
	case !f.Looked, o.Well == "" && o.Awaits != "": // the next look tells
		return f.Before
	case o.Well != "":
		return Illness{CareLetGo, ReasonPeerWell, o.Well + " is well and renews its lease: what fails here does not fail everywhere"}
	case o.Ill+o.Silent+o.Sunk == 0:
		return Illness{CareHold, ReasonAlone, "no other broker that has a sidecar is registered"}
	case o.Ill > 0 && o.Silent == 0:
		return Illness{CareHold, ReasonAllIll, o.count()}
	default:
		return Illness{CareHold, ReasonNoneKnown, o.count()}
	}
}

// count says how the others are.
func (o Others) count() string {
	words := fmt.Sprintf("of the other brokers that were looked at, %d are ill, %d say nothing of their health, and %d do not renew their leases", o.Ill, o.Silent, o.Sunk)
	if o.Refused != "" {
		words += " (" + o.Refused + ")"
	}
	return words
}

// heldLooks is how many looks a TTL has at the others while a broker is held.
const heldLooks = 2

// LooksFrom is how long before the fence point the others are looked at: late, so that they
// have noticed by then what befell everybody, and early enough for two looks.
func LooksFrom(renewal time.Duration) time.Duration { return Apart(renewal)*3/2 + time.Second }

// NextLook is when the others are looked at next; last is the look before, 0: there was none.
// A broker that is to be let go is looked after until it is.
func NextLook(r Illness, awaits bool, last, fencePoint, renewal, ttl time.Duration) time.Duration {
	switch {
	case r.Care == CareHold && !awaits:
		return last + max(Apart(renewal), ttl/heldLooks)
	case r.Care == CareHold:
		return last + Apart(renewal)
	case last == 0:
		return fencePoint - LooksFrom(renewal)
	}
	return max(fencePoint-LooksFrom(renewal), last+Apart(renewal))
}
