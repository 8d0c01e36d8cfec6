package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/brokerapi/httpapi"
)

// Setting is one row of the table from which the flag, the environment variable,
// the YAML key and the help text of a setting are made.
type Setting struct {
	Name  string // flag without dashes, and YAML key
	Group string // heading in the help text
	Help  string // one line
	Arg   string // placeholder of the value in the help text; empty for switches
	// derived is the formula of a default that depends on other settings.
	derived string
	field   func(*Config) any // pointer to the field
}

// Env is the name of the setting's environment variable.
func (s Setting) Env() string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Default is the default as a person reads it: a value, a formula, or empty.
func (s Setting) Default() string {
	if s.derived != "" {
		return s.derived
	}
	c := Default()
	return format(s.field(&c))
}

// Switch reports whether the flag needs no value.
func (s Setting) Switch() bool {
	_, ok := s.field(new(Config)).(*bool)
	return ok
}

// Repeatable reports whether the setting is a list.
func (s Setting) Repeatable() bool {
	_, ok := s.field(new(Config)).(*[]string)
	return ok
}

// Groups are the headings of the help text, in order.
var Groups = []string{"etcd", "broker", "lease", "recovery", "topics", "health", "listeners", "logging"}

// Settings returns the table, in the order of the help text.
func Settings() []Setting { return slices.Clone(settings) }

func lookup(name string) (Setting, bool) {
	for _, s := range settings {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

var settings = []Setting{
	{"etcd-endpoints", "etcd", "URLs of etcd; repeat or separate by commas", "URL", "", func(c *Config) any { return &c.EtcdEndpoints }},
	{"etcd-cacert", "etcd", "PEM file with the authorities that sign etcd's certificates", "FILE", "", func(c *Config) any { return &c.EtcdCACert }},
	{"etcd-cert", "etcd", "PEM file with our client certificate", "FILE", "", func(c *Config) any { return &c.EtcdCert }},
	{"etcd-key", "etcd", "PEM file with the key of our client certificate", "FILE", "", func(c *Config) any { return &c.EtcdKey }},
	{"etcd-user", "etcd", "user name in etcd", "NAME", "", func(c *Config) any { return &c.EtcdUser }},
	{"etcd-password-file", "etcd", "file that holds the password of that user", "FILE", "", func(c *Config) any { return &c.EtcdPasswordFile }},
	{"prefix", "etcd", "what stands in front of every key, such as /prod", "PATH", "", func(c *Config) any { return &c.Prefix }},
	{"storage-root", "etcd", "where brokers keep the states of sealed topics", "PATH", "", func(c *Config) any { return &c.StorageRoot }},

	{"driver", "broker", "kind of broker: " + strings.Join(DriverNames(), ", "), "NAME", "required", func(c *Config) any { return &c.Driver }},
	{"broker-id", "broker", "this broker's id in the cluster", "ID", "the broker's own stable name", func(c *Config) any { return &c.BrokerID }},
	{"broker-admin", "broker", "URL of the broker's admin API", "URL", "this host, at the driver's usual port", func(c *Config) any { return &c.BrokerAdmin }},
	{"nats-monitor", "broker", "URL of the NATS monitoring port", "URL", "http://host-of-broker-admin:8222", func(c *Config) any { return &c.NATSMonitor }},
	{"nats-creds-file", "broker", "credentials file for the NATS admin connection", "FILE", "", func(c *Config) any { return &c.NATSCredsFile }},
	{"danube-lookup", "broker", "URL of the Danube broker's client port", "URL", "http://host-of-broker-admin:6650", func(c *Config) any { return &c.DanubeLookup }},
	{"danube-metrics", "broker", "URL of the Danube broker's Prometheus metrics", "URL", "http://host-of-broker-admin:9040", func(c *Config) any { return &c.DanubeMetrics }},
	{"http-capabilities", "broker", "what a broker of the driver http can do: " + strings.Join(httpapi.CapabilityNames(), ", "), "NAME,…", "with http all but must-stop", func(c *Config) any { return &c.HTTPCapabilities }},
	{"pulsar-cluster", "broker", "clusterName of the Pulsar broker", "NAME", "required with pulsar", func(c *Config) any { return &c.PulsarCluster }},
	{"pulsar-advertised", "broker", "how the Pulsar broker calls itself in its cluster", "HOST:PORT", "as in broker-admin", func(c *Config) any { return &c.PulsarAdvertised }},
	{"pulsar-status-file", "broker", "statusFilePath of the Pulsar broker, removed while it is drained", "FILE", "", func(c *Config) any { return &c.PulsarStatusFile }},
	{"broker-token-file", "broker", "file that holds the bearer token of the broker's admin API", "FILE", "", func(c *Config) any { return &c.BrokerTokenFile }},
	{"broker-cacert", "broker", "PEM file with the authorities that sign the certificate of the broker's admin API", "FILE", "", func(c *Config) any { return &c.BrokerCACert }},
	{"broker-cert", "broker", "PEM file with our client certificate for the broker's admin API", "FILE", "", func(c *Config) any { return &c.BrokerCert }},
	{"broker-key", "broker", "PEM file with the key of that certificate", "FILE", "", func(c *Config) any { return &c.BrokerKey }},
	{"broker-url", "broker", "URL that the registration advertises to brokers", "URL", "", func(c *Config) any { return &c.BrokerURL }},
	{"connect-url", "broker", "URL that the registration advertises to clients", "URL", "", func(c *Config) any { return &c.ConnectURL }},
	{"registration", "broker", "own: we write it; adopt: the broker does and we keep it; none: its own cluster keeps it, we watch and steer, without etcd", "own|adopt|none", "own, adopt with danube", func(c *Config) any { return &c.Registration }},
	{"data-dir", "broker", "the broker's data directory", "DIR", "as the broker states it", func(c *Config) any { return &c.DataDir }},
	{"data-marker", "broker", "glob below the data directory that matches after a first boot; repeatable", "GLOB", "by driver", func(c *Config) any { return &c.DataMarkers }},
	{"broker-pid-file", "broker", "file with the broker's process id: its end is noticed at once, and it can be stopped", "FILE", "", func(c *Config) any { return &c.BrokerPIDFile }},
	{"broker-process", "broker", "name of the broker's process: its end is noticed at once, and it can be stopped; with --broker-pid-file: the process in the file must have this name", "NAME", "", func(c *Config) any { return &c.BrokerProcess }},
	{"stop-command", "broker", "command that stops the broker, such as 'systemctl stop nats'; no shell", "COMMAND", "", func(c *Config) any { return &c.StopCommand }},
	{"broker-restart", "broker", "when a broker that 'run -- CMD' started is started again", "always|on-failure|never", "", func(c *Config) any { return &c.BrokerRestart }},
	{"broker-stop-timeout", "broker", "how long that broker has to end by itself at a clean stop", "DURATION", "", func(c *Config) any { return &c.BrokerStopTimeout }},

	{"lease-ttl", "lease", "how long the registration outlives the last renewal; whole seconds", "DURATION", "", func(c *Config) any { return &c.LeaseTTL }},
	{"renew-interval", "lease", "longest time between two renewals", "DURATION", "lease-ttl/8", func(c *Config) any { return &c.RenewInterval }},
	{"backoff-initial", "lease", "first pause after a renewal failed", "DURATION", "", func(c *Config) any { return &c.BackoffInitial }},
	{"backoff-max", "lease", "longest pause, once the lease may be gone; before that: 1s", "DURATION", "", func(c *Config) any { return &c.BackoffMax }},
	{"detach", "lease", "stop serving at the fence point", "", "", func(c *Config) any { return &c.Detach }},
	{"lease-detach-margin", "lease", "fence point = deadline of the lease - this margin", "DURATION", "lease-ttl/3", func(c *Config) any { return &c.LeaseDetachMargin }},
	{"detachment-recover-window", "lease", "how long all must be well before a detached broker serves again", "DURATION", "", func(c *Config) any { return &c.DetachmentRecoverWindow }},
	{"leave-registered", "lease", "keep the lease at a clean stop, for a quick upgrade of the sidecar", "", "", func(c *Config) any { return &c.LeaveRegistered }},
	{"state-dir", "lease", "directory of the sidecar's own state", "DIR", "", func(c *Config) any { return &c.StateDir }},

	{"session-expired-policy", "recovery", "what to do when the registration ran out while other brokers lived on", "drain|reconnect|shutdown", "drain; pulsar: reconnect", func(c *Config) any { return &c.SessionExpiredPolicy }},
	{"fleet-loss-share", "recovery", "share of the other brokers that must have lost their registrations, or been cut off, at the same time for a broker to keep its mode; 0: off", "0..1", "", func(c *Config) any { return &c.FleetLossShare }},
	{"session-retries", "recovery", "reconnect: failed attempts until the broker is stopped; 0: no limit", "N", "", func(c *Config) any { return &c.SessionRetries }},
	{"restart-grace", "recovery", "how long a dead broker keeps its registration; 0s: until the TTL runs out; needs a process to watch", "DURATION", "0s; pulsar whose process is watched: 3s", func(c *Config) any { return &c.RestartGrace }},
	{"leave-timeout", "recovery", "after 'holdfast leave': how long the broker's end is waited for, before it is taken back", "DURATION", "", func(c *Config) any { return &c.LeaveTimeout }},
	{"return-within", "recovery", "how long after a planned stop a broker comes back active, whatever others did meanwhile", "DURATION", "", func(c *Config) any { return &c.ReturnWithin }},
	{"fence", "recovery", "steps that stop the broker from serving, in order", "ready,quiesce,stop", "ready,quiesce; stop where it can be; pulsar: ready", func(c *Config) any { return &c.Fence }},
	{"guard", "recovery", "second process that stops the broker if this one cannot", "on|off", "on with the fence step stop", func(c *Config) any { return &c.Guard }},
	{"join", "recovery", "start drained, to be activated by an operator", "", "", func(c *Config) any { return &c.Join }},
	{"shadow", "recovery", "decide, log and count, and do nothing", "", "", func(c *Config) any { return &c.Shadow }},
	{"i-know", "recovery", "run although nothing could stop a broker that destroys or serves what is not its own once its registration is gone", "", "", func(c *Config) any { return &c.IKnow }},

	{"assignment", "topics", "external: others assign the topics; rendezvous: the sidecars do", "external|rendezvous", "", func(c *Config) any { return &c.Assignment }},
	{"failover", "topics", "hold: the topics of a dead broker wait for it; move: with rendezvous, others take them", "hold|move", "hold with nats and http, else move", func(c *Config) any { return &c.Failover }},
	{"ownership-locks", "topics", "hold a lock in etcd for each topic that is served", "on|off", "on with rendezvous", func(c *Config) any { return &c.OwnershipLocks }},
	{"acquire-retry-interval", "topics", "pause between two attempts to get a lock that another broker holds", "DURATION", "", func(c *Config) any { return &c.AcquireRetryInterval }},
	{"acquire-retry-window", "topics", "how long to try that often; after it once an audit-interval", "DURATION", "", func(c *Config) any { return &c.AcquireRetryWindow }},
	{"acquire-watch", "topics", "try again at once when the lock goes", "", "", func(c *Config) any { return &c.AcquireWatch }},
	{"load-concurrency", "topics", "topics loaded at the same time", "N", "", func(c *Config) any { return &c.LoadConcurrency }},
	{"load-rate", "topics", "topics loaded each second; 0: no limit", "N", "", func(c *Config) any { return &c.LoadRate }},
	{"load-timeout", "topics", "bound of one load, and how long readiness waits for a stuck one", "DURATION", "", func(c *Config) any { return &c.LoadTimeout }},
	{"audit-interval", "topics", "time between two full comparisons of wanted and served", "DURATION", "", func(c *Config) any { return &c.AuditInterval }},
	{"mass-change-share", "topics", "share of the topics whose sudden unassignment (of 10 or more) waits for 'holdfast confirm'; 0: off", "0..1", "", func(c *Config) any { return &c.MassChangeShare }},

	{"health-interval", "health", "time between two checks of the broker", "DURATION", "", func(c *Config) any { return &c.HealthInterval }},
	{"health-timeout", "health", "bound of one check", "DURATION", "", func(c *Config) any { return &c.HealthTimeout }},
	{"health-rise", "health", "good checks in a row until the broker is up", "N", "", func(c *Config) any { return &c.HealthRise }},
	{"health-fall", "health", "bad checks in a row until the broker is down", "N", "", func(c *Config) any { return &c.HealthFall }},

	{"probe-listen", "listeners", "address of /live, /ready, /startup and /broker/live", "HOST:PORT", "", func(c *Config) any { return &c.ProbeListen }},
	{"web-listen", "listeners", "address of the status page, /api/status and /metrics", "HOST:PORT", "", func(c *Config) any { return &c.WebListen }},
	{"web-config-file", "listeners", "file with TLS, users and client certificates of that address, in the form of Prometheus' exporter-toolkit", "FILE", "", func(c *Config) any { return &c.WebConfigFile }},
	{"control-socket", "listeners", "unix socket of the command line", "FILE", "state-dir/control.sock", func(c *Config) any { return &c.ControlSocket }},

	{"log-level", "logging", "least severe line that is logged", "debug|info|warn|error", "", func(c *Config) any { return &c.LogLevel }},
	{"log-format", "logging", "form of a log line", "text|json", "text on a terminal, else json", func(c *Config) any { return &c.LogFormat }},
}

// set parses values into the field. The error says what is wrong with the value
// and how to write it; the caller adds the name.
func (s Setting) set(c *Config, values []string) error {
	last := values[len(values)-1]
	switch p := s.field(c).(type) {
	case *string:
		*p = last
	case *[]string:
		*p = nil
		for _, v := range values {
			for _, item := range strings.Split(v, ",") {
				if item = strings.TrimSpace(item); item != "" {
					*p = append(*p, item)
				}
			}
		}
	case *bool:
		v, err := strconv.ParseBool(last)
		if err != nil {
			return fmt.Errorf("not a switch: write true or false")
		}
		*p = v
	case *int:
		v, err := strconv.Atoi(last)
		if err != nil {
			return fmt.Errorf("not a whole number: write digits only, such as %s", s.Default())
		}
		*p = v
	case *float64:
		v, err := strconv.ParseFloat(last, 64)
		if err != nil || v != v {
			return fmt.Errorf("not a number: write digits, such as 0.5 or 100")
		}
		*p = v
	case *time.Duration:
		v, err := time.ParseDuration(last)
		if err != nil {
			return fmt.Errorf("not a duration: write a number with a unit, such as %s", s.exampleDuration())
		}
		*p = v
	default:
		panic(fmt.Sprintf("setting %s: no parser for %T", s.Name, p))
	}
	return nil
}

func (s Setting) exampleDuration() string {
	c := Default().Effective()
	if d := *s.field(&c).(*time.Duration); d > 0 && d == d.Truncate(time.Millisecond) {
		return formatDuration(d)
	}
	return "10s"
}

// format prints the value of a field as it is written in a setting.
func format(field any) string {
	switch p := field.(type) {
	case *string:
		return *p
	case *[]string:
		return strings.Join(*p, ",")
	case *bool:
		return strconv.FormatBool(*p)
	case *int:
		return strconv.Itoa(*p)
	case *float64:
		return strconv.FormatFloat(*p, 'g', -1, 64)
	case *time.Duration:
		return formatDuration(*p)
	}
	return ""
}

// formatDuration rounds to milliseconds: what is shown must fit a table.
func formatDuration(d time.Duration) string {
	if r := d.Round(time.Millisecond); r != 0 {
		return r.String()
	}
	return d.String()
}
