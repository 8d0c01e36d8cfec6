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
	if rest, plain := strings.CutPrefix(c.BrokerAdmin, "http://"); plain {
		for _, name := range []string{"broker-cacert", "broker-cert", "broker-key"} {
			r.when(r.value(name) != `""`, name, fmt.Sprintf("%s speaks no TLS: write https://%s, or leave it out", r.show("broker-admin"), rest), "broker-admin")
		}
	}
	r.inTheOpen(c.BrokerTokenFile != "", "broker-token-file", "broker-admin", c.BrokerAdmin, "http", "https")
}

// inTheOpen refuses to send a secret to where for all to read. Under the scheme secure it is not.
func (r *report) inTheOpen(secret bool, name, where, address, plain, secure string) {
	u, err := url.Parse(address)
	r.when(secret && err == nil && u.Scheme == plain && !loopback(u.Hostname()), name, fmt.Sprintf("%s would send it over the network for all to read: write %s%s, or leave it out",
		r.show(where), secure, strings.TrimPrefix(address, plain)), where)
}

// loopback reports whether what is sent to the host stays on this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
