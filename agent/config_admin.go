package agent

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// adminAccess checks how we show ourselves to the broker's admin API, and how it shows itself
// to us.
func (r *report) adminAccess() {
	c := r.c
	files := []struct{ name, path string }{
		{"broker-token-file", c.BrokerTokenFile}, {"broker-cacert", c.BrokerCACert},
		{"broker-cert", c.BrokerCert}, {"broker-key", c.BrokerKey},
	}
	// The client port is asked with the token too.
	if u, err := url.Parse(c.DanubeLookup); c.Driver == "danube" && c.BrokerTokenFile != "" && err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
		r.add("broker-token-file", fmt.Sprintf("%s would send the token over the network for all to read: write https%s, or leave it out",
			r.show("danube-lookup"), strings.TrimPrefix(c.DanubeLookup, "http")), "danube-lookup")
	}
	u, err := url.Parse(c.BrokerAdmin)
	if err == nil && c.Driver == "nats" {
		r.natsAccess()
		// With TLS files TLS is spoken, whatever the scheme is.
		open := u.Scheme == "nats" && c.BrokerCACert+c.BrokerCert == "" && !loopback(u.Hostname())
		for _, f := range []struct{ name, path string }{{"broker-token-file", c.BrokerTokenFile}, {"nats-password-file", c.NATSPasswordFile}} {
			if open && f.path != "" {
				r.add(f.name, fmt.Sprintf("%s would send it over the network for all to read: write tls%s, or leave it out",
					r.show("broker-admin"), strings.TrimPrefix(c.BrokerAdmin, "nats")), "broker-admin")
			}
		}
	}
	if err != nil || u.Scheme != "http" {
		return
	}
	https := "https" + strings.TrimPrefix(c.BrokerAdmin, "http")
	for _, f := range files[1:] {
		r.when(f.path != "", f.name, fmt.Sprintf("%s speaks no TLS: write %s, or leave it out", r.show("broker-admin"), https), "broker-admin")
	}
	r.when(c.BrokerTokenFile != "" && !loopback(u.Hostname()), "broker-token-file", fmt.Sprintf("%s would send the token over the network for all to read: write %s, or leave it out",
		r.show("broker-admin"), https), "broker-admin")
}

// loopback reports whether what is sent to the host stays on this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
