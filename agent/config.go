package agent

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi/httpapi"
	"holdfast/cluster"
)

// Config holds the effective settings of one sidecar. Every field has one row in
// the table of settings.go, which gives its flag, environment variable and YAML
// key. Zero means "derive it" for the fields that Effective fills.
type Config struct {
	// etcd
	EtcdEndpoints    []string // URLs with scheme
	EtcdCACert       string   // file, PEM
	EtcdCert         string   // file, PEM; with EtcdKey
	EtcdKey          string   // file, PEM; with EtcdCert
	EtcdUser         string   // with EtcdPasswordFile
	EtcdPasswordFile string   // file; a trailing newline is not part of the password
	Prefix           string   // in front of every key; empty, or /like/this
	StorageRoot      string   // where brokers keep sealed topic states

	// broker
	BrokerID      string // empty: the broker's own stable name
	Driver        string
	BrokerAdmin   string // URL; derived from Driver
	NATSMonitor   string // URL; derived from BrokerAdmin: same host, port 8222
	NATSCredsFile string
	DanubeLookup  string // URL; derived from BrokerAdmin: same host, port 6650
	DanubeMetrics string // URL; derived from BrokerAdmin: same host, port 9040
	// HTTPCapabilities are what a broker of the driver http can do; derived: the whole contract.
	HTTPCapabilities []string
	PulsarCluster    string // clusterName of the broker; required with the driver pulsar
	PulsarAdvertised string // host:port that the broker calls itself; empty: as in BrokerAdmin
	PulsarStatusFile string // statusFilePath of the broker; empty: none
	// The admin API of drivers that speak http or https.
	BrokerTokenFile string   // file; a trailing newline is not part of the bearer token
	BrokerCACert    string   // file, PEM
	BrokerCert      string   // file, PEM; with BrokerKey
	BrokerKey       string   // file, PEM; with BrokerCert
	BrokerURL       string   // advertised; may be empty
	ConnectURL      string   // advertised; may be empty
	Registration    string   // "own", "adopt" or "none"; derived from Driver
	DataDir         string   // empty: as the broker states it
	DataMarkers     []string // globs below DataDir; derived from Driver
	BrokerPIDFile   string
	BrokerProcess   string
	StopCommand     string // words, split at spaces; no shell
	// Command is the broker as our child: what follows "--" after "run". It is no
	// setting of its own.
	Command           []string
	BrokerRestart     string // "always", "on-failure", "never"; with Command
	BrokerStopTimeout time.Duration

	// lease
	StateDir                string
	LeaseTTL                time.Duration // whole seconds
	RenewInterval           time.Duration // derived: LeaseTTL/8
	BackoffInitial          time.Duration
	BackoffMax              time.Duration
	Detach                  bool
	LeaseDetachMargin       time.Duration // derived: LeaseTTL/3
	DetachmentRecoverWindow time.Duration
	LeaveRegistered         bool

	// recovery
	SessionExpiredPolicy string        // "drain", "reconnect", "shutdown"
	SessionRetries       int           // reconnect: attempts before the broker is stopped; 0: no limit
	FleetLossShare       float64       // 0 to 1; 0: a loss is never taken for the fleet's
	RestartGrace         time.Duration // 0: let the TTL run out
	LeaveTimeout         time.Duration // after 'holdfast leave': how long the broker's end is waited for
	ReturnWithin         time.Duration // how long a planned stop excuses an absence
	Fence                []string      // "ready", "quiesce", "stop"; derived: stop if the broker can be stopped
	Guard                string        // "on", "off"; derived: on with stop
	Join                 bool
	Shadow               bool
	IKnow                bool // run beside a broker that must be stopped without a way to stop it

	// topics
	Assignment           string // "external", "rendezvous"
	Failover             string // "hold", "move"; derived from Driver
	OwnershipLocks       string // "on", "off"; derived: on with rendezvous
	AcquireRetryInterval time.Duration
	AcquireRetryWindow   time.Duration // 0: no quick retries
	AcquireWatch         bool
	LoadConcurrency      int
	LoadRate             float64 // topics per second; 0: no limit
	LoadTimeout          time.Duration
	AuditInterval        time.Duration
	MassChangeShare      float64 // 0 to 1; 0: no guard

	// health
	HealthInterval time.Duration
	HealthTimeout  time.Duration
	HealthRise     int // results in a row
	HealthFall     int // results in a row

	// listeners
	ProbeListen   string // host:port
	WebListen     string // host:port
	WebConfigFile string // file: TLS and users of the web listener; empty: neither
	ControlSocket string // derived: StateDir/control.sock

	// logging
	LogLevel  string // debug, info, warn, error
	LogFormat string // text, json; empty: text on a terminal, else json

	// warnings are what Load found strange and did not refuse.
	warnings []string
	// sources is where Load found these settings; nil: it did not.
	sources *Sources
	// origins says where a value came from; absent: the default. Load fills it.
	origins map[string]origin
}

// Default returns the defaults of the public contract. Derived fields are zero;
// Effective fills them.
func Default() Config {
	return Config{
		EtcdEndpoints:           []string{"http://127.0.0.1:2379"},
		StorageRoot:             "/danube-data",
		StateDir:                "/var/lib/holdfast",
		LeaseTTL:                32 * time.Second,
		BackoffInitial:          250 * time.Millisecond,
		BackoffMax:              5 * time.Second,
		Detach:                  true,
		DetachmentRecoverWindow: 2 * time.Second,
		BrokerRestart:           "always",
		BrokerStopTimeout:       10 * time.Second,
		FleetLossShare:          0.5,
		RestartGrace:            graceByDriver,
		LeaveTimeout:            5 * time.Minute,
		ReturnWithin:            time.Hour,
		Assignment:              "external",
		AcquireRetryInterval:    200 * time.Millisecond,
		AcquireRetryWindow:      2 * time.Second,
		AcquireWatch:            true,
		LoadConcurrency:         16,
		LoadTimeout:             30 * time.Second,
		AuditInterval:           30 * time.Second,
		MassChangeShare:         0.5,
		HealthInterval:          time.Second,
		HealthTimeout:           time.Second,
		HealthRise:              2,
		HealthFall:              3,
		ProbeListen:             ":9808",
		WebListen:               ":9809",
		LogLevel:                "info",
	}
}

// Effective returns c with every derived field filled in. It changes nothing that
// was set, needs no valid c, and is idempotent.
func (c Config) Effective() Config {
	if c.RenewInterval == 0 {
		c.RenewInterval = c.LeaseTTL / 8
	}
	if c.LeaseDetachMargin == 0 {
		c.LeaseDetachMargin = c.LeaseTTL / 3
	}
	if c.ControlSocket == "" && c.StateDir != "" {
		c.ControlSocket = filepath.Join(c.StateDir, "control.sock")
	}
	if d, ok := drivers[c.Driver]; ok {
		if c.BrokerAdmin == "" {
			c.BrokerAdmin = d.Admin
		}
		if c.Registration == "" {
			c.Registration = d.Registration
		}
		if c.Failover == "" {
			c.Failover = d.Failover
		}
		if len(c.DataMarkers) == 0 {
			c.DataMarkers = d.Markers
		}
	}
	if c.Unleased() {
		c.Detach = false // there is nothing to be detached from
	}
	if c.SessionExpiredPolicy == "" {
		c.SessionExpiredPolicy = "drain"
		if c.fencesItself() {
			c.SessionExpiredPolicy = "reconnect"
		}
	}
	if c.RestartGrace == graceByDriver {
		c.RestartGrace = 0
		if c.fencesItself() && c.watchesProcess() && !c.Unleased() {
			c.RestartGrace = min(fencedGrace, c.LeaseTTL/4)
		}
	}
	if len(c.Fence) == 0 && c.fencesItself() {
		c.Fence = []string{"ready"}
	}
	if len(c.Fence) == 0 {
		c.Fence = []string{"ready", "quiesce"}
		if c.CanStop() && !c.Unleased() {
			c.Fence = append(c.Fence, "stop")
		}
	}
	if c.Guard == "" {
		c.Guard = onOff(c.Detach && c.CanStop() && slices.Contains(c.Fence, "stop"))
	}
	if c.OwnershipLocks == "" {
		c.OwnershipLocks = onOff(c.Assignment == "rendezvous" || c.layout() != nil)
	}
	if c.Driver == "http" && len(c.HTTPCapabilities) == 0 {
		c.HTTPCapabilities = httpapi.DefaultCapabilities()
	}
	if c.NATSMonitor == "" && c.Driver == "nats" {
		if u, err := url.Parse(c.BrokerAdmin); err == nil && u.Hostname() != "" {
			c.NATSMonitor = "http://" + net.JoinHostPort(u.Hostname(), "8222")
		}
	}
	if u, err := url.Parse(c.BrokerAdmin); err == nil && u.Hostname() != "" && c.Driver == "danube" {
		if c.DanubeLookup == "" {
			c.DanubeLookup = u.Scheme + "://" + net.JoinHostPort(u.Hostname(), "6650")
		}
		if c.DanubeMetrics == "" {
			c.DanubeMetrics = "http://" + net.JoinHostPort(u.Hostname(), "9040")
		}
	}
	return c
}

// Warnings are what is probably not meant, one line each, with the remedy.
func (c Config) Warnings() []string {
	list := slices.Clone(c.warnings)
	if c = c.Effective(); c.Driver == "nats" && c.Registration == "adopt" {
		list = append(list, "--registration adopt with the driver nats: nats-server registers itself nowhere, so this waits until something else writes the registration: leave it out if nothing does")
	}
	return list
}

// CanStop reports whether there is a way to stop the broker's process, for us and for the
// guard.
func (c Config) CanStop() bool {
	return c.BrokerPIDFile != "" || c.BrokerProcess != "" || c.StopCommand != "" || len(c.Command) > 0
}

// watchesProcess reports whether the end of the broker's process is seen, so that it can be
// told from one that hangs.
func (c Config) watchesProcess() bool {
	return c.BrokerPIDFile != "" || c.BrokerProcess != "" || len(c.Command) > 0
}

// ends reports whether the broker's admin API can be asked to end the process. The guard
// cannot ask it.
func (c Config) ends() bool {
	d := drivers[c.Driver]
	return d.Ends != nil && d.Ends(c)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// Timing is the lease schedule of these settings, as asked for: etcd may grant
// another TTL.
func (c Config) Timing() lease.Timing {
	c = c.Effective()
	return lease.Timing{
		TTL:            c.LeaseTTL,
		RenewInterval:  c.RenewInterval,
		Jitter:         c.RenewInterval / 10,
		Margin:         c.LeaseDetachMargin,
		BackoffInitial: c.BackoffInitial,
		BackoffMax:     c.BackoffMax,
	}
}

// Cluster is the part of the settings that package cluster needs.
func (c Config) Cluster() cluster.Config {
	return cluster.Config{
		Endpoints:    c.EtcdEndpoints,
		CACert:       c.EtcdCACert,
		Cert:         c.EtcdCert,
		Key:          c.EtcdKey,
		User:         c.EtcdUser,
		PasswordFile: c.EtcdPasswordFile,
		Prefix:       c.Prefix,
		StorageRoot:  c.StorageRoot,
		Layout:       c.layout(),
	}
}

// layout is where a broker that registers itself keeps its own keys, if not where Holdfast
// does; nil otherwise.
func (c Config) layout() *cluster.Layout {
	if d, ok := drivers[c.Driver]; ok && d.Layout != nil && c.Registration == "adopt" {
		return d.Layout()
	}
	return nil
}
