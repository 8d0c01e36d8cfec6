package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

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
	b, err := nats.New(nats.Config{
		AdminURL:   c.BrokerAdmin,
		MonitorURL: c.NATSMonitor,
		CredsFile:  c.NATSCredsFile,
		User:       c.NATSUser,
		Password:   c.NATSPasswordFile,
		TokenFile:  c.BrokerTokenFile,
		CACert:     c.BrokerCACert,
		Cert:       c.BrokerCert,
		Key:        c.BrokerKey,
		BrokerID:   c.BrokerID,
		KeyPrefix:  c.Prefix,
		Logger:     log,
	})
	if err != nil {
		return nil, err // it names the flag, the value and the remedy
	}
	return b, nil
}

func deriveNATS(c *Config) {
	c.NATSMonitor = cmp.Or(c.NATSMonitor, c.besideAdmin("http", "8222"))
}

// nats checks how we log in: by one of the ways that there are, and where nobody can read it.
func (r *report) nats() {
	c := r.c
	r.when(c.NATSUser != "" && c.NATSCredsFile != "", "nats-user", "NATS takes one login: leave out --nats-creds-file, or the user", "nats-creds-file")
	r.when(c.BrokerTokenFile != "" && c.NATSUser+c.NATSCredsFile != "", "broker-token-file", "NATS takes one login: leave out the token, or the user and the credentials")
	u, err := url.Parse(c.BrokerAdmin)
	if err != nil || u.Scheme != "nats" || c.BrokerCACert+c.BrokerCert != "" || loopback(u.Hostname()) {
		return // with TLS files TLS is spoken, whatever the scheme is
	}
	open := fmt.Sprintf("%s would send it over the network for all to read: write tls%s, or leave it out", r.show("broker-admin"), strings.TrimPrefix(c.BrokerAdmin, "nats"))
	r.when(c.BrokerTokenFile != "", "broker-token-file", open, "broker-admin")
	r.when(c.NATSPasswordFile != "", "nats-password-file", open, "broker-admin")
}
