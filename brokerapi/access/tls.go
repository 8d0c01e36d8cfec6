// Package access reads the files by which we show ourselves to a broker's admin API or to etcd, and
// by which it shows itself to us: authorities, a client certificate, a bearer token. It connects by
// them.
//
// Guaranteed: what is renewed on disk is used without a restart, certificates by the next
// connection and a token by the next call; an error names the setting and the file, and
// never holds what stands in it. Not guaranteed: that files which belong together are
// read at the same moment; a connection that meets half of a change fails, and the next
// one does not.
package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"holdfast/brokerapi/hosts"
)

// Files are those of one server. Each may be empty: no authorities are the system's.
type Files struct {
	CACert    string // --broker-cacert, PEM
	Cert, Key string // --broker-cert, --broker-key, PEM: both or none, as the settings see to
	TokenFile string // --broker-token-file
	Of        string // whose these settings are; empty: the broker's
}

func (f Files) flag() string { return "--" + cmp.Or(f.Of, "broker") }

// Check finds at once what would otherwise fail at every attempt to connect.
func (f Files) Check() error {
	_, err := f.Config("")
	return err
}

// Config reads the files for one connection. The host is the name that the broker's
// certificate must have; empty: the caller sets it.
func (f Files) Config(host string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if f.CACert != "" {
		pem, err := os.ReadFile(f.CACert)
		if err != nil {
			return nil, fmt.Errorf("%s-cacert: %w", f.flag(), err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s-cacert %s: has no certificate in PEM form", f.flag(), f.CACert)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("%s-cert %s and %[1]s-key %[3]s: %[4]w", f.flag(), f.Cert, f.Key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// Connect connects to host:port, by TLS if it is secure, and speaks one of the protocols there.
func (f Files) Connect(ctx context.Context, address string, secure bool, protocols ...string) (net.Conn, error) {
	conn, err := hosts.Dial(ctx, address)
	if err != nil || !secure {
		return conn, err
	}
	host, _, _ := net.SplitHostPort(address)
	cfg, err := f.Config(host)
	if err == nil {
		cfg.NextProtos = protocols
		secured := tls.Client(conn, cfg)
		if err = secured.HandshakeContext(ctx); err == nil {
			return secured, nil
		}
	}
	conn.Close()
	return nil, err
}
