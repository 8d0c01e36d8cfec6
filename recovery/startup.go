package recovery

// StartupFacts is what the startup decision rests on.
type StartupFacts struct {
	ClusterFacts
	Boot BootKind
	// Join is --join. It holds for a broker that is not a member yet: one that
	// joined and was activated comes back as any other does.
	Join bool
	// Unknown: it was never registered here, as far as anybody knows: there is no state file,
	// no member record and no state key.
	Unknown bool
	// Strange says what a broker that is Unknown serves and must not; empty: nothing.
	Strange string
	// Missing says by what the broker's own data is known to be gone; empty: it is not.
	Missing string
	// Left is the note of a planned stop since which it was not registered; nil: there is
	// none. Return says how long it counts.
	Left   *PlannedStop
	Return Return
	// Stays: whoever was declared dead is reported and stays active.
	Stays bool
	// Beside is what became of those that were registered with us, LossShare as for an outage.
	Beside    SharedLoss
	LossShare float64
}

// DecideStartup is the startup table of DESIGN. It is asked once for each life of
// the broker process, and again when its transaction met a change.
func DecideStartup(f StartupFacts) Decision {
	if f.Holder == Another {
		return Decision{Step: Conflict, Row: RowConflict, Detail: "the registration is another incarnation's"}
	}
	d := startupMode(f)
	if d.Step == Register && f.Holder == Us {
		d.Step = Keep
	}
	return d
}

func startupMode(f StartupFacts) Decision {
	if d, doubtful := f.doubt(); doubtful {
		return d
	}
	if m, held := f.held(); held {
		return f.keep(m, "kept: only an operator may lift it")
	}
	switch {
	case f.Join && !f.KnownMember && (f.Stored == nil || f.Adopted): // such a broker writes its own state
		return drained(ReasonJoin, "started with --join: an operator activates")
	case f.Missing != "":
		return drained(ReasonDataMissing, f.Missing)
	case f.Boot == FirstBoot:
		return active(ReasonBoot, "first boot")
	case f.survived():
		return active(ReasonFastRestart, "our registration is still there")
	case f.Unknown && f.Strange != "":
		return drained(ReasonUnknownData, "never registered here, and it serves what is not its own: "+f.Strange)
	case f.Unknown:
		return active(ReasonFirstRegistration, "never registered here, so never declared dead")
	}
	back, fits, misfit := f.planned()
	if fits {
		return back
	}
	if f.Outlived != "" {
		f.Beside = SharedLoss{} // the fleet went on after that
	}
	switch livedOn, known, how := f.livedOn(); {
	case f.Stays && (livedOn || !known):
		return active(ReasonStaleRestart, "away for longer than its registration lasted; active by --session-expired-policy reconnect, since its storage fences whoever was replaced"+misfit)
	case !known:
		return await(how + misfit)
	case livedOn && f.Beside.Reaches(f.LossShare):
		return fleetExpired(Active, "the loss befell the fleet, nobody was singled out: "+f.Beside.String())
	case livedOn && f.unread() != "":
		return unreadable(f.unread(), how)
	case livedOn:
		return drained(ReasonStaleRestart, "declared dead by a living cluster: "+how+f.Beside.fewer(f.LossShare)+misfit)
	default:
		return active(ReasonFullClusterRestart, "the whole cluster restarted: "+how+misfit)
	}
}
