package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// look reads what the decision rests on, and what is known of ourselves.
func (r *registrar) look(ctx context.Context, client *cluster.Client) (cluster.Snapshot, life, error) {
	if !r.byInstance {
		seen, err := client.SnapshotOf(ctx, cluster.Who{Name: r.brokerID, Registered: r.brokerID, Oldest: r.adopting()})
		return seen, r.life(), err
	}
	before := r.life()
	id := before.instance
	if id == "" {
		return cluster.Snapshot{}, before, fmt.Errorf("%w: it is not known which process of the broker answers", lease.ErrDeferred)
	}
	who := cluster.Who{Name: r.brokerID, Registered: id, Former: formerID(before.memory.Instance, nil, id), Oldest: true}
	seen, err := client.SnapshotOf(ctx, who)
	if former := formerID(before.memory.Instance, seen.Member, id); err == nil && former != who.Former {
		who.Former = former
		seen, err = client.SnapshotOf(ctx, who)
	}
	now := r.life()
	if err == nil && (now.instance != id || now.memory.Instance != before.memory.Instance) {
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
func (r *registrar) succession(seen cluster.Snapshot, m memory) recovery.SuccessionFacts {
	f := recovery.SuccessionFacts{
		Own: r.holder(seen, m), OwnState: modeOf(seen.State), OwnGarbled: seen.StateMalformed != "",
		FormerState: modeOf(seen.Former.State), FormerGarbled: seen.Former.StateMalformed != "",
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

func modeOf(s *cluster.State) *recovery.ModeRecord {
	if s == nil {
		return nil
	}
	return &recovery.ModeRecord{Mode: recovery.Mode(s.Mode), Reason: recovery.Reason(s.Reason), By: s.By}
}

// wentUnseen reports whether the former process's registration had gone before anybody was
// registered who is now: nobody gives its topics to others. What etcd has compacted nobody can
// tell any more.
func (r *registrar) wentUnseen(ctx context.Context, client *cluster.Client, seen cluster.Snapshot) (bool, error) {
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
func (r *registrar) succeed(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life, out *outcome) error {
	unseen, err := r.wentUnseen(ctx, client, seen)
	if err != nil {
		return err
	}
	plan := cluster.Succession{
		Seen: seen, Retire: out.succession.Former == recovery.Us, Move: out.succession.HandsOver(out.decision, unseen),
		Begins: out.begins,
		Member: r.comesBack(seen, now, *out, cluster.Member{Incarnation: now.memory.Incarnation, Data: string(out.data), Instance: out.instance, At: time.Now()}),
	}
	if plan.Move && now.unfenced {
		return fmt.Errorf("%w: the broker's new process is fenced first, and given its topics then", lease.ErrDeferred)
	}
	if out.decision.Write {
		plan.State = stateWrite(out.decision.Mode)
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
	undo := r.handing(seen.BrokerID, grant)
	done, err := client.Succeed(ctx, plan, keep)
	if err != nil {
		if done.Registration.LeaseID == 0 && r.discard(ctx, client, grant.LeaseID, err) {
			undo()
		}
		return err
	}
	out.stateRevision = seen.StateRevision
	if plan.State != nil {
		out.stateRevision = done.Registration.ModRevision
	}
	out.repaired, out.former, out.moved = underItsOwn, seen.Former.BrokerID, done.Moved
	grant.Epoch, grant.Adopted, grant.Revision = done.Registration.CreateRevision, true, done.Registration.ModRevision
	grant.ID = done.Registration.BrokerID
	out.grant, out.value, out.seenAt = grant, done.Registration.Value, done.Registration.ModRevision
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

// handover is what was begun for a process, and perhaps done: until the Registrar tells of
// it, it may have what it was to be given.
type handover struct {
	instance string
	validity lease.Validity // of the lease that it was put under: while it holds, the broker may serve
	fenced   bool           // anew, since that lease may have run out. The loop's
}

// beginHandover is called before anything is written, and undo where nothing was: what an attempt
// before this one may have written stays, under a lease that each attempt renews.
func (a *agent) beginHandover(instance string, under lease.Grant) (undo func()) {
	first := a.handed.Load() == nil
	begun := &handover{instance: instance, validity: lease.Validity{SentAt: under.SentAt, TTL: under.TTL, Margin: a.cfg.LeaseDetachMargin}}
	a.handed.Store(begun)
	a.needAssignments("", 0)
	return func() {
		if first {
			a.handed.CompareAndSwap(begun, nil)
		}
	}
}

// handedTo is what that process may have been given; nil: nothing. held: under a lease that is
// known to hold.
func (a *agent) handedTo(instance string) (h *handover, held bool) {
	if h = a.handed.Load(); h == nil || h.instance != instance {
		return nil, false
	}
	return h, h.validity.HeldAt(a.clock())
}

// validity is until when the process that answers may serve, for all that is known. Where the
// answer to a handover was lost, it may be under the lease of that alone, which nobody renews
// before the Registrar has found it.
func (a *agent) validity() lease.Validity {
	v := a.keeper.View().Validity
	who, _ := a.identity.get()
	if h, _ := a.handedTo(who.Instance); h != nil && h.validity.Deadline() < v.Deadline() {
		return h.validity
	}
	return v
}

// fenceAnew ends a proof that the process serves nothing which is older than what it may
// have been given since.
func (a *agent) fenceAnew() {
	f := &a.fencing
	waited := f.waited
	f.waited = a.waitsToBeAttached()
	if !f.reached.Proven() || f.underway != recovery.StepNone {
		return
	}
	h, held := a.handedTo(f.instance)
	switch {
	case waited && !f.waited && f.reached == recovery.FenceQuiesced: // it might serve what it was given
		a.endFencing()
	case h != nil && !held && !h.fenced:
		h.fenced = true
		a.endFencing()
	}
}
