package recovery

import (
	"time"
)

// Instant is a moment on the boot clock: the time since the host started, suspension included.
type Instant = time.Duration

// Rules are the settings and traits that decide.
type Rules struct {
	TTL     time.Duration // of the lease, as granted
	Renewal time.Duration // interval of renewals
	// Within is --return-within, Pause until when a maintenance pause lasts; zero: there is none.
	Within time.Duration
	Pause  time.Time
	// Share is --fleet-loss-share; 0: off.
	Share float64
	// Policy is --session-expired-policy; RetriesUsed: those of reconnect are used up.
	Policy       Policy
	RetriesUsed  bool
	Join         bool // --join
	FencesItself bool // the storage of the broker fences who was replaced
	// NoEtcd: no etcd knows the peers. Others is what the broker's own cluster says, and there is
	// nobody to ask later.
	NoEtcd bool
}

// Proven is a renewal that was proven: the store's revision, and our wall clock when it was sent.
// The zero Proven is not known.
type Proven struct {
	Revision int64
	At       time.Time
}

// Suspect is what the member record of a broker says while its drain is a suspicion: the last
// renewal before the first loss that is asked about, and the row that drained it.
type Suspect struct {
	Lost Proven
	Row  Reason
}

// Member is our own member record.
type Member struct {
	Revision int64 // of the store when it was written
	At       time.Time
	Left     *PlannedStop
	Suspect  *Suspect
}

// Facts is what one decision rests on: one look at etcd, our memory, and what is known of the
// broker and its data.
type Facts struct {
	Now time.Time

	// What etcd shows, at one revision.
	Revision int64
	Holder   Holder
	// Stands: the key is the one that our memory or our member record names, by its create
	// revision. One that the broker wrote for itself since is Us and does not stand.
	Stands   bool
	Stored   *ModeRecord // nil: absent, or not readable
	Garbled  bool        // the state key cannot be read
	Member   *Member     // nil: absent, or not readable
	NoMember string      // why it cannot be read; empty: it can, or is absent
	EraAt    int64       // when the era key was written last; 0: it is absent
	NoEra    string      // why it cannot be read; empty: it can, or is absent
	// Begun: the number in it is higher than that of our member record. An older version, or a hand,
	// writes the key also where no era began.
	Begun  bool
	Others bool // somebody else is registered
	// Younger: of a broker that registers itself, every other registration is younger than our last
	// renewal. Such a fleet restarts without an era, and no life of it goes on.
	Younger bool

	// What this sidecar remembers.
	Same      bool        // the process that answers is the one that was registered
	Memory    bool        // there is a state file of an earlier life
	Corrupt   string      // why that file cannot be read; empty: it can
	Restored  string      // by what etcd is known to be older than we remember; empty: it is not
	Last      *ModeRecord // the mode that we had; nil: never
	Confirmed Proven      // our last proven renewal

	// What is known of the broker and its data.
	Boot    BootFacts // KnownToCluster is set here
	Data    DataID    // found now
	HadData DataID    // remembered
	Strange string    // what a broker that was never registered serves and must not; empty: nothing
}

// lost is our last proven renewal before the loss that is decided about. While a suspicion is open
// that is the first loss; where nothing is remembered, the member record was written under a
// registration; and where nobody knows, whoever stands now stood then.
func (f Facts) lost() Proven {
	switch {
	case f.suspicion() != nil:
		return f.suspicion().Lost
	case f.Confirmed.Revision != 0 && f.Member != nil:
		return Proven{max(f.Confirmed.Revision, f.Member.Revision), f.Confirmed.At}
	case f.Confirmed.Revision != 0:
		return f.Confirmed
	case f.Member != nil: // when the renewal after it was is not known
		return Proven{Revision: f.Member.Revision}
	}
	return Proven{Revision: f.Revision}
}

// suspicion is the open one; nil: there is none. An operator's word ends it.
func (f Facts) suspicion() *Suspect {
	if f.Member == nil || f.Member.Suspect == nil {
		return nil
	}
	if m, held := f.held(); !held || m.By != ByHoldfast {
		return nil
	}
	return f.Member.Suspect
}

// held is the mode that only an operator may lift, open suspicions included (safety rule 6).
func (f Facts) held() (ModeRecord, bool) {
	m := f.Stored
	if f.Last != nil {
		_, judged := JudgeState(*f.Last, f.Stored)
		m = &judged
	}
	if drain := f.Member; drain != nil && drain.Suspect != nil && (f.Stored == nil || f.Stored.ofBoot()) && (m == nil || m.Mode == Active) {
		m = &ModeRecord{Drained, drain.Suspect.Row, ByHoldfast} // its state key was deleted, and our memory is older
	}
	if m == nil || m.Mode == Active || !m.Mode.Known() {
		return ModeRecord{}, false
	}
	return *m, true
}

// differs reports whether m must be written because etcd says something else.
func (f Facts) differs(m ModeRecord) bool { return f.Stored == nil || *f.Stored != m }

// known reports whether the cluster has ever heard of this broker.
func (f Facts) known() bool {
	return f.Member != nil || f.NoMember != "" || f.Stored != nil || f.Garbled
}

// JudgeBoot says whether the broker has lived before, and how that is known.
func (f Facts) JudgeBoot() (BootKind, []string) { return JudgeBoot(f.boot()) }

func (f Facts) boot() BootFacts {
	b := f.Boot
	b.KnownToCluster = f.known()
	b.StateFile, b.StateFileError = f.Memory, f.Corrupt
	return b
}

func (f Facts) left() *PlannedStop {
	if f.Member == nil {
		return nil
	}
	return f.Member.Left
}
