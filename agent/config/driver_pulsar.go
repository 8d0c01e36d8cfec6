package config

import (
	"log/slog"
	"net"
	"path/filepath"

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
	return pulsar.New(settings)
}

// pulsar checks the settings that only a Pulsar broker has.
func (r *report) pulsar() {
	c := r.c
	r.required(c.PulsarCluster == "", "pulsar-cluster", " with --driver pulsar: write the clusterName of the broker's broker.conf")
	if host, port, err := net.SplitHostPort(c.PulsarAdvertised); c.PulsarAdvertised != "" && (err != nil || host == "" || port == "") {
		r.add("pulsar-advertised", "not host:port: write it as GET /admin/v2/brokers/CLUSTER lists this broker")
	}
	r.when(c.PulsarStatusFile != "" && !filepath.IsAbs(c.PulsarStatusFile), "pulsar-status-file", "not an absolute path: write the statusFilePath of the broker's broker.conf")
	r.when(c.Registration == "adopt", "registration", "a Pulsar broker's session is the broker's own, and is not renewed from here: write own, or leave it out", "driver")
}
