package agent

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
func (r *registrar) decide(seen cluster.Snapshot, now life) outcome {
	m, had := now.memory, now.had()
	restored := r.restored(seen, now)
	remembered := m.data(seen.Member)
	f := recovery.Facts{
		Now: time.Now(), Revision: seen.Revision, Holder: r.holder(seen, m), Stored: modeOf(seen.State), Garbled: seen.StateMalformed != "",
		Member: memberFacts(seen, now.data), NoMember: seen.MemberMalformed, EraAt: seen.Era.ModRevision, Begun: seen.Member == nil || seen.Era.N > seen.Member.Era, NoEra: seen.Era.Unread, Others: seen.Peer.CreateRevision != 0,
		Memory: m.FirstBootDone || m.Revision != 0, Corrupt: m.Distrust, Restored: restored, Confirmed: r.lastProven(now),
		Boot: now.boot, Data: now.data, HadData: remembered, Strange: r.strange,
	}
	f.Stands = f.Holder == recovery.Us && !r.reborn(seen, m) && restored == ""
	if q := r.asks; q != nil && f.Member == nil && seen.Registration != nil && q.epoch == seen.Registration.CreateRevision {
		f.Member = &recovery.Member{Suspect: &q.Suspect} // its record was deleted or spoiled, and is written again
	}
	f.Younger = r.adopting() && f.Confirmed.Revision != 0 && seen.OldestPeerRevision > f.Confirmed.Revision
	if r.others != nil {
		f.Others = *r.others
	}
	if had.Mode.Known() {
		f.Last = &had
	}
	f.Same = m.Instance == now.instance && had.Mode.Known() && m.Distrust == "" && !m.Released && !(noted(seen) && f.Holder == recovery.Nobody)
	out := outcome{instance: now.instance, stateRevision: seen.StateRevision, restored: restored != "" && restored != givenUp, cutFrom: now.cutFrom, unsure: now.unsure, unread: unreadable(seen)}
	if out.data = cmp.Or(remembered, now.data); !f.Same {
		if out.data = cmp.Or(now.data, remembered); now.boot.DirGone != "" {
			out.data = "" // so that it is drained for it once
		}
		if r.byInstance {
			out.succeeds, out.succession = true, r.succession(seen, m)
			f = f.Succeeding(out.succession)
		}
		out.boot, out.evidence = f.JudgeBoot()
	}
	out.decision = recovery.Decide(f, r.rules(now))
	out.begins = out.decision.Step == recovery.Keep && !f.Stands && !f.Others // Register sees to it itself
	if own := modeOf(seen.State); out.succeeds && out.decision.Step != recovery.Conflict {
		out.decision.Write = own == nil || *own != out.decision.Mode
	}
	return out
}

// rules are the settings and traits that decide.
func (r *registrar) rules(now life) recovery.Rules {
	rules := recovery.Rules{TTL: r.ttl(), Renewal: r.cfg.RenewInterval, Within: r.cfg.ReturnWithin, Share: r.cfg.FleetLossShare,
		Policy: recovery.Policy(r.cfg.SessionExpiredPolicy), RetriesUsed: now.retriesUsed, Join: r.cfg.Join,
		FencesItself: r.cfg.FencesItself(), NoEtcd: r.others != nil}
	if r.pauseEnds != nil {
		rules.Pause = r.pauseEnds()
	}
	return rules
}

// ttl is how long a lease of ours lasts.
func (r *registrar) ttl() time.Duration { return max(r.cfg.LeaseTTL, r.granted) }

// restored says by what etcd is known to be older than what we remember; empty: it is not.
func (r *registrar) restored(seen cluster.Snapshot, now life) string {
	m := now.memory
	switch {
	case m.highest() > seen.Revision:
		return fmt.Sprintf("etcd is at revision %d and we remember %d", seen.Revision, m.highest())
	case rewound(seen.StateRevision, now.modeRev, seen.Revision):
		return fmt.Sprintf("etcd is at revision %d, and the state key is at %d and was at %d", seen.Revision, seen.StateRevision, now.modeRev)
	case m.undone(seen):
		return givenUp
	}
	return ""
}

// givenUp is that a revoke is undone.
const givenUp = "our registration stands, and etcd had confirmed that it was given up"

// reborn reports whether the registration was created after the last time that this sidecar bound
// it: the one that we had is gone.
func (r *registrar) reborn(seen cluster.Snapshot, m memory) bool {
	switch {
	case seen.Member != nil:
		return seen.Registration != nil && seen.Member.ModRevision < seen.Registration.CreateRevision
	case seen.MemberMalformed != "" && r.adopting():
		return seen.Registration != nil && seen.Registration.CreateRevision != m.Epoch
	}
	return false
}

// lastProven is our last confirmed renewal, as far as it is known.
func (r *registrar) lastProven(now life) recovery.Proven {
	p := recovery.Proven{Revision: now.memory.ConfirmedAt, At: now.cutFrom}
	if last := r.lastConfirmed(now.memory); p.At.IsZero() && last.Revision != 0 {
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

// rewound reports whether a key that was at a revision once is older in a store that has passed
// that revision: it was restored from a backup, and has grown since.
func rewound(now, once, store int64) bool { return now != 0 && now < once && once <= store }

func (r *registrar) adopting() bool { return r.cfg.Registration == "adopt" }

// holder says whose registration it is. An own one carries its incarnation. An
// adopted one has the broker's bytes: it is another sidecar's if that one, by its
// member record, was the last to bind it.
func (r *registrar) holder(seen cluster.Snapshot, m memory) recovery.Holder {
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
	if v, err := seen.Registration.Parse(); err == nil && v.Incarnation == m.Incarnation && (v.Run == r.run || !r.stood) {
		return recovery.Us
	}
	return recovery.Another
}

func (r *registrar) describeHolder(seen cluster.Snapshot) string {
	who := "a registration that no Holdfast wrote"
	if m := seen.Member; r.byInstance && m != nil {
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
		r.brokerID, who, r.cfg.BrokerAdmin)
}

// deferred holds back what rests on data that nobody has looked at and, while recovery is
// paused, what must wait, and the write of a mode that need not be written now.
func (r *registrar) deferred(out *outcome, now life) error {
	if out.boot != "" && now.unseen {
		return fmt.Errorf("%w: the data directory of the broker's new process is looked at first", lease.ErrDeferred)
	}
	if out.boot != "" && now.vanished && out.data != "" {
		return fmt.Errorf("%w: the data directory is not there, and is looked at once more", lease.ErrDeferred)
	}
	if !r.paused() {
		return nil
	}
	if out.decision.Waits(now.had()) {
		return fmt.Errorf("%w: recovery is paused, and what would be done waits: %s: %s", lease.ErrDeferred, out.decision, out.decision.Detail)
	}
	if !out.succeeds && !out.decision.Planned { // whose state is still what the broker wrote itself
		out.decision.Write = false
	}
	return nil
}

// doubtful holds a decision about a lost registration back while the broker does not
// answer: it may be another process by now, of which the startup decides. So it is when
// the sidecar was frozen for longer than its lease.
func (r *registrar) doubtful(out outcome) error {
	if out.decision.Step != recovery.Conflict && r.gone != nil && r.gone() {
		return fmt.Errorf("%w: the broker's process has ended", lease.ErrDeferred)
	}
	if out.boot != "" || out.decision.Step == recovery.Keep || out.decision.Step == recovery.Conflict || r.up == nil || r.up(out.instance) {
		return nil
	}
	return fmt.Errorf("%w: the registration was lost, and whether the broker is still the same process is not known: %s",
		lease.ErrDeferred, out.decision.Detail)
}
