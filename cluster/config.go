package cluster

import (
	"errors"
	"fmt"
	"slices"

	"holdfast/brokerapi/access"
)

// Config says where etcd is and how to be let in. The zero value of every field but
// Endpoints is usable.
type Config struct {
	// Endpoints are URLs: http or https.
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
	// Identity is shared by all that must agree about which cluster this is; nil: what is
	// opened with this configuration has one of its own.
	Identity *Identity
	// Denials takes up what etcd denies; nil: nobody looks.
	Denials *Denials
}

// Keys is the layout under this configuration's prefix.
func (c Config) Keys() Keys { return NewKeys(c.Prefix) }

// endpoint is one parsed entry of Config.Endpoints.
type endpoint struct {
	url    string // as configured
	addr   string // host:port
	server string // the name to verify in the server's certificate
	tls    bool
}

// parse reads the endpoints, each once. It reads no file and no network.
func (c Config) parse() (parsed []endpoint, err error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("no etcd endpoint is set")
	}
	for _, raw := range c.Endpoints {
		u, err := access.ParseURL("etcd endpoint", raw, "http", "https")
		if err != nil {
			return nil, err
		}
		if u.Port() == "" || u.Path != "" {
			return nil, fmt.Errorf("etcd endpoint %q: write a host and a port, such as http://127.0.0.1:2379", raw)
		}
		if !slices.ContainsFunc(parsed, func(p endpoint) bool { return p.addr == u.Host }) { // else it is given twice
			parsed = append(parsed, endpoint{raw, u.Host, u.Hostname(), u.Scheme == "https"})
		}
	}
	return parsed, nil
}
