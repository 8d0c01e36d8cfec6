package agent

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/pulsar"
	"holdfast/cluster"
)

// newPulsar takes effective settings. Its errors are settings that cannot work.
func newPulsar(c Config, _ *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	b, err := pulsar.New(pulsar.Config{
		AdminURL: c.BrokerAdmin, Cluster: c.PulsarCluster, Advertised: c.PulsarAdvertised, StatusFile: c.PulsarStatusFile,
		TokenFile: c.BrokerTokenFile, CACert: c.BrokerCACert, Cert: c.BrokerCert, Key: c.BrokerKey, Logger: log,
	})
	if err != nil {
		return nil, err // it names the flag, the value and the remedy
	}
	return b, nil
}
