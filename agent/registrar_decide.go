package agent

import (
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
	facts := recovery.ClusterFacts{
		Holder:           r.holder(seen, m),
		StoredGarbled:    seen.StateMalformed != "",
		PeerPresent:      seen.OldestPeerRevision != 0,
		Era:              seen.Era.N,
		Revision:         seen.Revision,
		Remembered:       m.Revision,
		Adopted:          r.adopting(),
		OldestPeer:       seen.OldestPeerRevision,
		ConfirmedAt:      m.ConfirmedAt,
		StateFileCorrupt: m.Distrust,
		Told:             r.peers != nil,
	}
	if facts.Told {
		facts.PeerPresent = r.others
	}
	facts.Stored = modeOf(seen.State)
	if seen.Member != nil {
		facts.KnownMember, facts.OurEra = true, seen.Member.Era
		facts.Reborn = seen.Registration != nil && seen.Member.ModRevision < seen.Registration.CreateRevision && !r.returned(now, seen)
	}
	had := now.had()
	if had.Mode.Known() {
		facts.Last = &had
	}
	out := outcome{instance: now.instance, stateRevision: seen.StateRevision, restored: seen.Revision < m.Revision}
	if m.Instance == now.instance && had.Mode.Known() && m.Distrust == "" && !m.Released {
		out.decision = recovery.DecideOutage(recovery.OutageFacts{
			ClusterFacts: facts, Policy: recovery.Policy(r.cfg.SessionExpiredPolicy),
			RetriesUsed: now.retriesUsed, Had: had})
		return out
	}
	boot := now.boot
	boot.StateFile, boot.StateFileError = m.FirstBootDone, m.Distrust
	if r.byInstance {
		out.succeeds, out.succession = true, r.succession(seen, m)
		facts = facts.Succeeding(out.succession)
	}
	boot.KnownToCluster = r.knownState(seen) != 0 || seen.Member != nil || seen.MemberMalformed != ""
	out.boot, out.evidence = recovery.JudgeBoot(boot)
	out.decision = recovery.DecideStartup(recovery.StartupFacts{
		ClusterFacts: facts, Boot: out.boot, Join: r.cfg.Join, Unknown: r.neverRegistered(seen, m), Strange: r.strange})
	if own := modeOf(seen.State); out.succeeds && out.decision.Step != recovery.Conflict {
		out.decision.Write = own == nil || *own != out.decision.Mode
	}
	return out
}

func (r *registrar) adopting() bool { return r.cfg.Registration == "adopt" }

// holder says whose registration it is. An own one carries its incarnation. An
// adopted one has the broker's bytes: it is another sidecar's if that one, by its
// member record, was the last to bind it.
func (r *registrar) holder(seen cluster.Snapshot, m memory) recovery.Holder {
	if seen.Registration == nil {
		return recovery.Nobody
	}
	if r.joins() {
		return recovery.Us // two sidecars that renew one lease do not harm each other's
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
	if r.byInstance {
		return describeNamesake(seen)
	}
	who := "a registration that no Holdfast wrote"
	if v, err := seen.Registration.Parse(); err == nil && v.Incarnation != "" {
		who = "incarnation " + v.Incarnation
		if v.AdminAddr != "" {
			who += " (broker at " + v.AdminAddr + ")"
		}
	}
	return fmt.Sprintf("broker id %q is registered by %s, not by this sidecar: stop one of the two, "+
		"or give this one another --broker-id; if the other is dead, its lease ends by itself", r.brokerID, who)
}

// deferred holds back, while recovery is paused, what must wait, and the write of a
// mode that need not be written now.
func (r *registrar) deferred(out *outcome, now life) error {
	if !r.paused() {
		return nil
	}
	if out.decision.Waits(now.had()) {
		return fmt.Errorf("%w: recovery is paused, and what would be done waits: %s: %s", lease.ErrDeferred, out.decision, out.decision.Detail)
	}
	if !out.succeeds { // whose state is still what the broker wrote itself
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
