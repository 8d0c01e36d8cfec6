package registration

import (
	"cmp"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the deciding half of the registrar: what one look at etcd means, and
// whether what follows from it may be done now. It writes nothing.

// decide gathers the facts and asks the table.
func (r *Registrar) decide(seen cluster.Snapshot, now Life) Outcome {
	m, had := now.Past, now.had()
	restored := r.restored(seen, now)
	remembered := m.data(seen.Member)
	f := recovery.Facts{
		Now: time.Now(), Revision: seen.Revision, Holder: r.holder(seen, m), Stored: ModeOf(seen.State), Garbled: seen.StateMalformed != "",
		Member: memberFacts(seen, now.Data), NoMember: seen.MemberMalformed, Others: seen.Peer.CreateRevision != 0,
		EraAt: seen.Era.ModRevision, Begun: seen.Member == nil || seen.Era.N > seen.Member.Era, NoEra: seen.Era.Unread,
		Memory: m.FirstBootDone || m.Revision != 0, Corrupt: m.Distrust, Restored: restored, Confirmed: r.lastProven(now),
		Boot: now.Boot, Data: now.Data, HadData: remembered, Strange: r.strange,
	}
	f.Stands = f.Holder == recovery.Us && !r.reborn(seen, m) && restored == ""
	if q := r.asks; q != nil && f.Member == nil && seen.Registration != nil && q.epoch == seen.Registration.CreateRevision {
		f.Member = &recovery.Member{Suspect: &q.Suspect} // its record was deleted or spoiled, and is written again
	}
	f.Younger = r.adopting() && f.Confirmed.Revision != 0 && seen.OldestPeerRevision > f.Confirmed.Revision
	if now.others != nil {
		f.Others = *now.others
	}
	if had.Mode.Known() {
		f.Last = &had
	}
	f.Same = m.Instance == now.Instance && had.Mode.Known() && m.Distrust == "" && !m.Released && !(noted(seen) && f.Holder == recovery.Nobody)
	out := Outcome{Instance: now.Instance, StateRevision: seen.StateRevision, Restored: restored != "" && restored != givenUp,
		ModeRev: now.ModeRev, CutFrom: now.CutFrom, Unsure: now.Unsure, Unread: unreadable(seen)}
	if out.Data = cmp.Or(remembered, now.Data); !f.Same {
		if out.Data = cmp.Or(now.Data, remembered); now.Boot.DirGone != "" {
			out.Data = "" // so that it is drained for it once
		}
		if r.ByInstance {
			out.Succeeds, out.succession = true, r.succession(seen, m)
			f = f.Succeeding(out.succession)
		}
		out.Boot, out.Evidence = f.JudgeBoot()
	}
	out.Decision = recovery.Decide(f, r.rules(now))
	if out.Decision.Step == recovery.Conflict {
		out.Decision.Detail = r.describeHolder(seen, now)
	}
	out.begins = out.Decision.Step == recovery.Keep && !f.Stands && !f.Others // Register sees to it itself
	if own := ModeOf(seen.State); out.Succeeds && out.Decision.Step != recovery.Conflict {
		out.Decision.Write = own == nil || *own != out.Decision.Mode
	}
	return out
}

// rules are the settings and traits that decide.
func (r *Registrar) rules(now Life) recovery.Rules {
	return recovery.Rules{TTL: r.ttl(), Renewal: r.Config.RenewInterval, Within: r.Config.ReturnWithin, Share: r.Config.FleetLossShare,
		Policy: recovery.Policy(r.Config.SessionExpiredPolicy), RetriesUsed: now.RetriesUsed, Join: r.Config.Join,
		FencesItself: r.Config.FencesItself(), NoEtcd: now.others != nil, Pause: now.PauseEnds}
}

// ttl is how long a lease of ours lasts.
func (r *Registrar) ttl() time.Duration { return max(r.Config.LeaseTTL, r.granted) }

// restored says by what etcd is known to be older than what we remember; empty: it is not.
func (r *Registrar) restored(seen cluster.Snapshot, now Life) string {
	m := now.Past
	switch {
	case m.highest() > seen.Revision:
		return fmt.Sprintf("etcd is at revision %d and we remember %d", seen.Revision, m.highest())
	case Rewound(seen.StateRevision, now.ModeRev, seen.Revision):
		return fmt.Sprintf("etcd is at revision %d, and the state key is at %d and was at %d", seen.Revision, seen.StateRevision, now.ModeRev)
	case m.undone(seen):
		return givenUp
	}
	return ""
}

// givenUp is that a revoke is undone.
const givenUp = "our registration stands, and etcd had confirmed that it was given up"

// reborn reports whether the registration was created after the last time that this sidecar bound
// it: the one that we had is gone.
func (r *Registrar) reborn(seen cluster.Snapshot, m Past) bool {
	switch {
	case seen.Member != nil:
		return seen.Registration != nil && seen.Member.ModRevision < seen.Registration.CreateRevision
	case seen.MemberMalformed != "" && r.adopting():
		return seen.Registration != nil && seen.Registration.CreateRevision != m.Epoch
	}
	return false
}

// lastProven is our last confirmed renewal, as far as it is known.
func (r *Registrar) lastProven(now Life) recovery.Proven {
	p := recovery.Proven{Revision: now.Past.ConfirmedAt, At: now.CutFrom}
	if last := r.lastConfirmed(now.Past); p.At.IsZero() && last.Revision != 0 {
		p.At = last.Deadline.Add(-r.ttl())
	}
	return p
}

func memberFacts(seen cluster.Snapshot, found recovery.DataID) *recovery.Member {
	m := seen.Member
	if m == nil {
		return nil
	}
	facts := recovery.Member{Revision: m.ModRevision, At: m.At, Left: plannedStop(seen, found)}
	if s := m.Suspect; s != nil {
		facts.Suspect = &recovery.Suspect{Lost: recovery.Proven{Revision: s.Revision, At: s.At}, Row: recovery.Reason(s.Row)}
	}
	return &facts
}

// Rewound reports whether a key that was at a revision once is older in a store that has passed
// that revision: it was restored from a backup, and has grown since.
func Rewound(now, once, store int64) bool { return now != 0 && now < once && once <= store }

func (r *Registrar) adopting() bool { return r.Config.Registration == "adopt" }

// holder says whose registration it is. An own one carries its incarnation. An
// adopted one has the broker's bytes: it is another sidecar's if that one, by its
// member record, was the last to bind it.
func (r *Registrar) holder(seen cluster.Snapshot, m Past) recovery.Holder {
	if seen.Registration == nil {
		return recovery.Nobody
	}
	if r.adopting() {
		if boundLastByAnother(seen.Member, *seen.Registration, m.Incarnation) {
			return recovery.Another
		}
		return recovery.Us
	}
	// Of our incarnation and another run: the process before this one, or, once ours has
	// stood there, a copy of this sidecar. The newest wins.
	if v, err := seen.Registration.Parse(); err == nil && v.Incarnation == m.Incarnation && (v.Run == r.Run || !r.stood) {
		return recovery.Us
	}
	return recovery.Another
}

func (r *Registrar) describeHolder(seen cluster.Snapshot, now Life) string {
	who := "a registration that no Holdfast wrote"
	if m := seen.Member; r.ByInstance && m != nil {
		who = "incarnation " + m.Incarnation + ", as " + m.RegisteredAs
	} else if seen.Registration != nil {
		if v, err := seen.Registration.Parse(); err == nil && v.Incarnation != "" {
			who = "incarnation " + v.Incarnation
			if v.AdminAddr != "" {
				who += " (broker at " + v.AdminAddr + ")"
			}
		}
	}
	return fmt.Sprintf("broker id %q is registered by %s, not by this sidecar: stop one of the two, or give this one another broker than --broker-admin %s, "+
		"another --broker-id where that is set, or its broker another name (NATS: server_name); if the other is dead, its lease ends by itself",
		now.Name, who, r.Config.BrokerAdmin)
}

// deferred holds back what rests on data that nobody has looked at and, while recovery is
// paused, what must wait, and the write of a mode that need not be written now.
func (r *Registrar) deferred(out *Outcome, now Life) error {
	if out.Boot != "" && now.Unseen {
		return fmt.Errorf("%w: the data directory of the broker's new process is looked at first", lease.ErrDeferred)
	}
	if out.Boot != "" && now.Vanished && out.Data != "" {
		return fmt.Errorf("%w: the data directory is not there, and is looked at once more", lease.ErrDeferred)
	}
	if !now.paused() {
		return nil
	}
	if out.Decision.Waits(now.had()) {
		return fmt.Errorf("%w: recovery is paused, and what would be done waits: %s: %s", lease.ErrDeferred, out.Decision, out.Decision.Detail)
	}
	if !out.Succeeds && !out.Decision.Planned { // whose state is still what the broker wrote itself
		out.Decision.Write = false
	}
	return nil
}

// outdated holds back what was decided when what is known now, after the look at etcd, says otherwise.
// A registration that was lost is left alone while the broker does not answer: it may be another
// process by now, of which the startup decides. So it is when the sidecar was frozen for longer than
// its lease. While the departure of that very process is being noted, and after it, a take-up would
// take the note away, and who is stopped then would not be excused. That it leaves is known before
// the note is begun: a take-up that saw no note is refused by the guard of the member record.
func outdated(out Outcome, now Life) error {
	lost := out.Boot == "" && out.Decision.Step != recovery.Keep
	switch {
	case out.Decision.Step == recovery.Conflict:
		return nil
	case now.Gone:
		return fmt.Errorf("%w: the broker's process has ended", lease.ErrDeferred)
	case lost && (now.Silent || now.Instance != out.Instance):
		return fmt.Errorf("%w: the registration was lost, and whether the broker is still the same process is not known: %s",
			lease.ErrDeferred, out.Decision.Detail)
	case now.Leaves:
		return fmt.Errorf("%w: the broker leaves on purpose", lease.ErrDeferred)
	}
	return nil
}
