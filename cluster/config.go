package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// Config says where etcd is and how to be let in. The zero value of every field but
// Endpoints is usable.
type Config struct {
	// Endpoints are URLs: http, https, unix or unixs, or a bare host:port, which
	// uses TLS if CACert or Cert is set. All must agree about TLS.
	Endpoints []string
	// CACert, Cert and Key are PEM files, read again at each TLS handshake. Without
	// CACert the system's roots are trusted. Cert and Key come together.
	CACert, Cert, Key string
	// User authenticates with the password in PasswordFile, whose trailing newline
	// is not part of it. The file is read again at each authentication.
	User, PasswordFile string
	// Prefix stands in front of every key, for example "/prod". A trailing slash is
	// dropped. Empty is allowed.
	Prefix string
	// StorageRoot is where storage states are kept below Prefix; empty means
	// "/danube-data".
	StorageRoot string
	// Identity is shared by all that must agree about which cluster this is; nil: what is
	// opened with this configuration has one of its own.
	Identity *Identity
}

// Keys is the layout under this configuration's prefix.
func (c Config) Keys() Keys { return NewKeys(c.Prefix, c.StorageRoot) }

// endpoint is one parsed entry of Config.Endpoints.
type endpoint struct {
	url    string // as configured
	addr   string // host:port, or unix:path
	server string // the name to verify in the server's certificate, and the authority
	tls    bool
}

// validate parses the endpoints and refuses combinations that cannot work. It reads
// no file and no network.
func (c Config) validate() ([]endpoint, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("no etcd endpoint is set")
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a client certificate needs both the certificate and the key file")
	}
	if (c.User == "") != (c.PasswordFile == "") {
		return nil, errors.New("etcd authentication needs both the user and the password file")
	}
	parsed := make([]endpoint, 0, len(c.Endpoints))
	for _, raw := range c.Endpoints {
		e, err := parseEndpoint(raw, c.CACert != "" || c.Cert != "")
		if err != nil {
			return nil, err
		}
		if len(parsed) > 0 && e.tls != parsed[0].tls {
			return nil, fmt.Errorf("etcd endpoints %q and %q: one uses TLS and the other does not", parsed[0].url, raw)
		}
		if slices.ContainsFunc(parsed, func(p endpoint) bool { return p.addr == e.addr }) {
			continue // given twice
		}
		parsed = append(parsed, e)
	}
	return parsed, nil
}

// CheckFiles reads the files for TLS as a connection would. That reads them again: what is
// renewed on disk is used by the next one.
func (c Config) CheckFiles() error {
	_, err := newFileCredentials(c, "").config()
	return err
}

func parseEndpoint(raw string, preferTLS bool) (endpoint, error) {
	refuse := func(why string) (endpoint, error) {
		return endpoint{}, fmt.Errorf("etcd endpoint %q: %s; want a form like http://127.0.0.1:2379", raw, why)
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		if _, _, err := net.SplitHostPort(raw); err != nil {
			return refuse("neither a URL nor host:port")
		}
		return endpoint{url: raw, addr: raw, server: raw, tls: preferTLS}, nil
	}
	switch scheme {
	case "unix", "unixs":
		if rest == "" {
			return refuse("no path")
		}
		return endpoint{url: raw, addr: "unix:" + rest, server: "localhost", tls: scheme == "unixs"}, nil
	case "http", "https":
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" {
			return refuse("not a URL with a host")
		}
		if u.Port() == "" {
			return refuse("no port")
		}
		if u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
			return refuse("only a host and a port are allowed")
		}
		return endpoint{url: raw, addr: u.Host, server: u.Host, tls: scheme == "https"}, nil
	}
	return refuse("unknown scheme")
}
