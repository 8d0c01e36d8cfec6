package config

import (
	"cmp"
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/nats"
	"holdfast/cluster"
)

// natsSettings are those that only this driver has.
type natsSettings struct {
	NATSMonitor      string `name:"nats-monitor" arg:"URL" derived:"http://host-of-broker-admin:8222" url:"http https" help:"URL of the NATS monitoring port"`
	NATSCredsFile    string `name:"nats-creds-file" arg:"FILE" file:"read" help:"credentials file for the NATS admin connection"`
	NATSUser         string `name:"nats-user" with:"nats-password-file" arg:"NAME" help:"user name of the NATS admin connection"`
	NATSPasswordFile string `name:"nats-password-file" with:"nats-user" arg:"FILE" file:"read" help:"file that holds the password of that user"`
}

// newNATS takes effective settings. Its errors are settings that cannot work.
func newNATS(c Config, _ *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	return nats.New(nats.Config{
		AdminURL:   c.BrokerAdmin,
		MonitorURL: c.NATSMonitor,
		CredsFile:  c.NATSCredsFile,
		User:       c.NATSUser,
		Password:   c.NATSPasswordFile,
		Files:      c.adminFiles(),
		BrokerID:   c.BrokerID,
		KeyPrefix:  c.Prefix,
		Logger:     log,
	})
}

func deriveNATS(c *Config) {
	c.NATSMonitor = cmp.Or(c.NATSMonitor, c.besideAdmin("http", "8222"))
}

// nats checks how we log in: by one of the ways that there are, and where nobody can read it.
func (r *report) nats() {
	c := r.c
	r.when(c.NATSUser != "" && c.NATSCredsFile != "", "nats-user", "NATS takes one login: leave out --nats-creds-file, or the user", "nats-creds-file")
	r.when(c.BrokerTokenFile != "" && c.NATSUser+c.NATSCredsFile != "", "broker-token-file", "NATS takes one login: leave out the token, or the user and the credentials")
	if c.BrokerCACert+c.BrokerCert == "" { // with TLS files TLS is spoken, whatever the scheme is
		r.inTheOpen(c.BrokerTokenFile != "", "broker-token-file", "broker-admin", c.BrokerAdmin, "nats", "tls")
		r.inTheOpen(c.NATSPasswordFile != "", "nats-password-file", "broker-admin", c.BrokerAdmin, "nats", "tls")
	}
}
