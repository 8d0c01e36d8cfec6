package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"holdfast/brokerapi/access"
)

// Rules that hold for several settings.

func (r *report) file(name, path string) {
	f, err := os.Open(path)
	if err != nil {
		r.add(name, "cannot be read: "+Cause(err)+": check the path and its permissions")
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		r.add(name, "cannot be read: "+Cause(err)+": check the path and its permissions")
	case info.IsDir():
		r.add(name, "is a directory: give a file")
	case info.Mode().IsRegular() && info.Size() == 0:
		r.add(name, "is empty: check what should have written it")
	}
}

// url checks the URL of a server; no schemes: any.
func (r *report) url(name, value string, schemes ...string) bool {
	_, shown, flaw := access.CheckURL(value, schemes...)
	if flaw != "" {
		r.list = append(r.list, problem{[]string{name}, fmt.Sprintf("%s %q: %s", r.label(name), shown, flaw)})
	}
	return flaw == ""
}

func (r *report) listen(name, value string) bool {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	r.when(err != nil, name, "not an address to listen on: write :port or host:port, with a port from 0 to 65535")
	return err == nil
}

// unleased checks what goes together with --registration none.
func (r *report) unleased() {
	defaults := Default()
	for _, s := range settings {
		r.notUnleased(s.Group == "etcd" && (s.value(&r.raw) != s.value(&defaults) || r.set(s.Name)), s.Name, "which has no etcd")
	}
	c := r.c
	if r.raw.Detach && r.set("detach") {
		r.list = append(r.list, problem{[]string{"detach", "registration"}, r.label("detach") + "=true: not together with " +
			r.show("registration") + ", which has no lease whose end could detach the broker: leave one of the two out"})
	}
	r.when(!Drivers[c.Driver].Unleased, "registration", "not with a broker of this driver: its cluster does not keep its registration without Holdfast, or does not say who else is active: leave it out, and give --etcd-endpoints", "driver")
	r.notUnleased(c.Guard == "on", "guard", "which has no deadline that a guard could keep")
	r.notUnleased(slices.Contains(r.raw.Fence, "stop"), "fence", "which has no fence point at which the broker could be stopped")
	r.notUnleased(c.Assignment == "rendezvous", "assignment", "where the broker's own cluster places the topics")
	r.notUnleased(c.OwnershipLocks == "on" && c.Assignment != "rendezvous", "ownership-locks", "which has no etcd to hold them in")
	r.notUnleased(c.SessionRetries > 0, "session-retries", "which has no etcd that could fail")
}

func (r *report) notUnleased(wrong bool, name, why string) {
	r.when(wrong, name, "not together with "+r.show("registration")+", "+why+": leave one of the two out", "registration")
}

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
