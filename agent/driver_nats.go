package agent

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/nats"
	"holdfast/cluster"
)

// newNATS takes effective settings. Its errors are settings that cannot work.
func newNATS(c Config, _ *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	b, err := nats.New(nats.Config{
		AdminURL:   c.BrokerAdmin,
		MonitorURL: c.NATSMonitor,
		CredsFile:  c.NATSCredsFile,
		BrokerID:   c.BrokerID,
		KeyPrefix:  c.Prefix,
		Logger:     log,
	})
	if err != nil {
		return nil, err // it names the flag, the value and the remedy
	}
	return b, nil
}
