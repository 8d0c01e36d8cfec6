package recovery

// SuccessionFacts are what etcd shows of two processes of one broker that registers
// itself under another id at each start: of the one that was registered, and of the one
// that answers now.
type SuccessionFacts struct {
	// Former is whose the registration of the former process is: Us while it stands as
	// we bound it, Another while another sidecar keeps it.
	Former        Holder
	FormerState   *ModeRecord // nil: none, or not readable
	FormerGarbled bool        // there is one, and it cannot be read
	// Own is whose the registration of the process that answers is: Us also while only
	// the broker itself keeps it.
	Own Holder
	// OwnBound: we bound it before, and it has stood since: what was begun is finished.
	OwnBound   bool
	OwnState   *ModeRecord
	OwnGarbled bool
}

// Succeeding makes the facts of two processes those of one broker, so that the tables
// need not know of ids. The registration that we had is the former process's. So is the
// mode, and an `active` that the broker wrote for the boot of the process that answers
// says nothing; but what anybody else wrote there is a word about this broker, and a
// later one.
func (f Facts) Succeeding(s SuccessionFacts) Facts {
	f.Holder = s.Own
	if s.Former == Another {
		f.Holder = Another
	}
	f.Stands = f.Holder == Us && (s.Former == Us || s.OwnBound) && f.Restored == ""
	f.Garbled = s.FormerGarbled || s.OwnGarbled
	f.Stored = s.FormerState
	if f.Garbled {
		f.Stored = nil
	} else if s.OwnState != nil && !s.OwnState.ofBoot() && (s.OwnState.By != ByHoldfast || s.FormerState == nil) {
		f.Stored = s.OwnState
	}
	return f
}

// HandsOver reports whether the former process's assignments become those of the process
// that answers. One that does not serve is given none: they go with the former registration,
// to whoever serves. Whoever saw that registration go has given them to others or is about to;
// unseen says that nobody did.
func (s SuccessionFacts) HandsOver(d Decision, unseen bool) bool {
	return d.Step == Keep && d.Mode.Mode == Active && (s.Former == Us || s.Former == Nobody && unseen)
}
