package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrLost is wrapped by an answer that says that the lease is gone.
var ErrLost = errors.New("lease not found")

// ErrConflict is wrapped by a Registrar that found the registration in the hands
// of another incarnation. It changed nothing.
var ErrConflict = errors.New("identity conflict")

// ErrShutdown is wrapped by a Registrar whose policy is to stop for good.
var ErrShutdown = errors.New("registration lost, shutting down")

// ErrDeferred is wrapped by a Registrar that may not decide yet. It changed nothing,
// and is asked again.
var ErrDeferred = errors.New("decision deferred")

// ErrForeign is wrapped by a proof that found a registration which is not ours: it is
// under another lease, newer, or of another process.
var ErrForeign = errors.New("registration is not ours")

// ErrUnproven is wrapped by a renewal that etcd confirmed and nothing proves. It is what
// a leader leaves behind that was deposed and does not know it.
var ErrUnproven = errors.New("renewal not proven")

// Renewal is what etcd answered to a keep-alive.
type Renewal struct {
	Granted  time.Duration
	Revision int64  // of the store
	Term     uint64 // raft term in the answer's header
}

// Line carries renewals. It belongs to the Keeper alone.
type Line interface {
	// KeepAlive renews the lease once. fresh asks for another way to the store, because
	// an earlier call is unanswered or failed, or its answer was out of date: a new
	// connection, to another endpoint if there are several. An error that wraps ErrLost
	// is an answer; any other is none.
	KeepAlive(ctx context.Context, id int64, fresh bool) (Renewal, error)
	// AwaitReconnect returns nil at the moment the connection comes back.
	AwaitReconnect(ctx context.Context) error
	// Revoke ends the lease; revoking one that is gone is success.
	Revoke(ctx context.Context, id int64) error
}

// Registrar makes the registration stand in etcd under a live lease, whatever is
// there now: it reads, decides, and writes in one transaction.
type Registrar interface {
	// Establish is told the lease that we hold or held (0: none) and returns the
	// one that the registration is bound to. fresh asks for a new connection.
	// What the Grant says is proven.
	Establish(ctx context.Context, held int64, fresh bool) (Grant, error)
	// Prove is one linearizable read of the registration, sent when it is called. Without
	// an error the registration is there and ours: lease, create revision and, where we
	// wrote it, the process that wrote it. term is the raft term of the answer, also
	// beside an error that wraps ErrLost (there is no registration) or ErrForeign. Any
	// other error is no answer. It is safe for concurrent use.
	Prove(ctx context.Context, g Grant) (term uint64, err error)
}

// Grant is a registration that stands.
type Grant struct {
	LeaseID  int64
	SentAt   Instant // send of the grant or of the renewal that confirmed it
	TTL      time.Duration
	Epoch    int64 // create revision of the registration
	Adopted  bool
	Revision int64  // store revision at which it was confirmed
	Term     uint64 // of the renewal that SentAt is of; 0: the lease is new
	ID       string // of the registration, for the Registrar
}

// SameTerm reports, as an error that wraps ErrUnproven, that the leader of a proof may be
// another one than the leader who renewed.
func SameTerm(renewed, read uint64) error {
	if renewed != read {
		return fmt.Errorf("%w: renewed in raft term %d, read in term %d", ErrUnproven, renewed, read)
	}
	return nil
}

// Settings of a Keeper.
type Settings struct {
	Timing       Timing
	RestartGrace time.Duration // revoke this long after it was renewed no more; 0: let the TTL run out
	Clock        func() Instant
	Classify     func(error) string // one word for metrics; every word in Classes
	Classes      []string
	Explain      func(error) error // what the log says of a failure; nil: the error itself
}

// Order is what becomes of the lease.
type Order int

// Orders. None but Renew asks for one or renews it.
const (
	Rest   Order = iota // the broker does not live: it is revoked once the restart grace is over
	Renew               // it is asked for and renewed
	RunOut              // nobody revokes it. What was due is done at once when this ends
	Revoke              // at once: what is to be known of that must have been made known before
)

// CauseLeft is the LostCause of a lease that was revoked at once: it was given up on purpose, which is no loss.
const CauseLeft = "left"

// Phase is what the Keeper is doing.
type Phase int

// Phases.
const (
	Idle      Phase = iota // it rests, and nothing is held
	Acquiring              // asking the Registrar
	Holding                // renewing
	Paused                 // it rests, and runs out by itself
	Contested              // another incarnation is registered
)

func (p Phase) String() string {
	return [...]string{"idle", "acquiring", "holding", "paused", "contested"}[p]
}

// View is what the Keeper knew at one moment. It is a value; readers compare its
// Validity with their own clock.
type View struct {
	Phase         Phase
	Grant         Grant // LeaseID 0: nothing is held
	Validity      Validity
	FailureStreak int
	LastError     string
	LastClass     string
	LostCause     string // why the last lease was lost; empty: none was
	Losses        int
	Renewals      int // confirmed since the lease was established
}

// FailingFor is the time since the send of the last confirmed renewal if renewals
// fail now, else 0.
func (v View) FailingFor(now Instant) time.Duration {
	if v.FailureStreak == 0 || !v.Validity.Known() {
		return 0
	}
	return now.Sub(v.Validity.SentAt)
}

// Keeper owns one lease. Run is its only goroutine that decides; the other methods
// may be called from anywhere.
type Keeper struct {
	set       Settings
	line      Line
	registrar Registrar
	log       *slog.Logger
	metrics   *metrics

	view    atomic.Pointer[View]
	changed chan struct{}
	order   atomic.Int32 // an Order
	renewed atomic.Bool  // Reestablish was asked for
	since   atomic.Int64 // Instant of RenewNow; 0: never
	nudge   chan struct{}
	foreign bool // of Run's goroutine: a proof found a registration that is not ours, and none since did better
	inStep  bool // of Run's goroutine: what confirmed the lease last may have come to a whole fleet at once
	// Of Run's goroutine: connections that come back, and wishes to ask the Registrar; when one
	// that failed while the lease is held is asked again.
	returns, asks haste
	again         *time.Timer
}

// NewKeeper returns a Keeper that rests. resume is the lease that an
// earlier process of this sidecar held, 0 if none; etcd decides what it is worth.
func NewKeeper(s Settings, line Line, r Registrar, resume int64, log *slog.Logger, reg prometheus.Registerer) *Keeper {
	if s.Clock == nil {
		s.Clock = BootClock
	}
	k := &Keeper{set: s, line: line, registrar: r, log: log,
		changed: make(chan struct{}, 1), nudge: make(chan struct{}, 1)}
	k.returns = haste{wait: backoff{initial: hasteInitial, max: s.Timing.BackoffMax}}
	k.asks = haste{wait: backoff{initial: hasteInitial, max: RetryCeiling}}
	k.view.Store(&View{Phase: Idle, Grant: Grant{LeaseID: resume}})
	k.metrics = newMetrics(reg, k)
	return k
}

// View returns what is known now.
func (k *Keeper) View() View { return *k.view.Load() }

// Changes has a value after the view changed.
func (k *Keeper) Changes() <-chan struct{} { return k.changed }

// Order says what becomes of the lease from now on. It is a level: saying it again changes nothing.
func (k *Keeper) Order(o Order) {
	if k.order.Swap(int32(o)) != int32(o) {
		k.wake()
	}
}

// renews reports whether the lease is to be renewed.
func (k *Keeper) renews() bool { return Order(k.order.Load()) == Renew }

// Reestablish has the Registrar look at the registration again, soon: the broker
// was restarted, or a watch saw the key change.
func (k *Keeper) Reestablish() {
	k.renewed.Store(true)
	k.wake()
}

// RenewNow has the lease renewed at once, whatever is on its way: a renewal that is
// confirmed counts as one from before unless it is sent from now on.
func (k *Keeper) RenewNow() {
	k.since.Store(int64(k.set.Clock()))
	k.wake()
}

// owed reports whether a renewal that was asked for is not confirmed yet.
func (k *Keeper) owed() bool { return k.View().Validity.SentAt < Instant(k.since.Load()) }

func (k *Keeper) wake() {
	select {
	case k.nudge <- struct{}{}:
	default:
	}
}

func (k *Keeper) publish(change func(v *View)) {
	v := k.View()
	change(&v)
	k.view.Store(&v)
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Run keeps the lease until ctx ends, which is no error, or the Registrar shuts
// down (ErrShutdown). It does not revoke: see Release.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		var err error
		switch v := k.View(); {
		case !k.renews():
			k.rest(ctx)
		case v.Phase != Holding:
			err = k.establish(ctx)
		case k.wanted(v):
			k.spaceAsks()
			err = k.establish(ctx)
		default:
			stop := k.wakeWhenFree()
			k.renew(ctx)
			stop()
		}
		if errors.Is(err, ErrShutdown) {
			return err
		}
	}
	return nil
}

// Release revokes the lease, so that nobody has to wait for its end. It must be
// called after Run returned.
func (k *Keeper) Release(ctx context.Context) error {
	id := k.View().Grant.LeaseID
	if id == 0 {
		return nil
	}
	if err := k.line.Revoke(ctx, id); err != nil {
		return err
	}
	k.publish(func(v *View) {
		v.Phase, v.Grant, v.Validity = Idle, Grant{}, Validity{}
	})
	return nil
}

// rest waits until the lease is to be renewed again. What is held runs towards its deadline.
func (k *Keeper) rest(ctx context.Context) {
	held := k.View().Validity.Known()
	k.publish(func(v *View) {
		v.Phase = Idle
		if held {
			v.Phase = Paused
		}
	})
	var grace <-chan time.Time
	if held && k.set.RestartGrace > 0 {
		t := time.NewTimer(k.set.RestartGrace)
		defer t.Stop()
		grace = t.C
	}
	for over, cause := false, "broker_down"; ; {
		order := Order(k.order.Load())
		if order == Renew || ctx.Err() != nil {
			return
		}
		if due := over && order == Rest || order == Revoke && (over || cause != CauseLeft); due {
			if over = false; order == Revoke {
				cause = CauseLeft
			}
			if k.View().Grant.LeaseID != 0 { // else it is gone already
				k.giveUp(ctx, cause)
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-k.nudge:
		case <-grace:
			over = true
		}
	}
}

// giveUp revokes the lease of a broker that did not come back within the grace, or that
// leaves. If etcd does not hear it, the TTL does the same later.
func (k *Keeper) giveUp(ctx context.Context, cause string) {
	id := k.View().Grant.LeaseID
	// etcd may act on the revocation before, or without, our hearing of it: nothing
	// is proven from here on.
	k.publish(func(v *View) { v.Validity, v.Phase = Validity{}, Idle })
	ctx, cancel := context.WithTimeout(ctx, k.set.Timing.AttemptTimeout())
	defer cancel()
	if err := k.line.Revoke(ctx, id); err != nil {
		k.log.Warn("could not revoke the lease: it runs out by itself", "lease", hex(id), "why", cause, "err", err)
		return
	}
	k.log.Info("lease revoked", "lease", hex(id), "why", cause, "grace", k.set.RestartGrace)
	k.lose(cause)
	k.publish(func(v *View) { v.Phase = Idle })
}

// lose forgets the lease. The registration is the Registrar's next question.
func (k *Keeper) lose(cause string) {
	k.publish(func(v *View) {
		v.Grant.LeaseID, v.Validity, v.Phase = 0, Validity{}, Acquiring
		v.LostCause, v.Losses = cause, v.Losses+1
	})
}

// establish asks the Registrar until the registration stands, it is to rest or
// ctx ends.
func (k *Keeper) establish(ctx context.Context) error {
	pause := backoff{initial: k.set.Timing.BackoffInitial, max: k.set.Timing.BackoffMax}
	reconnect := k.watchReconnect(ctx)
	defer func() { reconnect.stop() }()
	for ctx.Err() == nil && k.renews() {
		k.renewed.Store(false)
		if p := k.View().Phase; p != Holding && p != Contested { // a conflict lasts until an answer ends it
			k.publish(func(v *View) { v.Phase = Acquiring })
		}
		grant, err := k.ask(ctx, k.View().FailureStreak > 0)
		switch {
		case err == nil:
			k.established(grant)
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrShutdown):
			return err
		case !k.renews():
			k.renewed.Store(true) // not answered yet
			return nil            // we ended the call; that says nothing about etcd
		}
		k.refused(err)
		if k.View().Phase == Holding {
			// The lease may live while the Registrar fails: renewals must not wait for it.
			if k.again != nil {
				k.again.Stop() // one question at a time is enough
			}
			k.again = time.AfterFunc(k.set.Timing.BackoffMax, k.Reestablish)
			return nil
		}
		reconnect = k.idle(ctx, k.boundPause(pause.next(), k.set.Clock()), reconnect, pause.reset)
	}
	return nil
}

// ask runs one call of the Registrar, which ends when it is to rest. Its bound
// is that of a handful of round trips.
func (k *Keeper) ask(ctx context.Context, fresh bool) (Grant, error) {
	bound := max(2*k.set.Timing.AttemptTimeout(), 2*time.Second)
	if v := k.View(); v.Phase == Holding {
		// Renewals wait for the answer: leave them half of what is left to the fence point.
		bound = min(bound, max(MinAttemptTimeout, v.Validity.FencePoint().Sub(k.set.Clock())/2))
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	type answer struct {
		grant Grant
		err   error
	}
	c := make(chan answer, 1)
	go func() {
		g, err := k.registrar.Establish(ctx, k.View().Grant.LeaseID, fresh)
		c <- answer{g, err}
	}()
	for {
		select {
		case a := <-c:
			return a.grant, a.err
		case <-k.nudge:
			if !k.renews() {
				cancel()
			}
		}
	}
}

func (k *Keeper) established(g Grant) {
	k.metrics.renewals.WithLabelValues("established").Inc()
	k.foreign, k.inStep = false, true
	k.publish(func(v *View) {
		if v.Grant.LeaseID != g.LeaseID {
			v.Validity, v.Renewals = Validity{Margin: k.set.Timing.Margin}, 0
		}
		v.Validity.Margin = k.set.Timing.Margin
		v.Validity = v.Validity.Extend(g.SentAt, g.TTL)
		v.Phase, v.Grant = Holding, g
	})
	k.recovered()
}

func (k *Keeper) refused(err error) {
	if errors.Is(err, ErrConflict) {
		k.publish(func(v *View) {
			v.Phase, v.LastError, v.LastClass = Contested, err.Error(), "conflict"
			v.Grant, v.Validity = Grant{}, Validity{}
		})
		return
	}
	if errors.Is(err, ErrDeferred) {
		if v := k.View(); v.Phase != Holding && v.LastError != err.Error() {
			k.log.Info("registration waits", "why", strings.TrimPrefix(err.Error(), ErrDeferred.Error()+": "))
		}
		k.publish(func(v *View) {
			if v.Phase != Holding { // etcd answered
				v.FailureStreak, v.LastError, v.LastClass = 0, err.Error(), ""
			}
		})
		return
	}
	if errors.Is(err, ErrLost) && k.View().Grant.LeaseID != 0 {
		k.lose("lease_expired")
	}
	if k.View().Phase == Holding {
		// No renewal failed. If etcd is out of reach the next one will.
		k.log.Warn("registration not confirmed, asking again", "class", k.set.Classify(err), "err", err)
		return
	}
	k.failed(err)
}

// boundPause keeps retries close together while the lease may still be alive.
func (k *Keeper) boundPause(d time.Duration, now Instant) time.Duration {
	if !k.View().Validity.ExpiredAt(now) {
		d = min(d, RetryCeiling)
	}
	return d
}
