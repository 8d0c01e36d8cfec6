package config

import (
	"log/slog"
	"maps"
	"slices"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/danube"
	"holdfast/brokerapi/httpapi"
	"holdfast/brokerapi/nats"
	"holdfast/brokerapi/pulsar"
	"holdfast/cluster"
)

// Driver is one kind of broker: how to talk to it, and the defaults that follow.
type Driver struct {
	// New takes effective settings and the store, which belongs to the agent. It connects
	// to nothing. Its errors are settings that cannot work.
	New          func(Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error)
	Derive       func(*Config)       // fills in what follows from other settings; nil: nothing does
	Check        func(*report)       // its rules between settings; nil: it has none
	Admin        string              // default of broker-admin
	Port         uint16              // of broker-admin whose URL has none, where the scheme does not say; 0: it does
	Hold         func(Config) string // URL of the port that is held; nil: broker-admin
	Registration string              // default of registration
	Adopt        string              // warning with registration adopt; empty: its broker may register itself
	Failover     string              // default of failover
	Unleased     bool                // with registration none: its cluster keeps that, and says who else is active
	Markers      []string            // default of data-marker
	AdminSchemes []string            // schemes that broker-admin may have
	Traits       func(Config) brokerapi.Traits
	Unmoved      string // why its topics cannot be moved, and what to do instead; empty: they can
}

// Drivers lists what this version knows. The NATS markers match a stream's own
// record, whether the data directory is the server's store_dir or, as the server
// states it, the jetstream folder inside. Those of Danube match a topic's folder,
// whether the data directory is the one that holds wal, or the one above.
var Drivers = map[string]Driver{
	"danube": {
		New:          newDanube,
		Derive:       deriveDanube,
		Traits:       func(c Config) brokerapi.Traits { return danube.Traits(c.Registration != "adopt") },
		Check:        (*report).danube,
		Admin:        "http://127.0.0.1:50051",
		Registration: "adopt",
		Failover:     "move",
		Unleased:     true,
		Unmoved: "Danube 0.7 destroys topics that it unloads while they are in use: to move a topic, seal it as docs/brokers/danube.md says, " +
			"and stop the broker's process: 'holdfast leave', then stop it",
		Markers:      []string{"wal/*/*", "danube-data/wal/*/*"},
		AdminSchemes: []string{"http", "https"},
	},
	// A broker that nobody here knows: where it answers is not to be guessed, and its data
	// is its own until --failover says that other brokers reach it.
	"http": {
		New:          newHTTP,
		Derive:       deriveHTTP,
		Traits:       func(c Config) brokerapi.Traits { return httpapi.Traits(c.HTTPCapabilities) },
		Check:        (*report).httpCapabilities,
		Registration: "own",
		Failover:     "hold",
		AdminSchemes: []string{"http", "https"},
	},
	"nats": {
		New:          newNATS,
		Derive:       deriveNATS,
		Traits:       func(Config) brokerapi.Traits { return nats.Traits },
		Check:        (*report).nats,
		Admin:        "nats://127.0.0.1:4222",
		Port:         4222,
		Hold:         func(c Config) string { return c.NATSMonitor }, // it asks nobody to log in
		Registration: "own",
		Adopt:        "nats-server registers itself nowhere, so this waits until something else writes the registration: leave it out if nothing does",
		Failover:     "hold",
		Markers:      []string{"jetstream/*/streams/*/meta.inf", "*/streams/*/meta.inf"},
		AdminSchemes: []string{"nats", "tls"},
	},
	"pulsar": {
		New:          newPulsar,
		Check:        (*report).pulsar,
		Admin:        "http://127.0.0.1:8080",
		Registration: "own",
		Failover:     "move",
		AdminSchemes: []string{"http", "https"},
		Traits:       func(Config) brokerapi.Traits { return pulsar.Traits },
	},
}

// adminFiles are those by which the broker's admin API and we know each other.
func (c Config) adminFiles() access.Files {
	return access.Files{CACert: c.BrokerCACert, Cert: c.BrokerCert, Key: c.BrokerKey, TokenFile: c.BrokerTokenFile}
}

// Traits are those of the broker, as these settings have it.
func (c Config) Traits() (t brokerapi.Traits) {
	if d := Drivers[c.Driver]; d.Traits != nil {
		t = d.Traits(c)
	}
	return t
}

// DriverNames lists the known Drivers in order.
func DriverNames() []string { return slices.Sorted(maps.Keys(Drivers)) }
