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
}

// DecideOutage is the outage table of DESIGN.
func DecideOutage(f OutageFacts) Decision {
	switch {
	case f.Holder == Another:
		return Decision{Step: Conflict, Mode: f.Had, Detail: "the registration is another incarnation's"}
	case f.survived():
		d := Decision{Step: Keep, Mode: f.Had, Write: f.Stored == nil,
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
	livedOn, how := f.livedOn()
	if m, held := f.held(); held {
		return f.keep(m, "registration lost; mode kept: only a person may lift it")
	}
	_, had := JudgeState(f.Had, f.Stored) // somebody may have changed it meanwhile
	switch {
	case !livedOn:
		return Decision{Mode: ModeRecord{had.Mode, ReasonFleetExpired, ByHoldfast}, Write: true,
			Detail: "the whole fleet lost its registrations: " + how}
	case f.Policy == PolicyShutdown, f.Policy == PolicyReconnect && f.RetriesUsed:
		return Decision{Step: Shutdown, Mode: had, Detail: "registration lost: " + how}
	case f.Policy == PolicyReconnect:
		return Decision{Mode: had, Write: true, ReOwn: true, Detail: "registration lost and written again: " + how}
	}
	return drained(ReasonRegistrationExpired, "declared dead by a living cluster: "+how)
}
