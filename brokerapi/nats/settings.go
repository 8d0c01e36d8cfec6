package nats

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

const (
	adminPort   = "4222"
	monitorPort = "8222"
)

// parseAddresses checks both addresses and fills in what may be left out.
func parseAddresses(admin, monitor string) (adminURL, monitorURL string, err error) {
	a, err := parseURL("--broker-admin", admin, "nats", "tls")
	if err != nil {
		return "", "", err
	}
	if a.Path != "" && a.Path != "/" {
		return "", "", fmt.Errorf("--broker-admin %q: has a path: want nats://host:port", admin)
	}
	host := a.Hostname()
	if a.Port() == "" {
		a.Host = net.JoinHostPort(host, adminPort)
	}
	a.Path = ""
	if monitor == "" {
		monitor = "http://" + net.JoinHostPort(host, monitorPort)
	}
	m, err := parseURL("--nats-monitor", monitor, "http", "https")
	if err != nil {
		return "", "", err
	}
	return a.String(), strings.TrimSuffix(m.String(), "/"), nil
}

// parseURL accepts one host under one of the schemes. Errors name the flag.
func parseURL(flag, raw string, schemes ...string) (*url.URL, error) {
	want := schemes[0] + "://host:port"
	if raw == "" {
		return nil, fmt.Errorf("%s is empty: want %s", flag, want)
	}
	if strings.Contains(raw, "@") {
		return nil, fmt.Errorf("%s holds credentials, which would show in logs: want %s (credentials go into --nats-creds-file)", flag, want)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s %q: not a URL: want %s", flag, raw, want)
	}
	if strings.Contains(u.Host, ",") {
		return nil, fmt.Errorf("%s %q: names several servers: want this broker's own address, %s", flag, raw, want)
	}
	known := false
	for _, s := range schemes {
		known = known || u.Scheme == s
	}
	if !known || u.Hostname() == "" {
		return nil, fmt.Errorf("%s %q: want %s", flag, raw, want)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s %q: has a query or a fragment: want %s", flag, raw, want)
	}
	return u, nil
}

// checkCreds finds at once what would otherwise fail at every attempt to connect.
func checkCreds(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--nats-creds-file: %w", err)
	}
	if !bytes.Contains(data, []byte("BEGIN NATS USER JWT")) || !bytes.Contains(data, []byte("BEGIN USER NKEY SEED")) {
		return fmt.Errorf("--nats-creds-file %s: is not a NATS credentials file (user JWT and NKEY seed): make one with nsc generate creds", file)
	}
	return nil
}
