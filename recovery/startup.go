package recovery

import (
	"fmt"
	"time"
)

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

// PlannedStop is the note of a broker that left on purpose: it was active, and served nothing
// any more. Nobody can have declared it dead. Or of one that crashed: it was declared dead by its own
// sidecar, and is back before anybody else would have.
type PlannedStop struct {
	At time.Time // by the clock of whoever noted it
	// Data is what it had then, Found what it has now; empty: not known, or not its own.
	Data, Found DataID
	// Crash: its process had ended, unplanned, and its registration was given up for that before
	// its lease ended. At is when it ended, or, of one that was stopped, when that lease was renewed last.
	Crash bool
	// Unread says where the note stands and why it cannot be read; empty: it can.
	Unread string
}

// Return says how long a note counts.
type Return struct {
	Now    time.Time
	Ahead  time.Duration // a note that far in the future counts as of now: clocks differ
	Within time.Duration // --return-within
	Lease  time.Duration // for how long that of a crash counts: as long as the registration would have stood
	Pause  time.Time     // until when a maintenance pause lasts, if one does; zero: none
}

func (p PlannedStop) unread() string { return "the note of a planned stop cannot be read: " + p.Unread }

// fits reports whether the note still counts, with a sentence that says why or why not.
func (p PlannedStop) fits(r Return) (bool, string) {
	ago := r.Now.Sub(p.At).Round(time.Second)
	switch {
	case p.Unread != "":
		return false, p.unread()
	case p.At.After(r.Now.Add(r.Ahead)):
		return false, fmt.Sprintf("it left on purpose, but at %s, which is %s ahead of this clock", p.At.UTC().Format(time.RFC3339), -ago)
	case p.Data.another(p.Found):
		return false, fmt.Sprintf("it left on purpose, but the directory %s is not the one that held its data then", p.Found.within())
	case p.Crash && ago <= r.Lease:
		return true, fmt.Sprintf("its process ended at most %s ago, and its registration was given up for that", max(0, ago))
	case p.Crash:
		return false, fmt.Sprintf("its registration was given up for the end of its process, but %s ago, longer than the TTL %s", ago, r.Lease)
	case ago <= r.Within:
		return true, fmt.Sprintf("it left on purpose %s ago", max(0, ago))
	case !r.Now.After(r.Pause):
		return true, fmt.Sprintf("it left on purpose %s ago, and the maintenance pause is not over", ago)
	}
	return false, fmt.Sprintf("it left on purpose, but %s ago, longer than --return-within %s", ago, r.Within)
}

// Covers reports whether it was away on purpose at that moment, and for no longer than a note
// counts: what others did until then does not say that it was declared dead.
func (p PlannedStop) Covers(moment time.Time, r Return) bool {
	r.Now, r.Pause = moment, time.Time{}
	fits, _ := p.fits(r)
	return fits && !p.Crash
}

// planned is the decision about a broker that comes back from a planned stop. Where its
// note does not count, misfit says why, for the rows that decide instead.
func (f StartupFacts) planned() (d Decision, fits bool, misfit string) {
	if f.Left == nil {
		return Decision{}, false, ""
	}
	fits, why := f.Left.fits(f.Return)
	if !fits {
		return Decision{}, false, "; " + why
	}
	if d = active(ReasonPlannedRestart, why); f.Left.Crash {
		d = active(ReasonFastRestart, why)
	}
	d.Planned = true
	return d, true, ""
}

// Unread says what cannot be read of the records that tell whether the cluster lived on
// without us, and where it stands. Empty: all of it can, or nothing rests on it.
//
// A record that cannot be read is no absent one, and it is not guessed what it said. Nor
// is it a reason to wait, since only a person mends it, nor to drain whom it does not concern:
// a whole fleet reads the era. So the other records that tell the same decide, and what
// would be the same whatever it said is done. Who is left, because a peer lived
// on and only that record could excuse it, is drained, and says which record to look at.
type Unread struct {
	// Record is our own member record: the era that we were registered in, and whether we
	// left on purpose.
	Record string
	// Era is whether the era has grown since then. The era of ClusterFacts is the least that it
	// can be.
	Era string
	// Fleet is until when the fleet before the present era was alive.
	Fleet string
}

// unread is what keeps it from being known whether the cluster declared us dead, if somebody
// lived on or may have; empty: it is known.
func (f ClusterFacts) unread() string {
	switch {
	case f.Told:
		return ""
	case f.Unread.Record != "":
		return f.Unread.Record
	case f.Outlived != "":
		return ""
	case f.grown():
		return f.Unread.Fleet
	case f.Unread.Era != "":
		return f.Unread.Era
	case f.Peers == Hidden:
		return f.PeersSaid
	}
	return ""
}

// unread also counts the note of a planned stop, which would excuse what others did meanwhile.
func (f StartupFacts) unread() string {
	if f.Left != nil && f.Left.Unread != "" {
		return f.Left.unread()
	}
	return f.ClusterFacts.unread()
}

// unreadable is the drain of a broker that only what cannot be read could excuse.
func unreadable(what, how string) Decision {
	detail := "whether the cluster declared it dead is not known: " + what
	if how != what {
		detail += "; " + how
	}
	return drained(ReasonUnreadableRecord, detail)
}
