package agent

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/pulsar"
	"holdfast/cluster"
)

// pulsarSettings are those that only this driver has.
type pulsarSettings struct {
	PulsarCluster    string `name:"pulsar-cluster" arg:"NAME" derived:"required with pulsar" help:"clusterName of the Pulsar broker"`
	PulsarAdvertised string `name:"pulsar-advertised" arg:"HOST:PORT" derived:"as in broker-admin" help:"how the Pulsar broker calls itself in its cluster"`
	PulsarStatusFile string `name:"pulsar-status-file" arg:"FILE" help:"statusFilePath of the Pulsar broker, removed while it is drained"`
}

// newPulsar takes effective settings. Its errors are settings that cannot work.
func newPulsar(c Config, store *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	settings := pulsar.Config{
		AdminURL: c.BrokerAdmin, Cluster: c.PulsarCluster, Advertised: c.PulsarAdvertised, StatusFile: c.PulsarStatusFile,
		Files: c.adminFiles(), Logger: log,
	}
	if store != nil { // it may be the brokers' metadata store, too
		settings.Store = store
	}
	return made(pulsar.New(settings))
}
