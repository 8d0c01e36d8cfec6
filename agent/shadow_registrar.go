package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// shadowRegistrar decides with the registrar's own tables on what etcd really holds,
// and writes nothing. It implements lease.Registrar.
type shadowRegistrar struct {
	*registrar
	shadow *shadow
}

// Establish implements lease.Registrar.
func (r shadowRegistrar) Establish(ctx context.Context, held int64, fresh bool) (lease.Grant, error) {
	client, err := r.open(ctx, held, fresh)
	if err != nil {
		return lease.Grant{}, err
	}
	grant, alive, err := r.ownLease(ctx, client, held)
	if err != nil {
		return lease.Grant{}, leaseError(err)
	}
	supposed := func(seen cluster.Snapshot) cluster.Snapshot { return r.shadow.store.over(seen, alive) }
	seen, now, out, err := r.consider(ctx, client, supposed)
	if err != nil {
		return lease.Grant{}, leaseError(err)
	}
	r.review(ctx, client, seen, now, &out)
	switch out.decision.Step {
	case recovery.Conflict:
		return lease.Grant{}, fmt.Errorf("%w: %s", lease.ErrConflict, r.describeHolder(seen))
	case recovery.Shutdown:
		if r.shadow.store.stopsFirst() {
			r.shadow.would(actStop, out.decision.Detail)
		}
		return lease.Grant{}, fmt.Errorf("%w: %s", errShadowShutdown, out.decision.Detail)
	}
	if out.decision.Step != recovery.Keep && len(now.value) == 0 {
		return lease.Grant{}, r.unregistered(&out)
	}
	if !alive {
		if grant, err = r.grant(ctx, client); err != nil {
			return lease.Grant{}, leaseError(err)
		}
	}
	r.suppose(&grant, &out, seen, now)
	r.ask(client, seen, &out)
	if grant.Term != 0 {
		term, err := r.Prove(ctx, grant)
		if err == nil {
			err = lease.SameTerm(grant.Term, term)
		}
		if err != nil {
			return lease.Grant{}, err
		}
	}
	if err := r.deliver(ctx, out); err != nil {
		return lease.Grant{}, err
	}
	return grant, nil
}

// ownLease renews the lease that is held. It is ours alone: what a shadow remembers
// does not outlive its process.
func (r shadowRegistrar) ownLease(ctx context.Context, client *cluster.Client, held int64) (g lease.Grant, alive bool, err error) {
	if held == 0 {
		return g, false, nil
	}
	sent := r.clock()
	renewal, err := client.KeepAlive(ctx, held)
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return g, false, nil
	}
	return renewed(held, sent, renewal), err == nil, err
}

// Prove implements lease.Registrar. Nothing stands under a shadow's lease: that it is there,
// and that the leader who renewed it is still the leader, is all that there is to prove.
func (r shadowRegistrar) Prove(ctx context.Context, g lease.Grant) (term uint64, err error) {
	client := r.line.Client()
	if _, term, err = client.Registered(ctx, r.brokerID); err != nil {
		return 0, err
	}
	left, err := client.LeaseLeft(ctx, g.LeaseID)
	if err == nil && !left.Found {
		err = lease.ErrLost
	}
	return term, err
}

// suppose fills in what the transaction would have written, and remembers it.
func (r shadowRegistrar) suppose(grant *lease.Grant, out *outcome, seen cluster.Snapshot, now life) {
	value := now.value
	keep := out.decision.Step == recovery.Keep
	if keep && (r.adopting() || len(value) == 0) {
		value = seen.Registration.Value
	}
	grant.Adopted, grant.Revision = r.adopting(), max(grant.Revision, seen.Revision)
	switch {
	case !keep:
		grant.Epoch = r.shadow.store.register(seen, grant.LeaseID, value, now.memory.Incarnation)
		r.shadow.would(actRegister, fmt.Sprintf("%s under lease %x", seen.BrokerID, grant.LeaseID))
	case seen.Registration.LeaseID != grant.LeaseID || string(seen.Registration.Value) != string(value):
		out.repaired = "foreign lease"
		grant.Epoch = r.shadow.store.rebind(seen, grant.LeaseID, value, now.memory.Incarnation)
		r.shadow.would(actRebind, fmt.Sprintf("the registration of %s to lease %x", seen.BrokerID, grant.LeaseID))
		if out.succeeds {
			out.former = seen.Former.BrokerID
		}
	default:
		grant.Epoch = seen.Registration.CreateRevision
	}
	if out.decision.Write {
		out.stateRevision = r.shadow.store.setState(seen.BrokerID, *stateWrite(out.decision.Mode), r.shadow.store.stateThere())
		r.shadow.would(actSetMode, string(out.decision.Mode.Mode)+" ("+string(out.decision.Mode.Reason)+")")
	}
	r.shadow.store.suspects(suspectNote(out.decision))
	out.grant, out.value = *grant, value
}

// shadowStore is what would stand in etcd beside what really does. Each part yields
// to what others write.
type shadowStore struct {
	mu           sync.Mutex
	epoch        int64                 // the last that was given
	registration *cluster.Registration // nil: none is supposed
	regBase      int64                 // mod revision of the real one that it would have replaced
	member       *cluster.Member
	era          int64
	state        *cluster.State
	stateOf      string           // the id that it is of
	stateBase    int64            // mod revision of the real one that it would have replaced
	stopped      bool             // the session policy would have ended everything
	there        cluster.Snapshot // as it was last read
}

// over lays what is supposed over what etcd holds. The registration goes with its
// lease, as it would in etcd.
func (s *shadowStore) over(seen cluster.Snapshot, leaseLives bool) cluster.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there = seen
	if s.registration != nil && s.registration.BrokerID != seen.BrokerID {
		s.overFormer(&seen, leaseLives)
	} else {
		base := int64(0)
		if seen.Registration != nil {
			base = seen.Registration.ModRevision
		}
		if !leaseLives || base != s.regBase {
			s.registration = nil
		}
		if s.registration != nil {
			r := *s.registration
			seen.Registration, seen.AnyRegistered = &r, true
		}
	}
	if s.member != nil && (seen.Member == nil || seen.Member.ModRevision < s.member.ModRevision) {
		m := *s.member
		seen.Member, seen.MemberMalformed = &m, ""
	}
	seen.Era.N = max(seen.Era.N, s.era)
	if s.state != nil && s.stateOf == seen.BrokerID && seen.StateRevision == s.stateBase {
		st := *s.state
		seen.State, seen.StateMalformed, seen.StateRevision = &st, "", st.ModRevision
	}
	return seen
}

// overFormer lays what is supposed of an earlier process, which had another id, over what
// etcd holds of that one.
func (s *shadowStore) overFormer(seen *cluster.Snapshot, leaseLives bool) {
	former := &seen.Former
	if former.BrokerID != s.registration.BrokerID {
		return
	}
	// The broker's own registration of it lives as long as the broker's lease does.
	if former.Registration != nil && leaseLives {
		r := *s.registration
		former.Registration = &r
	}
	if s.state != nil && s.stateOf == former.BrokerID && former.StateRevision == s.stateBase {
		st := *s.state
		former.State, former.StateMalformed, former.StateRevision = &st, "", st.ModRevision
	}
}

func (s *shadowStore) register(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string) (epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.era = seen.Era.N
	if !seen.AnyRegistered {
		s.era++
	}
	return s.bind(seen, leaseID, value, incarnation, max(seen.Revision, s.epoch)+1)
}

func (s *shadowStore) rebind(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string) (epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bind(seen, leaseID, value, incarnation, seen.Registration.CreateRevision)
}

func (s *shadowStore) bind(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string, epoch int64) int64 {
	s.regBase = 0
	if s.there.Registration != nil {
		s.regBase = s.there.Registration.ModRevision
	}
	s.stopped = false
	at := max(seen.Revision, epoch)
	s.epoch = max(s.epoch, epoch)
	s.registration = &cluster.Registration{BrokerID: seen.BrokerID, Value: value, LeaseID: leaseID, CreateRevision: epoch, ModRevision: at}
	s.member = &cluster.Member{Era: max(s.era, seen.Era.N), Revision: seen.Revision, Incarnation: incarnation, ModRevision: at}
	if seen.Name != seen.BrokerID {
		s.member.RegisteredAs = seen.BrokerID
	}
	return epoch
}

// suspects has the supposed member record say whether a suspicion is open.
func (s *shadowStore) suspects(note *cluster.Suspect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != nil {
		s.member.Suspect = note
	}
}

// stopsFirst reports, once, that the policy stops the broker.
func (s *shadowStore) stopsFirst() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.stopped
	s.stopped = true
	return first
}

// stateThere is the mod revision of the state key as it was last read.
func (s *shadowStore) stateThere() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there.StateRevision
}

// setState supposes a state in place of the real one of that mod revision, at the
// store's present revision, which it returns.
func (s *shadowStore) setState(id string, w cluster.State, base int64) (revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := max(s.there.Revision, base)
	s.state = &cluster.State{Mode: w.Mode, Reason: w.Reason, By: w.By, At: w.At, ModRevision: at}
	s.stateOf, s.stateBase = id, base
	return at
}
