package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/cluster/local"
	"holdfast/probes"
)

// With --registration none there is no etcd. The sidecar keeps for itself, in its state
// directory, what it would keep there, and decides by the same tables. The lease that it
// renews while its broker is well tells nobody else anything: it measures for how long the
// broker is away. Whether others lived on meanwhile is asked of the broker's own cluster.

// unleased is the value of --registration.
const unleased = "none"

// Unleased reports whether the broker's own cluster keeps its registration, and Holdfast
// only watches and steers: without etcd, without a lease that anybody else knows.
func (c Config) Unleased() bool { return c.Registration == unleased }

// refuseUnleased says why a broker cannot be watched and steered only; nil: it can.
func refuseUnleased(c Config, can brokerapi.Capabilities) error {
	if !c.Unleased() || can.Assigns && !can.Registers && can.Peers {
		return nil
	}
	why := "its cluster does not keep its registration without Holdfast"
	if can.Assigns && !can.Registers {
		why = "its driver cannot ask it for the other brokers of its cluster"
	}
	return wrongSetting(fmt.Errorf("--registration none: not with this broker of --driver %s: %s: leave --registration out, and give --etcd-endpoints", c.Driver, why))
}

// storeFile is the store's name in the state directory.
const storeFile = "store.json"

// openLocal is the world's Etcd for a sidecar without one.
func (a *agent) openLocal(c cluster.Config, log *slog.Logger) (*cluster.Client, Line, error) {
	elsewhere := a.memory.keptIn(unleased)
	store, err := local.Open(local.Config{
		Path: filepath.Join(a.cfg.StateDir, storeFile), Clock: a.readClocks, BootID: a.hostBoot(), Ignore: elsewhere,
	}, log)
	if err != nil {
		return nil, nil, fmt.Errorf("--state-dir %s: %w: make it readable and writable for this user", a.cfg.StateDir, err)
	}
	a.local = store
	problem := store.Doubt()
	if problem == "" && !store.Found() && a.memory.FirstBootDone && !elsewhere {
		problem = filepath.Join(a.cfg.StateDir, storeFile) + " is gone"
	}
	if problem != "" {
		log.Error("store corrupt: the broker will be drained until an operator activates it", "detail", problem)
		a.memory.forgetStore()
		if a.memory.Distrust != "" {
			problem = a.memory.Distrust + "; " + problem
		}
		a.memory.Distrust = problem
	}
	client := cluster.Over(c, store.Conn(), log)
	return client, localLine{store, cluster.Over(c, store.Conn(), log)}, nil
}

// readClocks is the host's clocks as the store wants them.
func (a *agent) readClocks() local.Reading {
	if a.world.Clocks == nil {
		now := a.clock()
		return local.Reading{Boot: time.Duration(now), Mono: time.Duration(now), Wall: time.Now()}
	}
	c := a.world.Clocks()
	return local.Reading{Boot: time.Duration(c.Boot), Mono: c.Mono, Wall: c.Wall}
}

// watchedLocal tells the store that the loop runs and, once the broker has said who it is
// now, what the time was worth in which it did not.
func (a *agent) watchedLocal(verdict probes.Verdict, who brokerapi.Identity) {
	if a.local == nil {
		return
	}
	a.local.Watched()
	until, missed := a.local.Missed()
	if !missed || verdict != probes.Up || who.Instance == "" || a.identity.asked().Before(until) {
		return
	}
	same := who.Instance == a.memory.Instance
	started := who.StartedAt
	if started.IsZero() {
		started = a.brokerProcessStart()
	}
	a.local.Settle(same, started)
	a.log.Debug("time that nobody watched is settled", "same_process", same, "broker_started", started)
}

// unsettled reports whether it is not known yet what became of the broker while nobody
// watched. Nothing is decided before.
func (a *agent) unsettled() bool {
	if a.local == nil {
		return false
	}
	_, missed := a.local.Missed()
	return missed
}

// company asks the broker whether others of its cluster are active.
func (a *agent) company(ctx context.Context) (bool, error) {
	b, ok := a.broker.(brokerapi.PeerLister)
	if !ok {
		return false, errors.New("the broker does not tell of others")
	}
	peers, err := b.Peers(ctx)
	if err != nil {
		return false, err
	}
	for _, p := range peers {
		if p.Active {
			return true, nil
		}
	}
	return false, nil
}

// saveLocal writes what the store holds, so that no state file knows more than it.
func (a *agent) saveLocal() error {
	if a.local == nil {
		return nil
	}
	return a.local.Save()
}

// keptIn notes in which sort of store the registration is from now on; empty: an etcd. It
// reports whether it was another, whose leases and revisions mean nothing here. A memory
// without a past was in none.
func (m *memory) keptIn(store string) (changed bool) {
	changed = m.Store != store && (m.FirstBootDone || m.Revision != 0)
	if changed {
		m.forgetStore()
	}
	m.Store = store
	return changed
}

func (m *memory) forgetStore() {
	m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt, m.Released = 0, 0, 0, 0, false
}

// localLine is the way to a store of one's own, which is always open.
type localLine struct {
	store  *local.Store
	client *cluster.Client
}

func (l localLine) KeepAlive(ctx context.Context, id int64, _ bool) (lease.Renewal, error) {
	renewal, err := l.client.KeepAlive(ctx, id)
	if err == nil {
		l.store.Renewed()
	}
	return lease.Renewal(renewal), leaseError(err)
}

// AwaitReconnect implements Line: the way is never lost.
func (l localLine) AwaitReconnect(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l localLine) Revoke(ctx context.Context, id int64) error { return l.client.Revoke(ctx, id) }

func (l localLine) Client(ctx context.Context) (*cluster.Client, error) { return l.client, ctx.Err() }

func (l localLine) Close() error {
	err := l.client.Close()
	l.store.Close()
	return err
}
