package danube

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// The ports that a Danube broker opens unless it is told otherwise.
const (
	adminPort   = "50051"
	lookupPort  = "6650"
	metricsPort = "9040"
)

// addresses are the three ports of one broker, each as a URL without a path.
type addresses struct{ admin, lookup, metrics *url.URL }

// parseAddresses checks the addresses and fills in what may be left out.
func parseAddresses(cfg Config) (addresses, error) {
	var a addresses
	var err error
	if a.admin, err = parseURL("--broker-admin", cfg.AdminURL, adminPort); err != nil {
		return addresses{}, err
	}
	beside := func(port, scheme string) string {
		return scheme + "://" + net.JoinHostPort(a.admin.Hostname(), port)
	}
	lookup, metrics := cfg.LookupURL, cfg.MetricsURL
	if lookup == "" {
		lookup = beside(lookupPort, a.admin.Scheme)
	}
	if metrics == "" {
		metrics = beside(metricsPort, "http")
	}
	if a.lookup, err = parseURL("--danube-lookup", lookup, lookupPort); err != nil {
		return addresses{}, err
	}
	if a.metrics, err = parseURL("--danube-metrics", metrics, metricsPort); err != nil {
		return addresses{}, err
	}
	return a, nil
}

// parseURL accepts one host under http or https. Errors name the flag.
func parseURL(flag, raw, port string) (*url.URL, error) {
	want := "want http://host:port or https://host:port"
	if raw == "" {
		return nil, fmt.Errorf("%s is empty: %s", flag, want)
	}
	if strings.Contains(raw, "@") {
		return nil, fmt.Errorf("%s holds credentials, which would show in logs: %s (a token goes into --broker-token-file)", flag, want)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Contains(u.Host, ",") {
		return nil, fmt.Errorf("%s %q: %s", flag, raw, want)
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s %q: has a path, a query or a fragment: %s", flag, raw, want)
	}
	if u.Port() == "" {
		port = net.JoinHostPort(u.Hostname(), port)
	} else {
		port = u.Host
	}
	return &url.URL{Scheme: u.Scheme, Host: port}, nil
}
