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
	// Await leaves everything alone until it is known whether a peer lived on.
	Await
)

func (s Step) String() string {
	return [...]string{"register", "keep", "conflict", "shutdown", "await"}[s]
}

// Decision is what must happen to the registration and the mode. It is to be
// carried out in one transaction, guarded by the facts that it was taken on.
type Decision struct {
	Step  Step
	Row   Reason // which row of the table decided; see Otherwise
	Mode  ModeRecord
	Write bool // the mode differs from what etcd holds, or must be asserted
	// Planned: the broker comes back from a planned stop, or from a crash that was noted.
	Planned bool
	// Review: it could not wait until it was known whether other brokers lived on. That is
	// looked at once it stands, and it ends by itself when they did not.
	Review bool
	Detail string
}

func (d Decision) String() string {
	if d.Step == Await {
		return d.Step.String()
	}
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
	Peers         Life        // whether one of them lived on
	PeersSaid     string      // how that is known
	Era           int64       // now
	OurEra        int64       // when we last registered; with KnownMember
	KnownMember   bool        // there is a member record
	// Outlived says how the fleet before the present era is known to have outlived us; empty:
	// it is not.
	Outlived   string
	Unread     Unread
	Revision   int64 // now
	Remembered int64 // the highest revision that we remember; 0: none
	Undone     bool  // a registration stands that etcd had confirmed to be given up
	// Rewound says which key is older than it was once, though etcd is not; empty: none is known.
	Rewound string

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
	return f.Holder == Us && !f.Reborn && f.restored() == ""
}

// livedOn reports whether a peer lived on since we were registered, with a sentence that
// says how that is known (DESIGN, Startup). known is false while nobody can tell yet. Brokers
// that register themselves are judged by what stands until their peers were watched.
func (f ClusterFacts) livedOn() (lived, known bool, how string) {
	switch {
	case f.Told && f.PeerPresent:
		return true, true, "it was away for longer than the TTL, and its cluster says that other brokers are active"
	case f.Told:
		return false, true, "its cluster knows of no other broker that is active"
	case f.Outlived != "":
		return true, true, fmt.Sprintf("era went from %d to %d, and %s", f.OurEra, f.Era, f.Outlived)
	case f.grown() && f.Unread.Fleet != "":
		return true, true, fmt.Sprintf("era went from %d to %d, and until when the fleet before it was alive is not known", f.OurEra, f.Era)
	case !f.PeerPresent:
		return false, true, "no other broker is registered"
	case f.grown():
		return false, true, fmt.Sprintf("era went from %d to %d: for a moment no broker was registered", f.OurEra, f.Era)
	case f.Adopted && f.ConfirmedAt > 0 && f.OldestPeer > f.ConfirmedAt:
		return false, true, "every peer registered after our last renewal"
	case f.Adopted && f.Unread.Record != "":
		return true, true, "other brokers are registered"
	case f.Adopted && !f.KnownMember:
		return true, true, "other brokers are registered, and there is no record of when we were"
	case f.Adopted && f.Peers == Unwatched:
		return true, true, fmt.Sprintf("era is still %d: other brokers stayed registered all the while", f.Era)
	}
	return f.Peers != Lingering, f.Peers != Unwatched, f.PeersSaid
}

// grown reports whether the era is known to have grown since we were registered.
func (f ClusterFacts) grown() bool { return f.KnownMember && f.Era > f.OurEra }

// restored says by what etcd is known to have been restored from a backup; empty: it is not.
func (f ClusterFacts) restored() string {
	switch {
	case f.Remembered > f.Revision:
		return fmt.Sprintf("etcd is at revision %d and we remember %d", f.Revision, f.Remembered)
	case f.Rewound != "":
		return f.Rewound
	case f.Undone:
		return "our registration stands, and etcd had confirmed that it was given up"
	}
	return ""
}

// await holds a decision back that rests on whether a peer lived on.
func await(how string) Decision { return Decision{Step: Await, Row: RowAwait, Detail: how} }

// doubt returns the mode that fails closed when our memory cannot be trusted.
func (f ClusterFacts) doubt() (Decision, bool) {
	var d Decision
	switch how := f.restored(); {
	case how != "":
		d = drained(ReasonRestoredBackup, how+": it was restored from a backup")
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
	return Decision{Row: r, Mode: ModeRecord{Drained, r, ByHoldfast}, Write: true, Detail: detail}
}

func active(r Reason, detail string) Decision {
	return Decision{Row: r, Mode: ModeRecord{Active, r, ByHoldfast}, Write: true, Detail: detail}
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
	return Decision{Row: RowKept, Mode: m, Write: f.differs(m), Detail: detail}
}
