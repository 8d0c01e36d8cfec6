package recovery

import (
	"fmt"
)

// Policy says what to do when a running broker's registration was lost.
type Policy string

// Policies.
const (
	PolicyDrain     Policy = "drain"
	PolicyReconnect Policy = "reconnect"
	PolicyShutdown  Policy = "shutdown"
)

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

// Holder says whose registration is in etcd.
type Holder int

// Holders.
const (
	Nobody  Holder = iota // read, and absent
	Us                    // our incarnation's, or the broker's own in adopt mode
	Another               // another incarnation's
)

// Decision is what becomes of the registration and the mode. It is carried out in one transaction,
// guarded by the revisions of the facts that it was taken on.
type Decision struct {
	Row   Reason
	Step  Step
	Mode  ModeRecord
	Write bool // etcd says another mode, or it is to be said again
	// Suspect is written into the member record, in the same transaction; nil: none is open, or an
	// open one is over.
	Suspect *Suspect
	// Planned: it comes back from a planned stop, or from a crash that was noted.
	Planned bool
	Detail  string
}

func (d Decision) String() string {
	return fmt.Sprintf("%s %s (%s)", d.Step, d.Mode.Mode, d.Mode.Reason)
}

// Row is one row of the table.
type Row struct {
	Name Reason
	When string // the broker …
	Then string // what is done
	// fits says how the facts are known to be those of this row; ok: they are.
	fits func(Facts, Rules) (how string, ok bool)
	then func(f Facts, r Rules, how string) Decision
}

// Decide finds the first row of the table that fits.
func Decide(f Facts, r Rules) Decision {
	for _, row := range Table {
		how, ok := row.fits(f, r)
		if !ok {
			continue
		}
		d := row.then(f, r, how)
		if d.Row == "" {
			d.Row = row.Name
		}
		if d.Mode.Reason == "" && d.Mode.Mode != "" {
			d.Mode.Reason = d.Row
		}
		if d.Step == Register && f.Holder == Us {
			d.Step = Keep
		}
		return d
	}
	panic("the last row of the table fits always")
}

// Table is what becomes of a registration (DESIGN, the table). It is asked when another process of
// the broker answers, when a registration was lost or changed, and after a sidecar's start. Rows
// that leave everything alone come first, then those that mistrust what is remembered, then what
// operators said; each of the others rests on nothing that a row above it would have refused.
var Table = []Row{
	{Name: RowConflict,
		When: "is registered by another incarnation",
		Then: "not ready, nothing loaded, wait",
		fits: func(f Facts, _ Rules) (string, bool) {
			return "the registration is another incarnation's", f.Holder == Another
		},
		then: func(_ Facts, _ Rules, how string) Decision { return Decision{Step: Conflict, Detail: how} }},

	{Name: ReasonRestoredBackup,
		When: "remembers what etcd does not know: a higher revision, or a revoke that is undone",
		Then: "drained",
		fits: func(f Facts, _ Rules) (string, bool) {
			return f.Restored + ": it was restored from a backup", f.Restored != ""
		},
		then: mistrust(ReasonRestoredBackup)},

	{Name: ReasonCorruptState,
		When: "has a state file that cannot be read",
		Then: "drained",
		fits: func(f Facts, _ Rules) (string, bool) { return f.Corrupt, f.Corrupt != "" },
		then: mistrust(ReasonCorruptState)},

	{Name: ReasonUnreadableMode,
		When: "has a state key that is not a mode, and a registration that did not survive",
		Then: "drained",
		fits: func(f Facts, _ Rules) (string, bool) {
			return "the state key in etcd is not a mode", f.Garbled && !(f.Same && f.Stands)
		},
		then: mistrust(ReasonUnreadableMode)},

	{Name: RowSurvived,
		When: "is the same process, and its registration stands",
		Then: "the mode stays: nobody was declared dead",
		fits: func(f Facts, _ Rules) (string, bool) {
			return "the registration survived: nobody was declared dead", f.Same && f.Stands
		},
		then: func(f Facts, _ Rules, how string) Decision {
			m := f.had()
			return Decision{Mode: m, Write: f.differs(m), Suspect: f.suspicion(), Detail: how}
		}},

	{Name: RowKept,
		When: "was drained by an operator, or by recovery and not activated since",
		Then: "the mode stays, whatever else is true",
		fits: func(f Facts, _ Rules) (string, bool) {
			m, held := f.held()
			return "only an operator may lift it", held && (m.By != ByHoldfast || f.suspicion() == nil)
		},
		then: func(f Facts, _ Rules, how string) Decision {
			m, _ := f.held()
			return Decision{Mode: m, Write: f.differs(m), Detail: how}
		}},

	{Name: ReasonJoin,
		When: "was started with `--join` and is no member yet",
		Then: "drained: an operator activates",
		fits: func(f Facts, r Rules) (string, bool) {
			return "started with --join: an operator activates", r.Join && f.Member == nil && f.NoMember == "" && f.Stored == nil && !f.Same
		},
		then: drained},

	{Name: ReasonDataMissing,
		When: "is a new process whose own data is gone",
		Then: "drained",
		fits: func(f Facts, r Rules) (string, bool) {
			how := ""
			if !f.Same {
				how = DataMissing(f.HadData, f.Data, f.boot())
			}
			return how, how != ""
		},
		then: drained},

	{Name: ReasonBoot,
		When: "boots for the first time: no older data, no state file, unknown to etcd",
		Then: "active",
		fits: func(f Facts, _ Rules) (string, bool) {
			kind, _ := f.JudgeBoot()
			return "first boot", !f.Same && kind == FirstBoot
		},
		then: active},

	{Name: ReasonFastRestart,
		When: "is a new process, and the registration still stands or was given up for a crash no longer than a TTL ago",
		Then: "active; a suspicion that is open goes on",
		fits: func(f Facts, r Rules) (string, bool) {
			if !f.Same && f.Stands {
				return "the registration is still there", true
			}
			how, ok := f.note(r)
			return how, ok && f.left().Crash
		},
		then: func(f Facts, r Rules, how string) Decision {
			d := active(f, r, how)
			d.Planned = !f.Stands
			if s := f.suspicion(); s != nil {
				d = Decision{Mode: f.had(), Suspect: s, Detail: how + "; whether the cluster had declared it dead is still asked"}
				d.Write = f.differs(d.Mode)
			}
			return d
		}},

	{Name: ReasonUnknownData,
		When: "was never registered here, and serves what is assigned to others",
		Then: "drained",
		fits: func(f Facts, _ Rules) (string, bool) {
			return "never registered here, and it serves what is not its own: " + f.Strange, f.never() && f.Strange != ""
		},
		then: drained},

	{Name: ReasonFirstRegistration,
		When: "was never registered here: no state file, no member record, no state key",
		Then: "active: nobody can have declared it dead",
		fits: func(f Facts, _ Rules) (string, bool) {
			return "never registered here, so never declared dead", f.never()
		},
		then: active},

	{Name: ReasonPlannedRestart,
		When: "comes back from a planned stop whose note fits: its data, and no longer than `--return-within` or the pause",
		Then: "active",
		fits: func(f Facts, r Rules) (string, bool) {
			how, ok := f.note(r)
			return how, ok && !f.left().Crash
		},
		then: func(f Facts, r Rules, how string) Decision {
			d := active(f, r, how)
			d.Planned = true
			return d
		}},

	{Name: ReasonFullClusterRestart,
		When: "finds nobody else registered, or the era key written since its last proven renewal",
		Then: "active, or the mode that it had if it is the same process: nobody lived on who could have declared it dead",
		fits: func(f Facts, _ Rules) (string, bool) {
			switch {
			case !f.Others:
				return "no other broker is registered", true
			case f.Younger:
				return "every other broker registered after its last renewal", true
			case f.NoMember != "" && f.Confirmed.Revision == 0:
				return "", false
			}
			return "for a moment no broker was registered, since its last renewal", f.NoEra == "" && f.Begun && f.EraAt > f.lost().Revision
		},
		then: func(f Facts, r Rules, how string) Decision {
			if f.Same {
				return fleetExpired(f, "the whole fleet lost its registrations: "+how)
			}
			return active(f, r, "the whole cluster restarted: "+how+f.misfit(r))
		}},

	{Name: ReasonSessionExpired,
		When: "is the same process and has lost its registration, under `--session-expired-policy shutdown` or with the retries of `reconnect` used up",
		Then: "the broker is stopped, and the sidecar ends with an error",
		fits: func(f Facts, r Rules) (string, bool) {
			return "registration lost: other brokers are registered",
				f.Same && (r.Policy == PolicyShutdown || r.Policy == PolicyReconnect && r.RetriesUsed)
		},
		then: func(f Facts, _ Rules, how string) Decision {
			return Decision{Step: Shutdown, Mode: f.had(), Detail: how}
		}},

	{Name: RowReconnected,
		When: "has lost its registration, under `--session-expired-policy reconnect`; a new process only where its storage fences who was replaced",
		Then: "registered again, in the mode that it had",
		fits: func(f Facts, r Rules) (string, bool) {
			return "registration lost and written again: other brokers are registered",
				r.Policy == PolicyReconnect && (f.Same || r.FencesItself)
		},
		then: func(f Facts, r Rules, how string) Decision {
			if f.Same {
				return Decision{Mode: f.had(), Write: true, Detail: how}
			}
			d := active(f, r, "away for longer than its registration lasted; its storage fences whoever was replaced"+f.misfit(r))
			d.Mode.Reason = ReasonStaleRestart
			return d
		}},

	{Name: ReasonUnreadableRecord,
		When: "has a member record that cannot be read, or finds an era written since that cannot, and that alone could excuse it",
		Then: "drained",
		fits: func(f Facts, _ Rules) (string, bool) {
			switch {
			case f.NoMember != "":
				return "whether the cluster declared it dead is not known: its member record cannot be read: " + f.NoMember, true
			case f.NoEra != "" && f.EraAt > f.lost().Revision:
				return "whether the cluster declared it dead is not known: the era cannot be read: " + f.NoEra, true
			case f.left() != nil && f.left().Unread != "":
				return "whether the cluster declared it dead is not known: the note of a planned stop cannot be read: " + f.left().Unread, true
			}
			return "", false
		},
		then: drained},

	{Name: ReasonRegistrationExpired,
		When: "is the same process, and was gone while others stood registered",
		Then: "drained at once, as a suspicion: lifted by itself when nobody proves to have lived on",
		fits: func(f Facts, _ Rules) (string, bool) { return "other brokers are registered", f.Same },
		then: suspected},

	{Name: ReasonStaleRestart,
		When: "is a new process, and was gone while others stood registered",
		Then: "drained at once, as a suspicion: lifted by itself when nobody proves to have lived on",
		fits: func(f Facts, r Rules) (string, bool) { return "other brokers are registered" + f.misfit(r), true },
		then: suspected},
}

// never reports whether it was never registered here, as far as anybody knows.
func (f Facts) never() bool { return !f.Same && !f.Memory && !f.known() }

// had is the mode before the loss; somebody may have changed it meanwhile. A suspicion is none.
func (f Facts) had() ModeRecord {
	if m, held := f.held(); held {
		return m
	}
	had := f.Last
	if had == nil {
		had = &ModeRecord{Mode: Active, Reason: ReasonBoot, By: ByHoldfast}
	}
	_, m := JudgeState(*had, f.Stored)
	return m
}

// note is the note of a planned stop, or of a crash, and whether it fits.
func (f Facts) note(r Rules) (how string, fits bool) {
	left := f.left()
	if left == nil || f.Same {
		return "", false
	}
	fits, how = left.Fits(Return{Now: f.Now, Ahead: r.TTL, Within: r.Within, Lease: r.TTL, Pause: r.Pause})
	return how, fits
}

// misfit says why a note does not count, for the rows that decide instead.
func (f Facts) misfit(r Rules) string {
	if how, fits := f.note(r); !fits && how != "" {
		return "; " + how
	}
	return ""
}

// mistrust drains, and leaves a drain that stands as it is.
func mistrust(reason Reason) func(Facts, Rules, string) Decision {
	return func(f Facts, r Rules, how string) Decision {
		d := drained(f, r, how)
		d.Mode.Reason = reason
		if m, held := f.held(); held && m.Mode == Drained && f.suspicion() == nil {
			d.Mode, d.Write = m, f.differs(m)
		}
		return d
	}
}

func decided(m Mode, how string) Decision {
	return Decision{Mode: ModeRecord{Mode: m, By: ByHoldfast}, Write: true, Detail: how}
}

func drained(_ Facts, _ Rules, how string) Decision { return decided(Drained, how) }
func active(_ Facts, _ Rules, how string) Decision  { return decided(Active, how) }

func fleetExpired(f Facts, how string) Decision {
	d := decided(Active, how)
	if f.suspicion() == nil {
		d.Mode.Mode = f.had().Mode
	}
	d.Row = ReasonFleetExpired
	return d
}

func suspected(f Facts, r Rules, how string) Decision {
	d := drained(f, r, how)
	if r.NoEtcd {
		return d
	}
	d.Suspect = &Suspect{Lost: f.lost(), Row: ReasonStaleRestart}
	if f.Same {
		d.Suspect.Row = ReasonRegistrationExpired
	}
	return d
}
