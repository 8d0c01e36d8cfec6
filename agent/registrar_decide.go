package agent

import (
	"cmp"
	"fmt"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the deciding half of the registrar: what one look at etcd means, and
// whether what follows from it may be done now. It writes nothing.

// decide gathers the facts and asks the right table: a new broker process starts
// up, the same one comes back after an outage.
func (r *registrar) decide(seen cluster.Snapshot, now life) outcome {
	m := now.memory
	confirmed := m.ConfirmedAt
	if confirmed != 0 && seen.Member != nil { // a directory that takes nothing does not know the newest
		confirmed = max(confirmed, seen.Member.ModRevision)
	}
	facts := recovery.ClusterFacts{
		Holder:           r.holder(seen, m),
		StoredGarbled:    seen.StateMalformed != "",
		PeerPresent:      seen.Peer.CreateRevision != 0,
		Era:              seen.Era.N,
		Revision:         seen.Revision,
		Remembered:       m.highest(),
		Undone:           m.undone(seen),
		Adopted:          r.adopting(),
		OldestPeer:       seen.OldestPeerRevision,
		ConfirmedAt:      confirmed,
		StateFileCorrupt: m.Distrust,
		Told:             r.others != nil,
		Outlived:         r.outlived,
		Unread:           r.unread(seen),
		Peers:            r.lived,
		PeersSaid:        r.livedHow,
	}
	if facts.Told {
		facts.PeerPresent = *r.others
	}
	facts.Stored = modeOf(seen.State)
	if seen.Member != nil {
		facts.KnownMember, facts.OurEra = true, seen.Member.Era
		facts.Reborn = seen.Registration != nil && seen.Member.ModRevision < seen.Registration.CreateRevision
	} else if seen.MemberMalformed != "" && seen.Registration != nil && r.adopting() {
		facts.Reborn = seen.Registration.CreateRevision != m.Epoch
	}
	had := now.had()
	if had.Mode.Known() {
		facts.Last = &had
	}
	if rewound(seen.StateRevision, now.modeRev, seen.Revision) {
		facts.Rewound = fmt.Sprintf("etcd is at revision %d, and the state key is at %d and was at %d", seen.Revision, seen.StateRevision, now.modeRev)
	}
	out := outcome{instance: now.instance, stateRevision: seen.StateRevision, restored: seen.Revision < m.highest() || facts.Rewound != "", cutFrom: now.cutFrom, unsure: now.unsure, unread: unreadable(seen)}
	remembered := m.data(seen.Member)
	out.data = cmp.Or(remembered, now.data)
	if m.Instance == now.instance && had.Mode.Known() && m.Distrust == "" && !m.Released && !(noted(seen) && facts.Holder == recovery.Nobody) {
		out.decision = recovery.DecideOutage(recovery.OutageFacts{
			ClusterFacts: facts, Policy: recovery.Policy(r.cfg.SessionExpiredPolicy),
			RetriesUsed: now.retriesUsed, Had: had, Beside: r.besides(seen, m, recovery.ReasonRegistrationExpired), LossShare: r.cfg.FleetLossShare})
		return out
	}
	out.data = cmp.Or(now.data, remembered)
	boot := now.boot
	if boot.DirGone != "" {
		out.data = "" // so that it is drained for it once
	}
	boot.StateFile, boot.StateFileError = m.FirstBootDone, m.Distrust
	if r.byInstance {
		out.succeeds, out.succession = true, r.succession(seen, m)
		facts = facts.Succeeding(out.succession)
	}
	boot.KnownToCluster = r.knownState(seen) != 0 || seen.Member != nil || seen.MemberMalformed != ""
	out.boot, out.evidence = recovery.JudgeBoot(boot)
	out.decision = recovery.DecideStartup(recovery.StartupFacts{
		ClusterFacts: facts, Stays: r.cfg.staysActive(), Boot: out.boot, Join: r.cfg.Join, Unknown: r.neverRegistered(seen, m), Strange: r.strange,
		Missing: recovery.DataMissing(remembered, now.data, boot),
		Left:    plannedStop(seen, now.data), Return: r.returning(), Beside: r.besides(seen, m, recovery.ReasonStaleRestart), LossShare: r.cfg.FleetLossShare})
	if own := modeOf(seen.State); out.succeeds && out.decision.Step != recovery.Conflict {
		out.decision.Write = own == nil || *own != out.decision.Mode
	}
	return out
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
		r.brokerID, who, withoutPassword(r.cfg.BrokerAdmin))
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
		if out.decision.Step == recovery.Await {
			return fmt.Errorf("%w: %s", lease.ErrDeferred, out.decision.Detail)
		}
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
