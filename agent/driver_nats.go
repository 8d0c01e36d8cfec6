package agent

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/nats"
	"holdfast/cluster"
)

// natsSettings are those that only this driver has.
type natsSettings struct {
	NATSMonitor   string `name:"nats-monitor" arg:"URL" derived:"http://host-of-broker-admin:8222" url:"http https" help:"URL of the NATS monitoring port"`
	NATSCredsFile string `name:"nats-creds-file" arg:"FILE" file:"read" help:"credentials file for the NATS admin connection"`
}

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
