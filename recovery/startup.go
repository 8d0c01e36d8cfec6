package recovery

// StartupFacts is what the startup decision rests on.
type StartupFacts struct {
	ClusterFacts
	Boot BootKind
	// Join is --join. It holds for a broker that is not a member yet: one that
	// joined and was activated comes back as any other does.
	Join bool
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
	}
	livedOn, how := f.livedOn()
	if livedOn {
		return drained(ReasonStaleRestart, "declared dead by a living cluster: "+how)
	}
	return active(ReasonFullClusterRestart, "the whole cluster restarted: "+how)
}
