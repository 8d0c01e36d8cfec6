package recovery

// Policy says what to do when a running broker's registration was lost.
type Policy string

// Policies.
const (
	PolicyDrain     Policy = "drain"
	PolicyReconnect Policy = "reconnect"
	PolicyShutdown  Policy = "shutdown"
)

// OutageFacts is what the decision after an outage rests on: etcd answers again,
// and the broker process is the one that was registered.
type OutageFacts struct {
	ClusterFacts
	Policy      Policy
	RetriesUsed bool       // reconnect: the retry limit is used up
	Had         ModeRecord // the mode before the outage
	Beside      SharedLoss // what became of those that were registered with us
	LossShare   float64    // --fleet-loss-share; 0: off
}

// DecideOutage is the outage table of DESIGN.
func DecideOutage(f OutageFacts) Decision {
	switch {
	case f.Holder == Another:
		return Decision{Step: Conflict, Row: RowConflict, Mode: f.Had, Detail: "the registration is another incarnation's"}
	case f.survived():
		d := Decision{Step: Keep, Row: RowSurvived, Mode: f.Had, Write: f.Stored == nil,
			Detail: "the registration survived: nobody was declared dead"}
		if f.Stored != nil {
			_, d.Mode = JudgeState(f.Had, f.Stored)
			d.Write = d.Mode != *f.Stored
		}
		return d
	}
	d := afterLoss(f)
	if f.Holder == Us && d.Step == Register {
		d.Step = Keep // the broker, or a backup, brought the key back before us
	}
	return d
}

func afterLoss(f OutageFacts) Decision {
	if d, doubtful := f.doubt(); doubtful {
		return d
	}
	if m, held := f.held(); held {
		return f.keep(m, "registration lost; mode kept: only an operator may lift it")
	}
	_, had := JudgeState(f.Had, f.Stored) // somebody may have changed it meanwhile
	livedOn, known, how := f.livedOn()
	if !known && f.Policy == PolicyReconnect && !f.RetriesUsed {
		livedOn, known, how = true, true, "other brokers are registered" // it is active either way
	}
	if f.Outlived != "" {
		f.Beside = SharedLoss{} // the fleet went on after that, as at a start
	}
	switch {
	case !known:
		return await(how)
	case !livedOn:
		return fleetExpired(had.Mode, "the whole fleet lost its registrations: "+how)
	case f.Beside.Reaches(f.LossShare):
		return fleetExpired(had.Mode, "the loss befell the fleet, nobody was singled out: "+f.Beside.String())
	}
	how += f.Beside.fewer(f.LossShare)
	reconnects := f.Policy == PolicyReconnect && !f.RetriesUsed
	switch {
	case f.unread() != "" && !reconnects:
		return unreadable(f.unread(), how)
	case f.Policy == PolicyShutdown, f.Policy == PolicyReconnect && f.RetriesUsed:
		return Decision{Step: Shutdown, Row: ReasonSessionExpired, Mode: had, Detail: "registration lost: " + how}
	case f.Policy == PolicyReconnect:
		return Decision{Row: RowReconnected, Mode: had, Write: true, Detail: "registration lost and written again: " + how}
	}
	return drained(ReasonRegistrationExpired, "declared dead by a living cluster: "+how)
}

// fleetExpired keeps the mode.
func fleetExpired(had Mode, detail string) Decision {
	return Decision{Row: ReasonFleetExpired, Mode: ModeRecord{had, ReasonFleetExpired, ByHoldfast}, Write: true, Detail: detail}
}

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
func (f ClusterFacts) Succeeding(s SuccessionFacts) ClusterFacts {
	f.Holder = s.Own
	if s.Former == Another {
		f.Holder = Another
	}
	f.Reborn = s.Former != Us && !s.OwnBound
	f.StoredGarbled = s.FormerGarbled || s.OwnGarbled
	f.Stored = s.FormerState
	if f.StoredGarbled {
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
