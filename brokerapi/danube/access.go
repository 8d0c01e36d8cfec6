package danube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// files are how we show ourselves to the broker, and how it shows itself to us. Each
// may be empty. They are read again whenever they are needed, so what is renewed there
// is used without a restart.
type files struct{ token, caCert, cert, key string }

// tls is the configuration for one handshake.
func (f files) tls() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caCert != "" {
		pem, err := os.ReadFile(f.caCert)
		if err != nil {
			return nil, fmt.Errorf("--broker-cacert: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--broker-cacert %s: holds no PEM certificate", f.caCert)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--broker-cert %s with --broker-key %s: %w", f.cert, f.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// transport is TLS or none, as the scheme says. failed hears why a handshake failed.
func (f files) transport(scheme string, failed func(error)) credentials.TransportCredentials {
	if scheme == "https" {
		return handshake{f, failed}
	}
	return insecure.NewCredentials()
}

// handshake is TLS with files that are read at each connection.
type handshake struct {
	files  files
	failed func(error)
}

// ClientHandshake implements credentials.TransportCredentials.
func (h handshake) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.shake(ctx, authority, raw)
	if err != nil {
		h.failed(fmt.Errorf("TLS: %w", err))
	}
	return conn, info, err
}

func (h handshake) shake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := h.files.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials; this is no server.
func (handshake) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server")
}

// Info implements credentials.TransportCredentials.
func (handshake) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}).Info()
}

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials, whose use is deprecated.
func (handshake) OverrideServerName(string) error { return errors.New("not supported") }

// bearerToken adds the token to each call. Whether it may travel in the clear is checked
// with the settings: a token for a broker on this machine may.
type bearerToken struct{ files files }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.files.bearer()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearerToken) RequireTransportSecurity() bool { return false }
