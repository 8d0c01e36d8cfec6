// Package pulsar drives an Apache Pulsar broker through its REST admin API.
//
// Names. A Holdfast topic is /namespace/topic; the namespace is Pulsar's tenant and
// namespace with a '~' between them, which is legal in neither. What is owned by a Pulsar
// broker is a bundle, a range of the hashes of a namespace's topics, so that is what
// Topics lists:
//
//	/public~default/0x00000000_0x40000000   a bundle of public/default
//	/public~default/orders                  persistent://public/default/orders
//	/default/orders                         the same: without '~' the tenant is public
//
// Load of a topic looks it up, by which its bundle comes to be owned; no topic is created.
// Load of a bundle does the same with a made-up topic name that hashes into it.
//
// Not listed are the namespaces that belong to one broker for its life, for heartbeats
// and service monitoring: pulsar/{host:port}, pulsar/{cluster}/{host:port} and
// sla-monitor/{cluster}/{host:port}. Namespaces of Pulsar's first form, with three parts,
// are listed as unreadable: they cannot be unloaded by the calls that this driver knows.
//
// Which broker owns a bundle is decided by Pulsar's own cluster. There is no quiescing,
// and no drained mode: SetMode(Drained) has the cluster choose others by a namespace isolation
// policy, which needs a superuser's rights, takes the status file away, by which load balancers
// send nobody here any more, and unloads the bundles until none is left. Where there can be no
// policy, a client that looks a topic up brings its bundle back until the next call.
//
// Guaranteed: an answer that is malformed, too large, too slow or from another broker is
// an error and never health. What Unload says is not owned here has been looked up in the
// broker's own list.
//
// Health is /admin/v2/brokers/ready, which rests on the process alone. Works is Pulsar's own
// health check, which produces and reads a message: it has no deadline of its own, gets ours,
// and fails with the bookies, so it says nothing of this broker.
package pulsar

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// Config is what New needs. Messages name the settings by their flags.
type Config struct {
	AdminURL   string // --broker-admin: http(s)://host:port
	Cluster    string // --pulsar-cluster: clusterName of broker.conf
	Advertised string // --pulsar-advertised: host:port that the broker calls itself; empty: as in AdminURL
	StatusFile string // --pulsar-status-file: statusFilePath of broker.conf; empty: none
	TokenFile  string // --broker-token-file
	CACert     string // --broker-cacert
	Cert, Key  string // --broker-cert, --broker-key
	Store      Store  // nil: what a dead process holds runs out
	Logger     *slog.Logger
}

// Broker is one Pulsar broker. It is safe for concurrent use.
type Broker struct {
	cfg    Config
	self   string // host:port
	rest   *rest.Client
	log    *slog.Logger
	random string // makes instances of this driver unlike those of another
	held   held
	begin  sync.Once
	tasks  sync.WaitGroup

	mu        sync.Mutex
	started   map[int]time.Time // of the broker's process, by connection
	proven    int               // connection on which it has proved last who it is; 0: none
	clustered bool              // it has told that it is of the cluster that was set
	session   session
	flaw      string // why the mode may not hold, as it was said last
}

var (
	_ brokerapi.Broker     = (*Broker)(nil)
	_ brokerapi.Unloader   = (*Broker)(nil)
	_ brokerapi.ModeSetter = (*Broker)(nil)
	_ brokerapi.Worker     = (*Broker)(nil)
	_ brokerapi.Releaser   = (*Broker)(nil)
)

// New checks the settings. It connects to nothing.
func New(cfg Config) (*Broker, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Cluster == "" {
		return nil, errors.New("--pulsar-cluster: required: write the clusterName of the broker's broker.conf")
	}
	if !legal.MatchString(cfg.Cluster) {
		return nil, fmt.Errorf("--pulsar-cluster %q: not a name of a Pulsar cluster: write the clusterName of the broker's broker.conf", cfg.Cluster)
	}
	client, err := rest.New(rest.Config{URL: cfg.AdminURL, TokenFile: cfg.TokenFile, CACert: cfg.CACert, Cert: cfg.Cert, Key: cfg.Key})
	if err != nil {
		return nil, err // it names the flag, the value and the remedy
	}
	self := cfg.Advertised
	if self == "" {
		if self, err = hostPort(cfg.AdminURL); err != nil {
			return nil, err
		}
	}
	if host, port, err := net.SplitHostPort(self); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("--pulsar-advertised %q: want host:port, as GET /admin/v2/brokers/%s lists this broker", self, cfg.Cluster)
	}
	b := &Broker{cfg: cfg, self: self, rest: client, log: cfg.Logger, random: rand.Text()[:8], started: map[int]time.Time{}}
	b.held.init(client)
	return b, nil
}

func hostPort(admin string) (string, error) {
	u, err := url.Parse(admin)
	if err != nil {
		return "", fmt.Errorf("--broker-admin %q: not a URL", admin)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// Capabilities implements brokerapi.Broker. A bundle's data is in BookKeeper, not here, and
// BookKeeper fences the ledgers of a broker whose bundle another one has opened.
func (b *Broker) Capabilities() brokerapi.Capabilities {
	return brokerapi.Capabilities{
		Unload: true, Steer: true, Work: true, Registers: true, Assigns: true, FencesItself: true,
	}
}

// Close implements brokerapi.Broker.
func (b *Broker) Close() error {
	b.begin.Do(func() {}) // a watch that has not begun does not begin any more
	b.held.close()
	err := b.rest.Close()
	b.tasks.Wait()
	return err
}

// watch begins to hold a connection, once.
func (b *Broker) watch() {
	b.begin.Do(func() { b.tasks.Go(b.held.run) })
}
