package nats

import (
	"cmp"
	"fmt"
	"net"
	"net/url"

	"holdfast/brokerapi/access"
)

const (
	adminPort   = "4222"
	monitorPort = "8222"

	secrets = "credentials go into --nats-creds-file, --nats-password-file or --broker-token-file"
)

// parseAddresses checks both addresses and fills in what may be left out.
func parseAddresses(admin, monitor string) (a, m *url.URL, err error) {
	if a, err = access.ParseURL("--broker-admin", admin, secrets, "nats", "tls"); err != nil {
		return nil, nil, err
	}
	if a.Path != "" {
		return nil, nil, fmt.Errorf("--broker-admin %q: has a path: want nats://host:port", admin)
	}
	host := a.Hostname()
	if a.Port() == "" {
		a.Host = net.JoinHostPort(host, adminPort)
	}
	monitor = cmp.Or(monitor, "http://"+net.JoinHostPort(host, monitorPort))
	m, err = access.ParseURL("--nats-monitor", monitor, secrets, "http", "https")
	return a, m, err
}
