package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// look reads what the decision rests on, and what is known of ourselves.
func (r *Registrar) look(ctx context.Context, client *cluster.Client) (cluster.Snapshot, Life, error) {
	before := r.Life()
	if !r.ByInstance {
		seen, err := client.SnapshotOf(ctx, cluster.Who{Name: before.Name, Registered: before.Name, Oldest: r.adopting()})
		return seen, r.Life(), err
	}
	id := before.Instance
	if id == "" {
		return cluster.Snapshot{}, before, fmt.Errorf("%w: it is not known which process of the broker answers", lease.ErrDeferred)
	}
	who := cluster.Who{Name: before.Name, Registered: id, Former: formerID(before.Past.Instance, nil, id), Oldest: true}
	seen, err := client.SnapshotOf(ctx, who)
	if former := formerID(before.Past.Instance, seen.Member, id); err == nil && former != who.Former {
		who.Former = former
		seen, err = client.SnapshotOf(ctx, who)
	}
	now := r.Life()
	if err == nil && (now.Instance != id || now.Past.Instance != before.Past.Instance) {
		err = fmt.Errorf("another process of the broker answers: %w", cluster.ErrChanged)
	}
	return seen, now, err
}

// formerID is the id under which the process before the one that answers was registered;
// empty: there is none. The member record knows more than a state file that was lost or
// is old; but what it says of the process that answers may be half done.
func formerID(remembered string, m *cluster.Member, id string) string {
	if m != nil && m.RegisteredAs != "" && m.RegisteredAs != id {
		return m.RegisteredAs
	}
	if remembered != id {
		return remembered
	}
	return ""
}

// succession gathers what etcd shows of the process that answers and of the one before.
func (r *Registrar) succession(seen cluster.Snapshot, m Past) recovery.SuccessionFacts {
	f := recovery.SuccessionFacts{
		Own: r.holder(seen, m), OwnState: ModeOf(seen.State), OwnGarbled: seen.StateMalformed != "",
		FormerState: ModeOf(seen.Former.State), FormerGarbled: seen.Former.StateMalformed != "",
	}
	f.OwnBound = seen.Registration != nil && boundBy(seen.Member, *seen.Registration, m.Incarnation)
	switch former := seen.Former.Registration; {
	case former == nil:
	case boundLastByAnother(seen.Member, *former, m.Incarnation):
		f.Former = recovery.Another
	case boundBy(seen.Member, *former, m.Incarnation), former.CreateRevision == m.Epoch:
		f.Former = recovery.Us
	}
	return f
}

// boundBy reports whether the incarnation bound the registration, which has stood since.
func boundBy(m *cluster.Member, reg cluster.Registration, incarnation string) bool {
	return m != nil && m.Incarnation == incarnation && m.RegisteredAs == reg.BrokerID && m.ModRevision >= reg.CreateRevision
}

// boundLastByAnother reports whether nobody wrote the registration since another
// incarnation bound it.
func boundLastByAnother(m *cluster.Member, reg cluster.Registration, incarnation string) bool {
	return m != nil && m.Incarnation != incarnation && m.WrittenWith(reg)
}

// ModeOf is the mode that a state key has; nil: there is none.
func ModeOf(s *cluster.State) *recovery.ModeRecord {
	if s == nil {
		return nil
	}
	return &recovery.ModeRecord{Mode: recovery.Mode(s.Mode), Reason: recovery.Reason(s.Reason), By: s.By}
}

// wentUnseen reports whether the former process's registration had gone before anybody was
// registered who is now: nobody gives its topics to others. What etcd has compacted nobody can
// tell any more.
func (r *Registrar) wentUnseen(ctx context.Context, client *cluster.Client, seen cluster.Snapshot) (bool, error) {
	first := seen.Registration.CreateRevision
	if peer := seen.OldestPeerRevision; peer != 0 {
		first = min(first, peer)
	}
	if first <= 1 || seen.Former.BrokerID == "" || seen.Former.Registration != nil {
		return false, nil
	}
	there, err := client.RegisteredAt(ctx, seen.Former.BrokerID, first-1)
	if errors.Is(err, cluster.ErrCompacted) {
		return false, nil
	}
	return err == nil && !there, err
}

// succeed puts the registration of a new process under a lease of ours, with the mode and
// with what the former process had, if that one was not declared dead. The lease that we hold
// runs out, with what a process before that one may still have.
func (r *Registrar) succeed(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now Life, out *Outcome) error {
	unseen, err := r.wentUnseen(ctx, client, seen)
	if err != nil {
		return err
	}
	plan := cluster.Succession{
		Seen: seen, Retire: out.succession.Former == recovery.Us, Move: out.succession.HandsOver(out.Decision, unseen),
		Begins: out.begins,
		Member: r.comesBack(seen, now, out),
	}
	if plan.Move && now.Unfenced {
		return fmt.Errorf("%w: the broker's new process is fenced first, and given its topics then", lease.ErrDeferred)
	}
	if out.Decision.Write {
		plan.State = StateOf(out.Decision.Mode)
	}
	grant, err := r.grant(ctx, client)
	if err != nil {
		return err
	}
	keep := func(ctx context.Context) error { // all three, however long this takes
		_, err := client.KeepAlive(ctx, grant.LeaseID)
		return cmp.Or(keepBeside(ctx, client, seen.Former.Registration), keepBeside(ctx, client, seen.Registration), err)
	}
	if err := keep(ctx); err != nil {
		r.discard(ctx, client, grant.LeaseID, err)
		return err
	}
	plan.LeaseID = grant.LeaseID
	undo := r.Handing(seen.BrokerID, grant)
	done, err := client.Succeed(ctx, plan, keep)
	if err != nil {
		if done.Registration.LeaseID == 0 && r.discard(ctx, client, grant.LeaseID, err) {
			undo()
		}
		return err
	}
	out.StateRevision = seen.StateRevision
	if plan.State != nil {
		out.StateRevision = done.Registration.ModRevision
	}
	out.Repaired, out.Former, out.Moved = UnderItsOwn, seen.Former.BrokerID, done.Moved
	grant.Epoch, grant.Adopted, grant.Revision = done.Registration.CreateRevision, true, done.Registration.ModRevision
	grant.ID = done.Registration.BrokerID
	out.Grant, out.Value, out.SeenAt = grant, done.Registration.Value, done.Registration.ModRevision
	return nil
}

// keepBeside renews the lease of a registration that a handover has begun with.
func keepBeside(ctx context.Context, client *cluster.Client, reg *cluster.Registration) error {
	if reg == nil || reg.LeaseID == 0 {
		return nil
	}
	_, err := client.KeepAlive(ctx, reg.LeaseID)
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return fmt.Errorf("lease %x of a process that is registered has gone: %w", reg.LeaseID, cluster.ErrChanged)
	}
	return err
}
