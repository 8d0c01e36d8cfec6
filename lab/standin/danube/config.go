package danube

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// Config says how a broker is started. The zero value of a field that has a default
// stands for it.
type Config struct {
	DataDir string // required; the logs are in wal/ below
	// Where it listens: clients, admin API, Prometheus. Default 127.0.0.1:0. A port is
	// opened when the broker has come so far, but for port 0, which is opened at once.
	ClientAddr, AdminAddr, MetricsAddr string
	// Advertise is the host:port that clients are told; default ClientAddr.
	Advertise string

	// Etcd is the endpoint of the etcd, for [Etcd].
	Etcd string
	// Resumes mends the broker: watches and renewals that an interruption of etcd ended
	// come back.
	Resumes bool

	// Metadata is the host:port of [Metadata], for [Raft].
	Metadata string
	// Join is the flag of the same name: it starts drained.
	Join bool
	// JoinDelay is how long it takes to join the cluster after the admin port has opened.
	JoinDelay time.Duration

	// Objects is a directory where sealed logs are put and the next owner finds them:
	// the object store that brokers share. Empty: what is local stays local.
	Objects string
	// StorageRoot is the prefix of the storage metadata; default /danube-data.
	StorageRoot string
	// SegmentBytes is the size at which a log begins a new file; default 64 KiB.
	SegmentBytes int64
	// Namespaces that exist beside default and system.
	Namespaces []string

	// Cert and Key are PEM files: the ports for clients and the admin API speak TLS with
	// them. Both or none.
	Cert, Key string
	// Token is what each call to these ports must bear; empty: none is asked for.
	Token string

	Times  Times
	Log    *slog.Logger // default: discarded
	Stderr io.Writer    // where disasters are printed; default os.Stderr
}

// Times are the broker's periods. A zero one has the value of [RealTimes]; for those of
// which that is zero, it means none.
type Times struct {
	TTL           time.Duration // of the registration; whole seconds in etcd
	Renew         time.Duration // between renewals of it
	LeaderTTL     time.Duration
	LeaderCheck   time.Duration // between looks at who leads
	Report        time.Duration // between load reports
	MetadataWait  time.Duration // between the looks for a topic's metadata
	MetadataTries int
	// Register is how long it takes from the start to the registration.
	Register time.Duration
	// React is how long after a change of its assignments the broker looks at it.
	React time.Duration
	// Assign is how long after a topic became unassigned the leader assigns it. A leader
	// that is quicker than the broker that is to unload makes that broker destroy.
	Assign time.Duration
}

// RealTimes are the periods of a broker in life.
func RealTimes() Times { return TimesFor(32 * time.Second) }

// TimesFor are the periods of a broker with this TTL, which keep their proportions: with
// a TTL of 3.2 s everything is ten times as fast. Etcd's leases have whole seconds, so
// the leader's is at least one.
func TimesFor(ttl time.Duration) Times {
	of := func(seconds float64) time.Duration { return time.Duration(float64(ttl) * seconds / 32) }
	return Times{
		TTL: ttl, Renew: of(10), LeaderTTL: max(of(14), time.Second), LeaderCheck: of(10), Report: of(30),
		MetadataWait: time.Second / 2, MetadataTries: 3, // how late a cache is has nothing to do with the TTL
	}
}

func (t Times) withDefaults() Times {
	real := RealTimes()
	for _, f := range []struct{ is, then *time.Duration }{
		{&t.TTL, &real.TTL}, {&t.Renew, &real.Renew}, {&t.LeaderTTL, &real.LeaderTTL},
		{&t.LeaderCheck, &real.LeaderCheck}, {&t.Report, &real.Report}, {&t.MetadataWait, &real.MetadataWait},
	} {
		if *f.is == 0 {
			*f.is = *f.then
		}
	}
	if t.MetadataTries == 0 {
		t.MetadataTries = real.MetadataTries
	}
	return t
}

func (c Config) withDefaults() (Config, error) {
	if c.DataDir == "" {
		return c, errors.New("a data directory is required")
	}
	if err := os.MkdirAll(c.DataDir, 0o755); err != nil {
		return c, fmt.Errorf("make the data directory: %w", err)
	}
	for _, addr := range []*string{&c.ClientAddr, &c.AdminAddr, &c.MetricsAddr} {
		if *addr == "" {
			*addr = "127.0.0.1:0"
		}
	}
	if c.StorageRoot == "" {
		c.StorageRoot = "/danube-data"
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 64 << 10
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if (c.Cert == "") != (c.Key == "") {
		return c, errors.New("a certificate and its key: both or none")
	}
	c.Times = c.Times.withDefaults()
	return c, nil
}
