package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// life is what the registrar must know of the broker and of our own past.
type life struct {
	memory   memory
	mode     recovery.ModeRecord // zero: none was decided yet
	instance string              // broker process that answers now
	boot     recovery.BootFacts  // without KnownToCluster
	data     recovery.DataID     // of data that is the broker's own; empty: not known, or there is none
	value    []byte              // own: what to register
	// unseen: the data directory is yet to be looked at for that process.
	unseen bool
	// vanished: it was not there at the first look, and is yet to be looked at again.
	vanished bool
	modeRev  int64 // the highest revision of the state key that is known; 0: none of this key
	// retriesUsed: the limit of failed attempts since the loss is reached.
	retriesUsed bool
	// leaves: its departure is being noted, or was: see registrar_planned.go.
	leaves bool
	// recalls: a note of the sidecar before this one, that this very process is to be stopped,
	// is followed still.
	recalls bool
	// unfenced: the process that answers is yet to be fenced; what it is given now would be
	// taken from it again.
	unfenced bool
	// unsure counts the notes of a planned stop that may be written late, since the member
	// record was written last: it is written anew, which refuses them.
	unsure  int
	cutFrom time.Time      // since when we were cut off from etcd, until that is noted; zero: we were not
	cutOver int64          // revision at which we were back; 0: what is read now
	health  cluster.Health // see Member
}

// had is the mode before the decision: the loop's, or that of the sidecar before.
func (l life) had() recovery.ModeRecord {
	if l.mode.Mode != "" {
		return l.mode
	}
	return l.memory.mode()
}

// outcome is what the registrar found and did. The loop takes it up before the
// lease counts as held.
type outcome struct {
	decision recovery.Decision
	boot     recovery.BootKind // empty: the broker process is the one that was registered
	evidence []string
	grant    lease.Grant
	// seenAt is the store's revision at which the registration was seen or written. The
	// renewal that confirmed the lease may be younger, and says nothing about the key.
	// 0: as old as the grant.
	seenAt        int64
	instance      string
	data          recovery.DataID // that the broker has from now on
	stateRevision int64
	restored      bool // etcd is older than what we remember
	// succeeds: the process that answers is registered under another id than the one before.
	succeeds   bool
	begins     bool // an era: nobody else is registered
	succession recovery.SuccessionFacts
	former     string    // that one's id; empty: there was none
	moved      int       // assignments that were handed over
	repaired   string    // what was wrong with the registration; empty: nothing
	unread     string    // what could not be read in etcd, and where; empty: nothing
	value      []byte    // registration as it stands
	unsure     int       // see life
	cutFrom    time.Time // of the cut that was noted, or that the registration did not outlive
}

// underItsOwn is that the broker has registered itself, and nobody has adopted that yet. Nothing
// is wrong.
const underItsOwn = "broker's own lease"

// registrar makes the registration stand: it reads etcd in one transaction, has
// package recovery decide, and writes in one transaction guarded by what was read.
// It implements lease.Registrar.
type registrar struct {
	cfg        config.Config
	brokerID   string     // the stable name
	byInstance bool       // the broker registers itself under its instance
	run        string     // names this process in a value of our own
	stood      bool       // a value with our run has stood. Of the Keeper's goroutine
	moved      bool       // the state directory is not where it was when it was last used
	sighted    sighting   // of the registration of a copy. Of the Keeper's goroutine
	idle       int64      // lease that nobody else renews. Of the Keeper's goroutine
	rival      func(bool) // told whether a copy of this sidecar is registered, or may be; nil: nobody asks
	line       Line
	clock      func() lease.Instant
	log        *slog.Logger
	life       func() life
	deliver    func(context.Context, outcome) error
	paused     func() bool
	gone       func() bool                // the broker's process has ended; nil: do not ask
	up         func(instance string) bool // that process of the broker answers; nil: do not ask
	// handing: assignments are about to be that process's, under that lease; nil without
	// byInstance.
	handing func(instance string, under lease.Grant) (undo func())
	granted time.Duration // what etcd makes of --lease-ttl; 0: not asked yet. Of the Keeper's goroutine
	spare   lease.Grant   // was granted for a write that etcd refused, within one Establish. Of the Keeper's goroutine
	// others is whether other brokers are active, where no etcd knows them; nil: it does.
	others *bool
	// serves begins to list what the broker serves; nil: etcd does not say whose that is.
	serves     func(*listing)
	listing    *listing       // under way, or not asked for yet. Of the Keeper's goroutine
	strange    string         // see recovery.Facts. Of the Keeper's goroutine
	before     note.Confirmed // what the sidecar before this one noted last; zero: nothing
	unreadSaid string         // see noteUnread. Of the Keeper's goroutine
	// pauseEnds is when the maintenance pause in force ends; zero: there is none.
	pauseEnds func() time.Time
	asks      *openQuestion // the suspicion that is open; nil: none is. Of the Keeper's goroutine
	// later does something then, beside us, and has us asked again; nil: the Keeper asks by itself.
	later  func(time.Duration, func(context.Context))
	recall func(context.Context, leftProcess) // told of a process that is to be stopped; nil: nobody asks
}

// tries bounds how often one Establish decides anew because etcd changed meanwhile.
const tries = 4

// Establish implements lease.Registrar.
func (r *registrar) Establish(ctx context.Context, held int64, fresh bool) (lease.Grant, error) {
	client, err := r.open(ctx, held, fresh)
	if err != nil {
		return lease.Grant{}, err
	}
	defer r.giveBack(ctx, client)
	for range tries {
		var out outcome
		out, err = r.once(ctx, client, held)
		again := errors.Is(err, cluster.ErrChanged)
		if err == nil {
			again, err = r.proven(ctx, out.grant)
		}
		switch {
		case err == nil:
			r.stood, r.listing = true, nil
			if err := r.deliver(ctx, out); err != nil {
				return lease.Grant{}, err
			}
			return out.grant, nil
		case !again:
			return lease.Grant{}, leaseError(err)
		}
	}
	return lease.Grant{}, err
}

// open is the way to etcd for one Establish.
func (r *registrar) open(ctx context.Context, held int64, fresh bool) (*cluster.Client, error) {
	if fresh {
		// An earlier call got no answer. Ask on a new connection; any answer proves it.
		// Of a registration that may be a copy's no lease is renewed: it would seem to live.
		if r.moved && !r.stood {
			held = 0
		}
		renewing, done := context.WithTimeout(ctx, r.cfg.Timing().AttemptTimeout())
		_, err := r.line.KeepAlive(renewing, max(held, 1), true)
		done()
		if err != nil && !errors.Is(err, lease.ErrLost) {
			// Some ways carry everything but renewals.
			if r.line.Client().Reach(ctx) != nil {
				return nil, err
			}
		}
	}
	return r.line.Client(), ctx.Err()
}

// once is one look, one decision, one transaction.
func (r *registrar) once(ctx context.Context, client *cluster.Client, held int64) (outcome, error) {
	seen, now, out, err := r.consider(ctx, client, nil)
	if err != nil {
		return outcome{}, err
	}
	if err := cmp.Or(r.doubtful(out), r.leaves(out)); err != nil {
		return outcome{}, err
	}
	r.review(ctx, client, seen, now, &out)
	switch out.decision.Step {
	case recovery.Conflict:
		return outcome{}, fmt.Errorf("%w: %s", lease.ErrConflict, r.describeHolder(seen))
	case recovery.Shutdown:
		return outcome{}, &sessionEnd{recovery.ReasonSessionExpired, out.decision.Detail}
	case recovery.Keep:
		switch {
		case out.succeeds:
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
func (r *registrar) consider(ctx context.Context, client *cluster.Client, over func(cluster.Snapshot) cluster.Snapshot) (seen cluster.Snapshot, now life, out outcome, err error) {
	if seen, now, err = r.look(ctx, client); err != nil {
		return seen, now, out, err
	}
	r.noteUnread(seen)
	now.cutFrom = r.cutFrom(now)
	if over != nil {
		seen = over(seen)
	}
	if err = r.copied(ctx, client, seen, now.memory); err != nil {
		return seen, now, out, err
	}
	if err = r.recalled(ctx, seen, now); err != nil {
		return seen, now, out, err
	}
	if err = r.inventory(ctx, client, seen, now); err != nil {
		return seen, now, out, err
	}
	out = r.decide(seen, now)
	return seen, now, out, r.deferred(&out, now)
}

// register writes a registration that is not there, under a new lease.
func (r *registrar) register(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, held int64, now life, out *outcome) error {
	if len(now.value) == 0 {
		return r.unregistered(out)
	}
	grant, err := r.grant(ctx, client)
	if err != nil {
		return err
	}
	req := cluster.RegisterRequest{
		LeaseID: grant.LeaseID, Value: now.value, Seen: seen,
		Member: r.comesBack(seen, now, *out, cluster.Member{Incarnation: now.memory.Incarnation, Data: string(out.data), Instance: out.instance, Health: now.health, At: time.Now()}),
	}
	if out.decision.Write {
		req.State = stateWrite(out.decision.Mode)
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
		out.stateRevision = done.Revision
	}
	if seen.Era.Unread != "" && !seen.AnyRegistered {
		out.unread += fmt.Sprintf("; era %d is begun in its place", done.Era)
		r.log.Warn("era that could not be read replaced", "was", seen.Era.Unread, "era", done.Era)
	}
	grant.Epoch, grant.Revision, grant.Adopted, grant.ID = done.Revision, done.Revision, r.adopting(), seen.BrokerID
	out.grant, out.value, out.seenAt = grant, now.value, done.Revision
	return nil
}

// unregistered is the error while there are no bytes to register. A process that is new
// registers itself soon; one that was registered does not again.
func (r *registrar) unregistered(out *outcome) error {
	if out.boot != "" {
		return fmt.Errorf("%w: the broker has not registered itself yet: nothing to adopt", lease.ErrDeferred)
	}
	return errNothingToAdopt
}

// errNothingToAdopt says that a broker which registers itself has lost its registration, and that
// nobody knows the bytes to put it again with.
var errNothingToAdopt = errors.New("the broker's registration has gone and what it held is not known: nothing to adopt until the broker is restarted")

// keep goes on with a registration that is there: under the lease that it has if
// that is ours and lives, under a new one otherwise.
func (r *registrar) keep(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, held int64, now life, out *outcome) error {
	reg := *seen.Registration
	grant, err := r.confirm(ctx, client, reg, held, out)
	if err != nil {
		return err
	}
	ours := grant.LeaseID == reg.LeaseID
	differs := ours && !r.adopting() && len(now.value) > 0 && string(reg.Value) != string(now.value)
	if differs && !fromBefore(reg.Value, now.value) {
		out.repaired = "value changed"
	}
	if !ours || differs || out.repaired != "" || noted(seen) || now.unsure != 0 {
		stand := r.standing(seen, now, out)
		stand.LeaseID = grant.LeaseID
		if !r.adopting() && len(now.value) > 0 && string(now.value) != string(reg.Value) {
			stand.Value = now.value
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
		if reg.ModRevision = revision; stand.Value != nil {
			reg.Value = stand.Value
		}
		if stand.State != nil {
			out.stateRevision = revision
		}
	} else if err := r.stand(ctx, client, seen, now, out); err != nil {
		return err
	}
	grant.Epoch, grant.Adopted, grant.ID = reg.CreateRevision, r.adopting(), reg.BrokerID
	grant.Revision = max(grant.Revision, seen.Revision, reg.ModRevision)
	out.grant, out.value, out.seenAt = grant, reg.Value, max(seen.Revision, reg.ModRevision)
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
func (r *registrar) confirm(ctx context.Context, client *cluster.Client, reg cluster.Registration, held int64, out *outcome) (lease.Grant, error) {
	switch {
	case reg.LeaseID == 0:
		out.repaired = "no lease"
	case held != 0 && reg.LeaseID != held:
		out.repaired = "foreign lease"
	case held == 0 && r.adopting():
		out.repaired = underItsOwn
	}
	id := held
	if out.repaired == "" {
		id = reg.LeaseID
	}
	if id != 0 {
		sent := r.clock()
		renewal, err := client.KeepAlive(ctx, id)
		switch {
		case err == nil && (renewal.Granted == r.cfg.LeaseTTL || renewal.Granted == r.granted):
			return renewed(id, sent, renewal), nil
		case err == nil && out.repaired == "":
			out.repaired = "other TTL"
		case err != nil && !errors.Is(err, cluster.ErrLeaseNotFound):
			return lease.Grant{}, err
		case err != nil && out.repaired == "":
			return lease.Grant{}, stillThere(id, err)
		}
	}
	return r.grant(ctx, client)
}

// standing is what is written with a registration that is kept.
func (r *registrar) standing(seen cluster.Snapshot, now life, out *outcome) cluster.RegisterRequest {
	s := cluster.RegisterRequest{Seen: seen, Begins: out.begins, Member: cluster.Member{Incarnation: now.memory.Incarnation, Data: string(out.data),
		Instance: out.instance, At: time.Now(), Health: healthNote(seen, now), Cut: cutNote(seen, now), Suspect: suspectNote(out.decision)}}
	if m := seen.Member; m != nil && m.ModRevision >= seen.Registration.CreateRevision {
		s.Since, s.Away, s.Planned = m.Since, m.Away, m.Planned
	} else { // the broker, or a backup, brought the key back before us
		s.Member = r.comesBack(seen, now, *out, s.Member)
	}
	if out.decision.Write {
		s.State = stateWrite(out.decision.Mode)
	}
	return s
}

func stateWrite(m recovery.ModeRecord) *cluster.State {
	return &cluster.State{Mode: string(m.Mode), Reason: string(m.Reason), By: m.By, At: time.Now()}
}

// newRegistrar is the registrar of this sidecar. It asks nothing of the Keeper, which is made
// after it, until it is asked itself.
func (a *agent) newRegistrar() *registrar {
	r := &registrar{cfg: a.cfg, run: a.run, moved: a.memory.movedTo(a.place), rival: a.rival.Store, line: a.line, clock: a.clock, log: a.log.With("part", "lease"),
		life: func() life { return *a.life.Load() }, deliver: a.deliver, paused: a.paused,
		up: a.answers, gone: a.brokerGone, byInstance: a.traits.Registers, handing: a.beginHandover, pauseEnds: a.pauseEnds, before: a.recalled,
		later:  a.later,
		recall: func(ctx context.Context, left leftProcess) { a.tell(ctx, func() { a.recallLeft(&left) }) }}
	if !a.traits.Places {
		r.serves = a.listOnce
	}
	return r
}
