package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// newHTTP has no proxy: the broker is beside us. It speaks HTTP/1.1 only, where a call
// that is given up takes its connection with it.
func (c *Client) newHTTP(files tlsFiles, host string) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{
		Transport: &http.Transport{
			DialContext: c.dial,
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return c.dialTLS(ctx, network, address, files, host)
			},
			Protocols:              protocols,
			DisableCompression:     true, // a small answer must not unpack into a huge one
			MaxResponseHeaderBytes: maxHead,
			MaxIdleConnsPerHost:    maxIdle,
			IdleConnTimeout:        idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects on behalf of a call, and may outlive it: the connection is then kept
// for the next one. It does not outlive the client.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !c.enter() {
		return nil, ErrClosed
	}
	defer c.inside.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
}

func (c *Client) dialTLS(ctx context.Context, network, address string, files tlsFiles, host string) (net.Conn, error) {
	cfg, err := files.config(host)
	if err != nil {
		return nil, err
	}
	raw, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !c.enter() {
		raw.Close()
		return nil, ErrClosed
	}
	defer c.inside.Done()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// tlsFiles are read again for each connection, so renewed certificates are used without
// a restart.
type tlsFiles struct {
	caCert, cert, key string
}

// check finds at once what would otherwise fail at every attempt to connect.
func (f tlsFiles) check(scheme string) error {
	switch {
	case f.cert != "" && f.key == "":
		return fmt.Errorf("--broker-cert %s: certificate without a key: give --broker-key too", f.cert)
	case f.key != "" && f.cert == "":
		return fmt.Errorf("--broker-key %s: key without a certificate: give --broker-cert too", f.key)
	case scheme == "http" && f != (tlsFiles{}):
		return fmt.Errorf("--broker-admin has http:// and TLS files are set: write https://, or leave out --broker-cacert, --broker-cert and --broker-key")
	}
	_, err := f.config("")
	return err
}

func (f tlsFiles) config(host string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if f.caCert != "" {
		pem, err := os.ReadFile(f.caCert)
		if err != nil {
			return nil, fmt.Errorf("--broker-cacert: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--broker-cacert %s: has no certificate in PEM form", f.caCert)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--broker-cert %s and --broker-key %s: %w", f.cert, f.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
