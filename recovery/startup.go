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
}

// DecideStartup is the startup table of DESIGN. It is asked once for each life of
// the broker process, and again when its transaction met a change.
func DecideStartup(f StartupFacts) Decision {
	if f.Holder == Another {
		return Decision{Step: Conflict, Detail: "the registration is another incarnation's"}
	}
	d := startupMode(f)
	d.Step = Register
	if f.Holder == Us {
		d.Step = Keep
	}
	return d
}

func startupMode(f StartupFacts) Decision {
	if d, doubtful := f.doubt(); doubtful {
		return d
	}
	if m, held := f.held(); held {
		return f.keep(m, "kept: only a person may lift it")
	}
	switch {
	case f.Join && !f.KnownMember && (f.Stored == nil || f.Adopted): // such a broker writes its own state
		return drained(ReasonJoin, "started with --join: an operator activates")
	case f.Boot == FirstBoot:
		return active(ReasonBoot, "first boot")
	case f.survived():
		return active(ReasonFastRestart, "our registration is still there")
	case f.Unknown && f.Strange != "":
		return drained(ReasonUnknownData, "never registered here, and it serves what is not its own: "+f.Strange)
	case f.Unknown:
		return active(ReasonFirstRegistration, "never registered here, so never declared dead")
	}
	livedOn, how := f.livedOn()
	if livedOn {
		return drained(ReasonStaleRestart, "declared dead by a living cluster: "+how)
	}
	return active(ReasonFullClusterRestart, "the whole cluster restarted: "+how)
}
