// Package config is the settings of a sidecar: each is declared once, as a field of Config with its
// tags, and flags, environment, file, help, checks and what a reload takes up follow from that.
// Reading and validating them opens the files that they name, and no connection.
package config

import (
	"cmp"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
)

// Config holds the settings of one sidecar. A field with a name is a setting, and its tags are
// all that is declared of it: see Setting. Zero means "derive it" for the fields that Effective
// fills. A driver's own settings stand beside the driver.
type Config struct {
	EtcdEndpoints    []string `name:"etcd-endpoints" group:"etcd" arg:"URL" default:"http://127.0.0.1:2379" help:"URLs of etcd; repeat or separate by commas"`
	EtcdCACert       string   `name:"etcd-cacert" arg:"FILE" file:"read" help:"PEM file with the authorities that sign etcd's certificates"`
	EtcdCert         string   `name:"etcd-cert" with:"etcd-key" arg:"FILE" file:"read" help:"PEM file with our client certificate"`
	EtcdKey          string   `name:"etcd-key" with:"etcd-cert" arg:"FILE" file:"read" help:"PEM file with the key of our client certificate"`
	EtcdUser         string   `name:"etcd-user" with:"etcd-password-file" arg:"NAME" help:"user name in etcd"`
	EtcdPasswordFile string   `name:"etcd-password-file" with:"etcd-user" arg:"FILE" file:"read" help:"file that holds the password of that user"`
	Prefix           string   `name:"prefix" arg:"PATH" help:"what stands in front of every key, such as /prod"`

	Driver            string `name:"driver" group:"broker" arg:"NAME" derived:"required" help:"kind of broker: {drivers}"`
	BrokerID          string `name:"broker-id" arg:"ID" derived:"the broker's own stable name" help:"this broker's id in the cluster"`
	BrokerAdmin       string `name:"broker-admin" arg:"URL" derived:"this host, at the driver's usual port" help:"URL of the broker's admin API"`
	natsSettings      `driver:"nats"`
	danubeSettings    `driver:"danube"`
	httpSettings      `driver:"http"`
	pulsarSettings    `driver:"pulsar"`
	BrokerTokenFile   string        `name:"broker-token-file" arg:"FILE" file:"read" help:"file that holds the bearer token of the broker's admin API"`
	BrokerCACert      string        `name:"broker-cacert" arg:"FILE" file:"read" help:"PEM file with the authorities that sign the certificate of the broker's admin API"`
	BrokerCert        string        `name:"broker-cert" with:"broker-key" arg:"FILE" file:"read" help:"PEM file with our client certificate for the broker's admin API"`
	BrokerKey         string        `name:"broker-key" with:"broker-cert" arg:"FILE" file:"read" help:"PEM file with the key of that certificate"`
	BrokerURL         string        `name:"broker-url" arg:"URL" url:"any" help:"URL that the registration advertises to brokers"`
	ConnectURL        string        `name:"connect-url" arg:"URL" url:"any" help:"URL that the registration advertises to clients"`
	Registration      string        `name:"registration" arg:"own|adopt|none" derived:"own, adopt with danube" help:"own: we write it; adopt: the broker does and we keep it; none: its own cluster keeps it, we watch and steer, without etcd"`
	DataDir           string        `name:"data-dir" arg:"DIR" derived:"as the broker states it" help:"the broker's data directory"`
	DataMarkers       []string      `name:"data-marker" arg:"GLOB" derived:"by driver" help:"glob below the data directory that matches after a first boot; repeatable"`
	BrokerPIDFile     string        `name:"broker-pid-file" arg:"FILE" help:"file with the broker's process id: its end is noticed at once, and it can be stopped"`
	BrokerProcess     string        `name:"broker-process" arg:"NAME" help:"name of the broker's process: its end is noticed at once, and it can be stopped; of several with it, the one that holds the admin port; with --broker-pid-file: the process in the file must have this name"`
	StopCommand       string        `name:"stop-command" arg:"COMMAND" help:"command that stops the broker, such as 'systemctl stop nats'; no shell"`
	BrokerRestart     string        `name:"broker-restart" arg:"always|on-failure|never" default:"always" help:"when a broker that 'run -- CMD' started is started again"`
	BrokerStopTimeout time.Duration `name:"broker-stop-timeout" arg:"DURATION" default:"10s" min:"1ms" help:"how long that broker has to end by itself at a clean stop"`

	LeaseTTL                time.Duration `name:"lease-ttl" group:"lease" arg:"DURATION" default:"32s" help:"how long the registration outlives the last renewal; whole seconds"`
	RenewInterval           time.Duration `name:"renew-interval" arg:"DURATION" derived:"lease-ttl/8" help:"longest time between two renewals"`
	BackoffInitial          time.Duration `name:"backoff-initial" arg:"DURATION" default:"250ms" min:"1ms" help:"first pause after a renewal failed"`
	BackoffMax              time.Duration `name:"backoff-max" arg:"DURATION" default:"5s" help:"longest pause, once the lease may be gone; before that: 1s"`
	Detach                  bool          `name:"detach" default:"true" help:"stop serving at the fence point"`
	LeaseDetachMargin       time.Duration `name:"lease-detach-margin" arg:"DURATION" derived:"lease-ttl/3" help:"fence point = deadline of the lease - this margin"`
	DetachmentRecoverWindow time.Duration `name:"detachment-recover-window" arg:"DURATION" default:"2s" min:"0s" live:"true" help:"how long all must be well before a detached broker serves again"`
	LeaveRegistered         bool          `name:"leave-registered" help:"keep the lease at a clean stop, for a quick upgrade of the sidecar"`
	StateDir                string        `name:"state-dir" arg:"DIR" default:"/var/lib/holdfast" help:"directory of the sidecar's own state"`

	SessionExpiredPolicy string        `name:"session-expired-policy" group:"recovery" arg:"drain|reconnect|shutdown" derived:"drain; pulsar: reconnect" help:"what to do when the registration ran out while other brokers stayed registered"`
	FleetLossShare       float64       `name:"fleet-loss-share" arg:"0..1" default:"0.5" help:"share of the other brokers that must have lost their registrations, or been cut off, at the same time for a drain after a loss to be lifted at once; 0: off"`
	SessionRetries       int           `name:"session-retries" arg:"N" min:"0" help:"reconnect: failed attempts until the broker is stopped; 0: no limit"`
	RestartGrace         time.Duration `name:"restart-grace" arg:"DURATION" default:"-1ns" derived:"0s; pulsar whose process is watched: 3s" min:"0s" help:"how long a dead broker keeps its registration; 0s: until the TTL runs out; needs a process to watch"`
	LeaveTimeout         time.Duration `name:"leave-timeout" arg:"DURATION" default:"5m" min:"1ms" help:"after 'holdfast leave', or when it says that it ends: how long the broker's end is waited for, before it is taken back"`
	ReturnWithin         time.Duration `name:"return-within" arg:"DURATION" default:"1h" min:"0s" help:"how long after a planned stop a broker comes back active, whatever others did meanwhile"`
	Fence                []string      `name:"fence" arg:"ready,quiesce,stop" derived:"ready,quiesce; stop where it can be; pulsar: ready" help:"steps that stop the broker from serving, in order"`
	Guard                string        `name:"guard" arg:"on|off" derived:"on with the fence step stop" help:"second process that stops the broker if this one cannot"`
	Join                 bool          `name:"join" help:"start drained, to be activated by an operator"`
	Shadow               bool          `name:"shadow" help:"decide, log and count, and do nothing"`
	IKnow                bool          `name:"i-know" help:"run although nothing could stop a broker that destroys or serves what is not its own once its registration is gone, or --lease-ttl is too short beside Danube 0.7"`

	Assignment           string        `name:"assignment" group:"topics" arg:"external|rendezvous" default:"external" help:"external: others assign the topics; rendezvous: the sidecars do"`
	Failover             string        `name:"failover" arg:"hold|move" derived:"hold with nats and http, else move" help:"hold: the topics of a dead broker wait for it; move: with rendezvous, others take them"`
	OwnershipLocks       string        `name:"ownership-locks" arg:"on|off" derived:"on with rendezvous" help:"hold a lock in etcd for each topic that is served"`
	AcquireRetryInterval time.Duration `name:"acquire-retry-interval" arg:"DURATION" default:"200ms" min:"1ms" help:"pause between two attempts to get a lock that another broker holds"`
	AcquireRetryWindow   time.Duration `name:"acquire-retry-window" arg:"DURATION" default:"2s" min:"0s" help:"how long to try that often; after it once an audit-interval"`
	AcquireWatch         bool          `name:"acquire-watch" default:"true" help:"try again at once when the lock goes"`
	LoadConcurrency      int           `name:"load-concurrency" arg:"N" default:"16" min:"1" live:"true" help:"topics loaded at the same time"`
	LoadRate             float64       `name:"load-rate" arg:"N" min:"0" live:"true" help:"topics loaded each second; 0: no limit"`
	LoadTimeout          time.Duration `name:"load-timeout" arg:"DURATION" default:"30s" min:"1ms" live:"true" help:"bound of one load, and how long readiness waits for a stuck one"`
	AuditInterval        time.Duration `name:"audit-interval" arg:"DURATION" default:"30s" min:"10ms" live:"true" help:"time between two full comparisons of wanted and served"`
	MovesAtOnce          int           `name:"moves-at-once" arg:"N" default:"4" min:"1" help:"topics of this broker that are withdrawn at a time while they move to others"`
	DrainsAtOnce         int           `name:"drains-at-once" arg:"N" default:"1" min:"1" help:"brokers of the cluster that may drain at a time by moving their topics; the same at each"`
	MoveRate             float64       `name:"move-rate" arg:"BYTES" min:"0" help:"bytes a second that are copied and compared here when topics move; 0: no limit"`
	MassChangeShare      float64       `name:"mass-change-share" arg:"0..1" default:"0.5" live:"true" help:"share of the topics whose sudden unassignment (of 10 or more) waits for 'holdfast confirm'; 0: off"`

	HealthInterval time.Duration `name:"health-interval" group:"health" arg:"DURATION" default:"1s" min:"10ms" live:"true" help:"time between two checks of the broker"`
	HealthTimeout  time.Duration `name:"health-timeout" arg:"DURATION" default:"1s" min:"1ms" live:"true" help:"bound of one check"`
	HealthRise     int           `name:"health-rise" arg:"N" default:"2" min:"1" live:"true" help:"good checks in a row until the broker is up"`
	HealthFall     int           `name:"health-fall" arg:"N" default:"3" min:"1" live:"true" help:"bad checks in a row until the broker is down"`

	ProbeListen   string `name:"probe-listen" group:"listeners" arg:"HOST:PORT" default:":9808" help:"address of /live, /ready, /startup and /broker/live"`
	WebListen     string `name:"web-listen" arg:"HOST:PORT" default:":9809" help:"address of the status page, /api/status and /metrics"`
	WebConfigFile string `name:"web-config-file" arg:"FILE" help:"file with TLS, users and client certificates of that address, in the form of Prometheus' exporter-toolkit"`
	ControlSocket string `name:"control-socket" arg:"FILE" derived:"state-dir/control.sock" help:"unix socket of the command line"`

	LogLevel  string `name:"log-level" group:"logging" arg:"debug|info|warn|error" default:"info" live:"true" help:"least severe line that is logged"`
	LogFormat string `name:"log-format" arg:"text|json" derived:"text on a terminal, else json" help:"form of a log line"`

	// Command is the broker as our child: what follows "--" after "run". It is no
	// setting of its own.
	Command []string

	// warnings are what Load found strange and did not refuse.
	warnings []string
	// overridden are values that another source has overridden.
	overridden []string
	// sources is where Load found these settings; nil: it did not.
	sources *Sources
	// origins says where a value came from; absent: the default. Load fills it.
	origins map[string]string
}

// Effective returns c with every derived field filled in. It changes nothing that
// was set, needs no valid c, and is idempotent.
func (c Config) Effective() Config {
	c.RenewInterval = cmp.Or(c.RenewInterval, c.LeaseTTL/8)
	c.LeaseDetachMargin = cmp.Or(c.LeaseDetachMargin, c.LeaseTTL/3)
	if c.ControlSocket == "" && c.StateDir != "" {
		c.ControlSocket = filepath.Join(c.StateDir, "control.sock")
	}
	d := Drivers[c.Driver]
	c.BrokerAdmin = cmp.Or(c.BrokerAdmin, d.Admin)
	c.Registration = cmp.Or(c.Registration, d.Registration)
	c.Failover = cmp.Or(c.Failover, d.Failover)
	if len(c.DataMarkers) == 0 {
		c.DataMarkers = d.Markers
	}
	if d.Derive != nil {
		d.Derive(&c)
	}
	if c.Unleased() {
		c.Detach = false // there is nothing to be detached from
	}
	if c.SessionExpiredPolicy == "" {
		c.SessionExpiredPolicy = "drain"
		if c.FencesItself() {
			c.SessionExpiredPolicy = "reconnect"
		}
	}
	if c.RestartGrace == graceByDriver {
		c.RestartGrace = 0
		if c.FencesItself() && c.watchesProcess() && !c.Unleased() {
			c.RestartGrace = min(fencedGrace, c.LeaseTTL/4)
		}
	}
	if len(c.Fence) == 0 && c.FencesItself() {
		c.Fence = []string{"ready"}
	}
	if len(c.Fence) == 0 {
		c.Fence = []string{"ready", "quiesce"}
		if c.CanStop() && !c.Unleased() {
			c.Fence = append(c.Fence, "stop")
		}
	}
	c.Guard = cmp.Or(c.Guard, onOff(c.Detach && c.CanStop() && slices.Contains(c.Fence, "stop")))
	c.OwnershipLocks = cmp.Or(c.OwnershipLocks, onOff(c.Assignment == "rendezvous"))
	return c
}

// besideAdmin is a URL on the host of the admin API; no scheme: with its own.
func (c Config) besideAdmin(scheme, port string) string {
	u, err := url.Parse(c.BrokerAdmin)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	return cmp.Or(scheme, u.Scheme) + "://" + net.JoinHostPort(u.Hostname(), port)
}

// Warnings are what is probably not meant, one line each, with the remedy.
func (c Config) Warnings() []string {
	list := slices.Clone(c.warnings)
	if strange := Drivers[c.Driver].Adopt; strange != "" && c.Registration == "adopt" {
		list = append(list, "--registration adopt with the driver "+c.Driver+": "+strange)
	}
	if c.LeaseTTL > longTTL && !c.Unleased() {
		list = append(list, "--lease-ttl "+FormatDuration(c.LeaseTTL)+": for so long a broker that died stays registered, and nobody takes over: 15s to 2m is usual")
	}
	return list
}

// Overridden are the values that another source overrides, one line each.
func (c Config) Overridden() []string { return c.overridden }

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

// Unleased reports whether the broker's own cluster keeps its registration, and Holdfast
// only watches and steers: without etcd, without a lease that anybody else knows.
func (c Config) Unleased() bool { return c.Registration == "none" }

// graceByDriver is the --restart-grace that nobody has set.
const graceByDriver = -time.Nanosecond

// fencedGrace is its default where others may serve at once what such a broker had, and its
// process is watched: time enough for a supervisor that starts it again at once. Of a short TTL
// it is a quarter.
const fencedGrace = 3 * time.Second

// FencesItself reports whether the broker's storage fences it.
func (c Config) FencesItself() bool { return c.Traits().AtDeadline == brokerapi.Nothing }

// StaysActive reports whether such a broker is active again after its registration was lost, also
// as another process.
func (c Config) StaysActive() bool {
	return c.FencesItself() && c.SessionExpiredPolicy == "reconnect"
}

// OnlyUnready reports whether at the end of its lease such a broker loses readiness and nothing else.
func (c Config) OnlyUnready() bool {
	return c.FencesItself() && !slices.Contains(c.Fence, "quiesce") && !slices.Contains(c.Fence, "stop")
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
	}
}
