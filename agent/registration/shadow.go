package registration

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Shadow decides with the registrar's own tables on what etcd really holds,
// and writes nothing. It implements lease.Registrar.
type Shadow struct {
	*Registrar
	would func(act, about string) // counts what is not done
	store *Supposed
}

// What a registrar does.
const (
	ActRegister = "register" // write a registration that is not there
	ActRebind   = "rebind"   // put one that is there under our lease, or mend it
	ActSetMode  = "set_mode" // write the state key
	ActStop     = "stop"     // of the broker's process
)

// ErrShadowShutdown is that the session policy would have ended it.
var ErrShadowShutdown = errors.New("shadow: would have stopped the broker and ended")

// NewShadow is a registrar that writes nothing but what is supposed.
func NewShadow(r *Registrar, would func(act, about string), store *Supposed) *Shadow {
	return &Shadow{r, would, store}
}

// Establish implements lease.Registrar.
func (r *Shadow) Establish(ctx context.Context, held int64, fresh bool) (lease.Grant, error) {
	client, err := r.open(ctx, held, fresh)
	if err != nil {
		return lease.Grant{}, err
	}
	grant, alive, err := r.ownLease(ctx, client, held)
	if err != nil {
		return lease.Grant{}, LeaseError(err)
	}
	supposed := func(seen cluster.Snapshot) cluster.Snapshot { return r.store.over(seen, alive) }
	seen, now, out, err := r.consider(ctx, client, supposed)
	if err != nil {
		return lease.Grant{}, LeaseError(err)
	}
	r.review(ctx, client, seen, now, &out)
	switch out.Decision.Step {
	case recovery.Conflict:
		return lease.Grant{}, fmt.Errorf("%w: %s", lease.ErrConflict, out.Decision.Detail)
	case recovery.Shutdown:
		if r.store.stopsFirst() {
			r.would(ActStop, out.Decision.Detail)
		}
		return lease.Grant{}, fmt.Errorf("%w: %s", ErrShadowShutdown, out.Decision.Detail)
	}
	if out.Decision.Step != recovery.Keep && len(now.Value) == 0 {
		return lease.Grant{}, r.unregistered(&out)
	}
	if !alive {
		if grant, err = r.grant(ctx, client); err != nil {
			return lease.Grant{}, LeaseError(err)
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
	if err := r.Deliver(ctx, out); err != nil {
		return lease.Grant{}, err
	}
	return grant, nil
}

// ownLease renews the lease that is held. It is ours alone: what a shadow remembers
// does not outlive its process.
func (r *Shadow) ownLease(ctx context.Context, client *cluster.Client, held int64) (g lease.Grant, alive bool, err error) {
	if held == 0 {
		return g, false, nil
	}
	sent := r.Clock()
	renewal, err := client.KeepAlive(ctx, held)
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return g, false, nil
	}
	return renewed(held, sent, renewal), err == nil, err
}

// Prove implements lease.Registrar. Nothing stands under a shadow's lease: that it is there,
// and that the leader who renewed it is still the leader, is all that there is to prove.
func (r *Shadow) Prove(ctx context.Context, g lease.Grant) (term uint64, err error) {
	client := r.Line.Client()
	if _, term, err = client.Registered(ctx, r.Life().Name); err != nil {
		return 0, err
	}
	left, err := client.LeaseLeft(ctx, g.LeaseID)
	if err == nil && !left.Found {
		err = lease.ErrLost
	}
	return term, err
}

// suppose fills in what the transaction would have written, and remembers it.
func (r *Shadow) suppose(grant *lease.Grant, out *Outcome, seen cluster.Snapshot, now Life) {
	value := now.Value
	keep := out.Decision.Step == recovery.Keep
	if keep && (r.adopting() || len(value) == 0) {
		value = seen.Registration.Value
	}
	grant.Adopted, grant.Revision = r.adopting(), max(grant.Revision, seen.Revision)
	switch {
	case !keep:
		grant.Epoch = r.store.register(seen, grant.LeaseID, value, now.Past.Incarnation)
		r.would(ActRegister, fmt.Sprintf("%s under lease %x", seen.BrokerID, grant.LeaseID))
	case seen.Registration.LeaseID != grant.LeaseID || string(seen.Registration.Value) != string(value):
		out.Repaired = "foreign lease"
		grant.Epoch = r.store.rebind(seen, grant.LeaseID, value, now.Past.Incarnation)
		r.would(ActRebind, fmt.Sprintf("the registration of %s to lease %x", seen.BrokerID, grant.LeaseID))
		if out.Succeeds {
			out.Former = seen.Former.BrokerID
		}
	default:
		grant.Epoch = seen.Registration.CreateRevision
	}
	if out.Decision.Write {
		out.StateRevision = r.store.SetState(seen.BrokerID, *StateOf(out.Decision.Mode), r.store.stateThere())
		r.would(ActSetMode, string(out.Decision.Mode.Mode)+" ("+string(out.Decision.Mode.Reason)+")")
	}
	r.store.suspects(suspectNote(out.Decision))
	out.Grant, out.Value = *grant, value
}

// Supposed is what would stand in etcd beside what really does. Each part yields
// to what others write.
type Supposed struct {
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
func (s *Supposed) over(seen cluster.Snapshot, leaseLives bool) cluster.Snapshot {
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
func (s *Supposed) overFormer(seen *cluster.Snapshot, leaseLives bool) {
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

func (s *Supposed) register(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string) (epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.era = seen.Era.N
	if !seen.AnyRegistered {
		s.era++
	}
	return s.bind(seen, leaseID, value, incarnation, max(seen.Revision, s.epoch)+1)
}

func (s *Supposed) rebind(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string) (epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bind(seen, leaseID, value, incarnation, seen.Registration.CreateRevision)
}

func (s *Supposed) bind(seen cluster.Snapshot, leaseID int64, value []byte, incarnation string, epoch int64) int64 {
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
func (s *Supposed) suspects(note *cluster.Suspect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member != nil {
		s.member.Suspect = note
	}
}

// stopsFirst reports, once, that the policy stops the broker.
func (s *Supposed) stopsFirst() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.stopped
	s.stopped = true
	return first
}

// stateThere is the mod revision of the state key as it was last read.
func (s *Supposed) stateThere() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there.StateRevision
}

// SetState supposes a state in place of the real one of that mod revision, at the
// store's present revision, which it returns.
func (s *Supposed) SetState(id string, w cluster.State, base int64) (revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := max(s.there.Revision, base)
	s.state = &cluster.State{Mode: w.Mode, Reason: w.Reason, By: w.By, At: w.At, ModRevision: at}
	s.stateOf, s.stateBase = id, base
	return at
}
