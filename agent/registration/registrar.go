package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Deps is what a Registrar is made of: settings, its way to etcd, and what it asks of its sidecar.
type Deps struct {
	Config     config.Config
	Run        string         // names this process in a value of our own
	ByInstance bool           // the broker registers itself under its instance
	Moved      bool           // the state directory is not where it was when it was last used
	Before     note.Confirmed // what the sidecar before this one noted last; zero: nothing
	Line       Line
	Clock      func() lease.Instant
	Log        *slog.Logger
	// Life is asked before each decision, and again after it.
	Life    func() Life
	Deliver func(context.Context, Outcome) error
	// Serves lists what the broker serves; nil: etcd does not say whose that is.
	Serves func(context.Context) ([]string, error)
	// Handing: assignments are about to be that process's, under that lease; nil without
	// byInstance.
	Handing func(instance string, under lease.Grant) (undo func())
	// Beside does something in the background, and has us asked again then; nil: nobody does.
	Beside func(do func(context.Context))
	Recall func(context.Context, LeftProcess) // told of a process that is to be stopped; nil: nobody asks
}

// Line is the renewals' own way to etcd.
type Line interface {
	KeepAlive(ctx context.Context, id int64, fresh bool) (lease.Renewal, error)
	Client() *cluster.Client
}

// Registrar makes the registration stand: it reads etcd in one transaction, has
// package recovery decide, and writes in one transaction guarded by what was read.
// It implements lease.Registrar, and is the Keeper's goroutine's but for Rival.
type Registrar struct {
	Deps
	Rival      atomic.Bool   // a copy of this sidecar is registered, or may be
	stood      bool          // a value with our run has stood
	sighted    sighting      // of the registration of a copy
	idle       int64         // lease that nobody else renews
	granted    time.Duration // what etcd makes of --lease-ttl; 0: not asked yet
	spare      lease.Grant   // was granted for a write that etcd refused, within one Establish
	listing    *listing      // under way, or not asked for yet
	strange    string        // see recovery.Facts
	unreadSaid string        // see noteUnread
	asks       *openQuestion // the suspicion that is open; nil: none is
}

// New makes a registrar that has decided nothing yet.
func New(d Deps) *Registrar { return &Registrar{Deps: d} }

// Tries bounds how often one Establish decides anew because etcd changed meanwhile.
const Tries = 4

// Establish implements lease.Registrar.
func (r *Registrar) Establish(ctx context.Context, held int64, fresh bool) (lease.Grant, error) {
	client, err := r.open(ctx, held, fresh)
	if err != nil {
		return lease.Grant{}, err
	}
	defer r.giveBack(ctx, client)
	for range Tries {
		var out Outcome
		out, err = r.once(ctx, client, held)
		again := errors.Is(err, cluster.ErrChanged)
		if err == nil {
			again, err = r.proven(ctx, out.Grant)
		}
		switch {
		case err == nil:
			r.stood, r.listing = true, nil
			if err := r.Deliver(ctx, out); err != nil {
				return lease.Grant{}, err
			}
			return out.Grant, nil
		case !again:
			return lease.Grant{}, LeaseError(err)
		}
	}
	return lease.Grant{}, err
}

// open is the way to etcd for one Establish.
func (r *Registrar) open(ctx context.Context, held int64, fresh bool) (*cluster.Client, error) {
	if fresh {
		// An earlier call got no answer. Ask on a new connection; any answer proves it.
		// Of a registration that may be a copy's no lease is renewed: it would seem to live.
		if r.Moved && !r.stood {
			held = 0
		}
		renewing, done := context.WithTimeout(ctx, r.Config.Timing().AttemptTimeout())
		_, err := r.Line.KeepAlive(renewing, max(held, 1), true)
		done()
		if err != nil && !errors.Is(err, lease.ErrLost) {
			// Some ways carry everything but renewals.
			if r.Line.Client().Reach(ctx) != nil {
				return nil, err
			}
		}
	}
	return r.Line.Client(), ctx.Err()
}

// once is one look, one decision, one transaction.
func (r *Registrar) once(ctx context.Context, client *cluster.Client, held int64) (Outcome, error) {
	seen, now, out, err := r.consider(ctx, client, nil)
	if err != nil {
		return Outcome{}, err
	}
	if err := outdated(out, r.Life()); err != nil {
		return Outcome{}, err
	}
	r.review(ctx, client, seen, now, &out)
	switch out.Decision.Step {
	case recovery.Conflict:
		return Outcome{}, fmt.Errorf("%w: %s", lease.ErrConflict, out.Decision.Detail)
	case recovery.Shutdown:
		return Outcome{}, &SessionEnd{recovery.ReasonSessionExpired, out.Decision.Detail}
	case recovery.Keep:
		switch {
		case out.Succeeds:
			err = r.succeed(ctx, client, seen, now, &out)
		default:
			err = r.keep(ctx, client, seen, held, now, &out)
		}
	default:
		err = r.register(ctx, client, seen, held, now, &out)
	}
	if err == nil {
		r.ask(client, seen, &out)
	}
	return out, err
}

// consider gathers what a decision rests on and decides. It writes nothing. over changes what
// was seen in etcd; nil: it is as it is.
func (r *Registrar) consider(ctx context.Context, client *cluster.Client, over func(cluster.Snapshot) cluster.Snapshot,
) (seen cluster.Snapshot, now Life, out Outcome, err error) {
	if seen, now, err = r.look(ctx, client); err != nil {
		return seen, now, out, err
	}
	r.noteUnread(seen)
	now.CutFrom = r.cutFrom(now)
	if over != nil {
		seen = over(seen)
	}
	if err = r.copied(ctx, client, seen, now.Past); err != nil {
		return seen, now, out, err
	}
	if err = r.recalled(ctx, seen, now); err != nil {
		return seen, now, out, err
	}
	if err = r.inventory(ctx, client, seen, now); err != nil {
		return seen, now, out, err
	}
	now.PauseEnds = r.Life().PauseEnds // all that took its time
	out = r.decide(seen, now)
	return seen, now, out, r.deferred(&out, now)
}

// register writes a registration that is not there, under a new lease.
func (r *Registrar) register(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, held int64, now Life, out *Outcome) error {
	if len(now.Value) == 0 {
		return r.unregistered(out)
	}
	grant, err := r.grant(ctx, client)
	if err != nil {
		return err
	}
	req := cluster.RegisterRequest{LeaseID: grant.LeaseID, Value: now.Value, Seen: seen, Member: r.comesBack(seen, now, out)}
	if out.Decision.Write {
		req.State = StateOf(out.Decision.Mode)
	}
	done, err := client.Register(ctx, req)
	if err != nil {
		if errors.Is(err, cluster.ErrChanged) {
			r.spare = grant
		} else {
			r.discard(ctx, client, grant.LeaseID, err)
		}
		return err
	}
	if held != 0 {
		r.leave(ctx, client, held)
	}
	if req.State != nil {
		out.StateRevision = done.Revision
	}
	if seen.Era.Unread != "" && !seen.AnyRegistered {
		out.Unread += fmt.Sprintf("; era %d is begun in its place", done.Era)
		r.Log.Warn("era that could not be read replaced", "was", seen.Era.Unread, "era", done.Era)
	}
	grant.Epoch, grant.Revision, grant.Adopted, grant.ID = done.Revision, done.Revision, r.adopting(), seen.BrokerID
	out.Grant, out.Value, out.SeenAt = grant, now.Value, done.Revision
	return nil
}

// unregistered is the error while there are no bytes to register. A process that is new
// registers itself soon; one that was registered does not again.
func (r *Registrar) unregistered(out *Outcome) error {
	if out.Boot != "" {
		return fmt.Errorf("%w: the broker has not registered itself yet: nothing to adopt", lease.ErrDeferred)
	}
	return ErrNothingToAdopt
}

// ErrNothingToAdopt says that a broker which registers itself has lost its registration, and that
// nobody knows the bytes to put it again with.
var ErrNothingToAdopt = errors.New("the broker's registration has gone and what it held is not known: nothing to adopt until the broker is restarted")

// keep goes on with a registration that is there: under the lease that it has if
// that is ours and lives, under a new one otherwise.
func (r *Registrar) keep(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, held int64, now Life, out *Outcome) error {
	reg := *seen.Registration
	grant, err := r.confirm(ctx, client, reg, held, out)
	if err != nil {
		return err
	}
	ours := grant.LeaseID == reg.LeaseID
	differs := !r.adopting() && len(now.Value) > 0 && string(reg.Value) != string(now.Value)
	if ours && differs && !fromBefore(reg.Value, now.Value) {
		out.Repaired = "value changed"
	}
	anew := !ours || differs || out.Repaired != "" || noted(seen) || now.Unsure != 0
	beside := untold(seen, now, out)
	if !anew && !beside && out.Decision.Write { // the member record is left as it is: it says by which era an open question was begun
		if out.StateRevision, err = client.PutState(ctx, seen.BrokerID, *StateOf(out.Decision.Mode), seen.StateRevision); err != nil {
			return err
		}
	}
	if anew || beside {
		stand := r.standing(seen, now, out)
		if anew {
			stand.LeaseID = grant.LeaseID
		}
		if differs {
			stand.Value = now.Value
		}
		revision, err := client.Keep(ctx, stand)
		if err != nil {
			if !ours && grant.LeaseID != held {
				r.discard(ctx, client, grant.LeaseID, err)
			}
			return err
		}
		if !ours && held != 0 && held != grant.LeaseID {
			r.leave(ctx, client, held)
		}
		if anew {
			reg.ModRevision = revision
		}
		if differs {
			reg.Value = now.Value
		}
		if stand.State != nil {
			out.StateRevision = revision
		}
	}
	grant.Epoch, grant.Adopted, grant.ID = reg.CreateRevision, r.adopting(), reg.BrokerID
	grant.Revision = max(grant.Revision, seen.Revision, reg.ModRevision)
	out.Grant, out.Value, out.SeenAt = grant, reg.Value, max(seen.Revision, reg.ModRevision)
	return nil
}

// stillThere is the error when a keep-alive says that a lease is gone whose key was read
// a moment ago. The key goes with its lease, so either etcd has yet to delete it, or what
// answered is behind and lies. The next look tells; nothing is lost until a read says so.
func stillThere(id int64, err error) error {
	return fmt.Errorf("%w: a keep-alive says that lease %x is gone, and the registration is there under it: %v", lease.ErrUnproven, id, err)
}

// renewed is what a renewal makes of a lease, once it is proven.
func renewed(id int64, sent lease.Instant, r cluster.Renewal) lease.Grant {
	return lease.Grant{LeaseID: id, SentAt: sent, TTL: r.Granted, Revision: r.Revision, Term: r.Term}
}

// confirm renews the lease that the registration has to be under, or grants one.
// What was wrong is noted in out.repaired.
func (r *Registrar) confirm(ctx context.Context, client *cluster.Client, reg cluster.Registration, held int64, out *Outcome) (lease.Grant, error) {
	switch {
	case reg.LeaseID == 0:
		out.Repaired = "no lease"
	case held != 0 && reg.LeaseID != held:
		out.Repaired = "foreign lease"
	case held == 0 && r.adopting():
		out.Repaired = UnderItsOwn
	}
	id := held
	if out.Repaired == "" {
		id = reg.LeaseID
	}
	if id != 0 {
		sent := r.Clock()
		renewal, err := client.KeepAlive(ctx, id)
		switch {
		case err == nil && (renewal.Granted == r.Config.LeaseTTL || renewal.Granted == r.granted):
			return renewed(id, sent, renewal), nil
		case err == nil && out.Repaired == "":
			out.Repaired = "other TTL"
		case err != nil && !errors.Is(err, cluster.ErrLeaseNotFound):
			return lease.Grant{}, err
		case err != nil && out.Repaired == "":
			return lease.Grant{}, stillThere(id, err)
		}
	}
	return r.grant(ctx, client)
}

// standing is what is written with a registration that is kept. What the record that goes with it says
// of its life, its health and its last cut stays.
func (r *Registrar) standing(seen cluster.Snapshot, now Life, out *Outcome) cluster.RegisterRequest {
	m := r.comesBack(seen, now, out)
	if was := seen.Member; was != nil && was.ModRevision >= seen.Registration.CreateRevision {
		m.Since, m.Away, m.Planned, m.Health, m.Cut = was.Since, was.Away, was.Planned, was.Health, was.Cut
	} // else the broker, or a backup, brought the key back before us
	if outlivedCut(seen, now) {
		m.Cut = &cluster.Cut{From: now.CutFrom, Until: time.Now(), Revision: cmp.Or(now.CutOver, seen.Revision)}
	}
	s := cluster.RegisterRequest{Seen: seen, Begins: out.begins, Member: m}
	if out.Decision.Write {
		s.State = StateOf(out.Decision.Mode)
	}
	return s
}

// StateOf is a mode as the state key has it, written now.
func StateOf(m recovery.ModeRecord) *cluster.State {
	return &cluster.State{Mode: string(m.Mode), Reason: string(m.Reason), By: m.By, At: time.Now()}
}

// untold reports whether the member record cannot be read, or does not know of data, a process, a cut or
// the end of a suspicion.
func untold(seen cluster.Snapshot, now Life, out *Outcome) bool {
	m := seen.Member
	return seen.MemberMalformed != "" || suspect(seen) != (out.Decision.Suspect != nil) ||
		m != nil && (m.Data != string(out.Data) || m.Instance != out.Instance || outlivedCut(seen, now))
}
