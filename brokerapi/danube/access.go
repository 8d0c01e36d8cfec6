package danube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/brokerapi/access"
)

// credential is how we show ourselves to the broker, and how it shows itself to us.
type credential struct {
	files access.Files
	token *access.Token // nil: none
}

// openCredential reads the files once, to find what cannot work.
func openCredential(cfg Config) (c credential, err error) {
	c.files = access.Files{CACert: cfg.CACert, Cert: cfg.Cert, Key: cfg.Key}
	if err := c.files.Check(); err != nil {
		return credential{}, err
	}
	if cfg.TokenFile != "" {
		c.token, err = access.OpenToken(cfg.TokenFile)
	}
	return c, err
}

// transport is TLS or none, as the scheme says. failed hears why a handshake failed.
func (c credential) transport(scheme string, failed func(error)) credentials.TransportCredentials {
	if scheme == "https" {
		return handshake{c.files, failed}
	}
	return insecure.NewCredentials()
}

// handshake is TLS with files that are read at each connection.
type handshake struct {
	files  access.Files
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
	cfg, err := h.files.Config("")
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
type bearerToken struct{ *access.Token }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + t.Current()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearerToken) RequireTransportSecurity() bool { return false }
