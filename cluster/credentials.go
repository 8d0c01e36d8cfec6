package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// handshakeRefused marks TLS failures that another attempt will not cure. gRPC keeps only
// the text of a handshake's error, so the mark must be text.
const handshakeRefused = "TLS refused"

// fileCredentials is TLS with files that are read again at each handshake, so renewed
// certificates are used without a restart.
type fileCredentials struct {
	credentials.TransportCredentials // for what is not the handshake
	caCert, cert, key, server        string
}

func (f fileCredentials) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.server}
	if f.caCert != "" {
		pem, err := os.ReadFile(f.caCert)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA certificate: no PEM certificate in %s", f.caCert)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// newFileCredentials verifies the server under that name, which may have a port.
func newFileCredentials(cfg Config, server string) fileCredentials {
	if host, _, err := net.SplitHostPort(server); err == nil {
		server = host
	}
	return fileCredentials{credentials.NewTLS(nil), cfg.CACert, cfg.Cert, cfg.Key, server}
}

// ClientHandshake implements credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := f.config()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", handshakeRefused, err)
	}
	conn, info, err := credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
	var unverified *tls.CertificateVerificationError
	var alert tls.AlertError
	var noTLS tls.RecordHeaderError
	if errors.As(err, &unverified) || errors.As(err, &alert) || errors.As(err, &noTLS) {
		err = fmt.Errorf("%s: %w", handshakeRefused, err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (f fileCredentials) Clone() credentials.TransportCredentials { return f }

// tokens trades user and password for etcd's token when a request needs one, and again
// when etcd refuses it. Requests without a token each ask for one themselves: waiting for
// another's answer would tie a new connection to a dead one. The etcd client would log in for
// each stream, so for each renewal.
type tokens struct {
	user, passwordFile string

	mu    sync.Mutex
	token string
	off   bool // the server has authentication switched off
}

// use has a request made with a token, and made once more with a new one if it was refused.
// The token rides in the context, by which the etcd client tells watch streams apart: a watch
// with a new token is not asked for over a stream with an old one.
func (t *tokens) use(ctx context.Context, w *way, request func(context.Context) error) error {
	ctx = clientv3.WithRequireLeader(ctx)
	if t.user == "" {
		return request(ctx)
	}
	for again := false; ; again = true {
		token, err := t.get(ctx, w)
		if err != nil {
			return err
		}
		if err = request(withToken(ctx, token)); !refusesToken(err) || again {
			return err
		}
		t.drop(token)
	}
}

// on is the context of a watch, which is not asked for twice: whoever watches has read before.
func (t *tokens) on(ctx context.Context, w *way) (context.Context, error) {
	ctx = clientv3.WithRequireLeader(ctx)
	if t.user == "" {
		return ctx, nil
	}
	token, err := t.get(ctx, w)
	return withToken(ctx, token), err
}

func (t *tokens) get(ctx context.Context, w *way) (string, error) {
	t.mu.Lock()
	token, off := t.token, t.off
	t.mu.Unlock()
	if token != "" || off {
		return token, nil
	}
	password, err := os.ReadFile(t.passwordFile)
	if err != nil {
		return "", fmt.Errorf("authenticate as %s: %w: %w", t.user, errCredentials, err)
	}
	answer, err := etcdserverpb.NewAuthClient(w.conn).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{
		Name: t.user, Password: strings.TrimRight(string(password), "\r\n"),
	})
	err = clientv3.ContextError(ctx, err)
	off = errors.Is(err, rpctypes.ErrAuthNotEnabled)
	if err != nil && !off {
		return "", fmt.Errorf("authenticate as %s: %w", t.user, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.off = answer.GetToken(), off
	return t.token, nil
}

func (t *tokens) drop(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token, t.off = "", false
	}
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

// refusesToken tells the answers that a new token may cure. ErrUserEmpty comes when
// authentication was switched on after the token was asked for.
func refusesToken(err error) bool {
	if err == nil {
		return false
	}
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrUserEmpty)
}
