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
	u, err := url.Parse(c.BrokerAdmin)
	if err != nil || u.Scheme != "http" {
		return
	}
	https := "https" + strings.TrimPrefix(c.BrokerAdmin, "http")
	for _, name := range []string{"broker-cacert", "broker-cert", "broker-key"} {
		r.when(r.value(name) != `""`, name, fmt.Sprintf("%s speaks no TLS: write %s, or leave it out", r.show("broker-admin"), https), "broker-admin")
	}
	r.when(c.BrokerTokenFile != "" && !loopback(u.Hostname()), "broker-token-file", fmt.Sprintf("%s would send the token over the network for all to read: write %s, or leave it out",
		r.show("broker-admin"), https), "broker-admin")
}

// loopback reports whether what is sent to the host stays on this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
