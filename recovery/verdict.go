package recovery

import "fmt"

// Step is what to do about the registration.
type Step int

// Steps.
const (
	// Register writes the registration, and the mode if Decision.Write, in one Txn.
	Register Step = iota
	// Keep goes on with the registration that is there (renewing or rebinding it).
	Keep
	// Conflict leaves everything alone: another incarnation holds the registration.
	Conflict
	// Shutdown stops the broker and ends the sidecar with an error.
	Shutdown
)

func (s Step) String() string {
	return [...]string{"register", "keep", "conflict", "shutdown"}[s]
}

// Decision is what must happen to the registration and the mode. It is to be
// carried out in one transaction, guarded by the facts that it was taken on.
type Decision struct {
	Step   Step
	Mode   ModeRecord
	Write  bool // the mode differs from what etcd holds, or must be asserted
	ReOwn  bool // take the topics up again under the new lease
	Detail string
}

func (d Decision) String() string {
	return fmt.Sprintf("%s %s (%s)", d.Step, d.Mode.Mode, d.Mode.Reason)
}

// Holder says whose registration is in etcd.
type Holder int

// Holders.
const (
	Nobody  Holder = iota // read, and absent
	Us                    // our incarnation's, or the broker's own in adopt mode
	Another               // another incarnation's
)

// ClusterFacts is one consistent view of etcd, and what we remember of before.
type ClusterFacts struct {
	Holder Holder
	Stored *ModeRecord // the mode in etcd; nil: none, or not readable
	// Reborn: the registration is ours, and was created after the last time that this
	// sidecar bound it. The one that we had is gone.
	Reborn        bool
	StoredGarbled bool        // there is a state key and it cannot be read
	Last          *ModeRecord // the mode that we had when we last knew; nil: never
	PeerPresent   bool        // some other broker is registered
	Era           int64       // now
	OurEra        int64       // when we last registered; with KnownMember
	KnownMember   bool        // there is a member record
	Revision      int64       // now
	Remembered    int64       // the highest revision that we remember; 0: none

	// Adopted brokers register themselves and do not bump the era, so one more
	// sign is asked for before a broker is drained.
	Adopted          bool
	OldestPeer       int64 // smallest create revision of a peer's registration; 0: none
	ConfirmedAt      int64 // revision of our last confirmed renewal; 0: unknown
	StateFileCorrupt string

	// Told: no etcd knows the peers; PeerPresent is what the broker's own cluster says of
	// now, and the registration is Holdfast's own measure of how long the broker was away.
	Told bool
}

// survived reports whether the registration that we had is still there.
func (f ClusterFacts) survived() bool {
	return f.Holder == Us && !f.Reborn && f.Remembered <= f.Revision
}

// livedOn reports whether at every moment since we were registered somebody else
// was, with a sentence that says how that is known (DESIGN, Startup).
func (f ClusterFacts) livedOn() (bool, string) {
	switch {
	case f.Told && f.PeerPresent:
		return true, "it was away for longer than the TTL, and its cluster says that other brokers are active"
	case f.Told:
		return false, "its cluster knows of no other broker that is active"
	case !f.PeerPresent:
		return false, "no other broker is registered"
	case f.KnownMember && f.Era > f.OurEra:
		return false, fmt.Sprintf("era went from %d to %d: for a moment no broker was registered", f.OurEra, f.Era)
	case f.Adopted && f.ConfirmedAt > 0 && f.OldestPeer > f.ConfirmedAt:
		return false, "every peer registered after our last renewal"
	case !f.KnownMember:
		return true, "other brokers are registered, and there is no record of when we were"
	default:
		return true, fmt.Sprintf("era is still %d: other brokers stayed registered all the while", f.Era)
	}
}

// doubt returns the mode that fails closed when our memory cannot be trusted.
func (f ClusterFacts) doubt() (Decision, bool) {
	var d Decision
	switch {
	case f.Remembered > f.Revision:
		d = drained(ReasonRestoredBackup, fmt.Sprintf(
			"etcd is at revision %d and we remember %d: it was restored from a backup", f.Revision, f.Remembered))
	case f.StateFileCorrupt != "":
		d = drained(ReasonCorruptState, f.StateFileCorrupt)
	case f.StoredGarbled:
		d = drained(ReasonUnreadableMode, "the state key in etcd is not a mode")
	default:
		return Decision{}, false
	}
	if m, held := f.held(); held && m.Mode == Drained {
		d.Mode, d.Write = m, f.differs(m)
	}
	return d, true
}

func drained(r Reason, detail string) Decision {
	return Decision{Mode: ModeRecord{Drained, r, ByHoldfast}, Write: true, Detail: detail}
}

func active(r Reason, detail string) Decision {
	return Decision{Mode: ModeRecord{Active, r, ByHoldfast}, Write: true, Detail: detail}
}

// held returns the mode that only a person may lift: a person's drained or
// draining, or a drained that recovery decided (safety rule 6). A state key that
// somebody deleted lifts nothing, nor does an active that the broker wrote for its
// own boot: then the mode that we had counts.
func (f ClusterFacts) held() (ModeRecord, bool) {
	m := f.Stored
	if f.Last != nil {
		_, judged := JudgeState(*f.Last, f.Stored)
		m = &judged
	}
	if m == nil || m.Mode != Drained && m.Mode != Draining {
		return ModeRecord{}, false
	}
	return *m, true
}

// differs reports whether m must be written because etcd says something else.
func (f ClusterFacts) differs(m ModeRecord) bool { return f.Stored == nil || *f.Stored != m }

// keep goes on with a held mode, and writes it again if its key is gone.
func (f ClusterFacts) keep(m ModeRecord, detail string) Decision {
	return Decision{Mode: m, Write: f.differs(m), Detail: detail}
}
