package danube

import (
	"context"
	"time"
)

// Config says how a broker is started.
type Config struct {
	DataDir string // the logs are in wal/ below
	// Where it listens, host:port: clients, admin API, Prometheus. A port is opened when the broker has come so far.
	ClientAddr, AdminAddr, MetricsAddr string
	Raft                               bool   // a release after 0.7
	Etcd                               string // endpoint of the etcd with the metadata
	// Objects is a directory where sealed logs are put and the next owner finds them:
	// the object store that brokers share. Empty: what is local stays local.
	Objects string
	Times   Times
}

// Times are the broker's periods.
type Times struct {
	TTL         time.Duration // of the registration; whole seconds in etcd
	Renew       time.Duration // between renewals of it
	LeaderTTL   time.Duration
	LeaderCheck time.Duration // between looks at who leads
	Report      time.Duration // between load reports
	// React is how long after a change of its assignments the broker looks at it.
	React time.Duration
	// Assign is how long after a topic became unassigned the leader assigns it. A leader
	// that is quicker than the broker that is to unload makes that broker destroy.
	Assign time.Duration
}

// RealTTL is that of a broker in life.
const RealTTL = 32 * time.Second

// TimesFor are the periods of a broker with this TTL, which keep their proportions: with
// a TTL of 3.2 s everything is ten times as fast. Etcd's leases have whole seconds, so
// the leader's is at least one.
func TimesFor(ttl time.Duration) Times {
	of := func(seconds float64) time.Duration { return time.Duration(float64(ttl) * seconds / 32) }
	return Times{TTL: ttl, Renew: of(10), LeaderTTL: max(of(14), time.Second), LeaderCheck: of(10), Report: of(30)}
}

// A topic is not loaded before its metadata is seen, which is looked for so often.
const (
	metadataWait  = time.Second / 2
	metadataTries = 3
)

// pause waits for d, and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
