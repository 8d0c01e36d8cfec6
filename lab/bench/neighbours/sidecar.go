package neighbours

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/lab/bench/kit"
)

// timing is the default of a sidecar's settings.
var timing = lease.Timing{TTL: 32 * time.Second, RenewInterval: 4 * time.Second, Margin: 32 * time.Second / 3,
	BackoffInitial: 250 * time.Millisecond, BackoffMax: 5 * time.Second}

// sidecar is what one is to etcd.
type sidecar struct {
	id     string
	fleet  *fleet
	main   *cluster.Client // watches
	line   *cluster.Line   // renewals and their proofs
	keeper *lease.Keeper
	sent   atomic.Int64 // when the renewal that is on its way was sent
	proven atomic.Int64 // when the last one that is proven was, by one that is not detached
	cut    atomic.Int64 // the last before it was detached; 0: it is not
	cuts   atomic.Int64 // how often it was
	listed [3]atomic.Int64
}

func newSidecar(f *fleet, id string) (*sidecar, error) {
	cfg := cluster.Config{Endpoints: []string{f.endpoint}}
	s := &sidecar{id: id, fleet: f}
	var err error
	if s.main, err = cluster.Open(cfg, nil); err != nil {
		return nil, err
	}
	if s.line, err = cluster.OpenLine(cfg, nil); err != nil {
		return nil, errors.Join(err, s.main.Close())
	}
	s.keeper = lease.NewKeeper(lease.Settings{
		Timing: timing, Classify: func(err error) string { return string(cluster.Classify(err)) },
	}, s, s, 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	s.keeper.Order(lease.Renew)
	return s, nil
}

// run is the sidecar's life.
func (s *sidecar) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { _ = s.keeper.Run(ctx) })
	keys := s.main.Keys()
	for i, t := range []cluster.Target{
		{Key: keys.State(s.id)}, {Key: keys.Registration(s.id)}, {Key: keys.Assignments(s.id), Prefix: true, KeysOnly: true},
	} {
		parts.Go(func() {
			_ = s.main.Follow(ctx, t, func(u cluster.Update) {
				if u.Full {
					s.listed[i].Store(time.Now().UnixNano())
				}
			}, nil)
		})
	}
	parts.Wait()
	s.line.Close()
	s.main.Close()
}

// attached reports whether a renewal that was sent since then is proven.
func (s *sidecar) attached(since time.Time) bool { return s.proven.Load() >= since.UnixNano() }

// watching reports whether everything that is watched was listed since then.
func (s *sidecar) watching(since time.Time) bool {
	for i := range s.listed {
		if s.listed[i].Load() < since.UnixNano() {
			return false
		}
	}
	return true
}

// KeepAlive implements lease.Line.
func (s *sidecar) KeepAlive(ctx context.Context, id int64, fresh bool) (lease.Renewal, error) {
	s.sent.Store(time.Now().UnixNano())
	if v := s.keeper.View().Validity; v.Known() && !v.HeldAt(lease.BootClock()) && s.cut.CompareAndSwap(0, s.proven.Load()) {
		s.cuts.Add(1)
	}
	renewal, err := s.line.KeepAlive(ctx, id, fresh)
	return lease.Renewal(renewal), lost(err)
}

// AwaitReconnect implements lease.Line.
func (s *sidecar) AwaitReconnect(ctx context.Context) error { return s.line.AwaitReconnect(ctx) }

// Revoke implements lease.Line.
func (s *sidecar) Revoke(ctx context.Context, id int64) error { return s.main.Revoke(ctx, id) }

// Prove implements lease.Registrar.
func (s *sidecar) Prove(ctx context.Context, g lease.Grant) (uint64, error) {
	sent := s.sent.Load()
	reg, term, err := s.line.Client().Registered(ctx, s.id)
	switch {
	case err != nil:
		return 0, err
	case reg == nil:
		return term, fmt.Errorf("%w: no registration", lease.ErrLost)
	case reg.LeaseID != g.LeaseID || reg.CreateRevision != g.Epoch:
		return term, lease.ErrForeign
	}
	s.fleet.proved(time.Unix(0, sent), time.Now())
	if s.cut.Load() != 0 { // its fence point has passed: it looks at everything, and notes that
		s.keeper.Reestablish()
	} else {
		s.proven.Store(sent)
	}
	return term, nil
}

// Establish implements lease.Registrar: one look, one transaction.
func (s *sidecar) Establish(ctx context.Context, held int64, _ bool) (lease.Grant, error) {
	client := s.line.Client()
	for {
		seen, err := client.Snapshot(ctx, s.id)
		if err != nil {
			return lease.Grant{}, err
		}
		var g lease.Grant
		switch {
		case seen.Registration == nil:
			g, err = s.register(ctx, client, seen)
		case held != 0 && seen.Registration.LeaseID == held:
			g, err = s.resume(ctx, client, seen)
		default:
			return lease.Grant{}, fmt.Errorf("%w: %s is registered", lease.ErrDeferred, s.id)
		}
		if errors.Is(err, cluster.ErrChanged) {
			continue
		}
		return g, err
	}
}

func (s *sidecar) register(ctx context.Context, client *cluster.Client, seen cluster.Snapshot) (lease.Grant, error) {
	sent := lease.BootClock()
	s.sent.Store(time.Now().UnixNano())
	id, ttl, err := client.Grant(ctx, timing.TTL)
	if err != nil {
		return lease.Grant{}, err
	}
	done, err := client.Register(ctx, cluster.RegisterRequest{
		LeaseID: id,
		Value:   []byte(kit.Registration),
		Seen:    seen,
		State:   &cluster.State{Mode: cluster.ModeActive, Reason: "boot", By: "holdfast", At: time.Now()},
		Member:  cluster.Member{Incarnation: s.id, At: time.Now()},
	})
	if err != nil {
		return lease.Grant{}, errors.Join(err, client.Revoke(ctx, id))
	}
	s.cut.Store(0)
	s.proven.Store(s.sent.Load())
	return lease.Grant{LeaseID: id, SentAt: sent, TTL: ttl, Epoch: done.Revision, Revision: done.Revision, ID: s.id}, nil
}

// resume goes on with the registration after a cut, and notes that.
func (s *sidecar) resume(ctx context.Context, client *cluster.Client, seen cluster.Snapshot) (lease.Grant, error) {
	reg := *seen.Registration
	sent, at := lease.BootClock(), time.Now()
	renewal, err := client.KeepAlive(ctx, reg.LeaseID)
	if err != nil {
		return lease.Grant{}, lost(err)
	}
	revision, err := client.Keep(ctx, cluster.RegisterRequest{Seen: seen,
		Member: cluster.Member{Incarnation: s.id, At: at, Cut: &cluster.Cut{From: time.Unix(0, s.cut.Load()), Until: at, Revision: seen.Revision}}})
	if err != nil {
		return lease.Grant{}, err
	}
	_, term, err := client.Registered(ctx, s.id)
	if err := errors.Join(err, lease.SameTerm(renewal.Term, term)); err != nil {
		return lease.Grant{}, err
	}
	s.cut.Store(0)
	s.proven.Store(at.UnixNano())
	return lease.Grant{LeaseID: reg.LeaseID, SentAt: sent, TTL: renewal.Granted, Epoch: reg.CreateRevision, Revision: revision, Term: term, ID: s.id}, nil
}

func lost(err error) error {
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", lease.ErrLost, err)
	}
	return err
}
