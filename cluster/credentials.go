package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// handshakeRefused marks TLS failures that another attempt will not cure. gRPC keeps only
// the text of a handshake's error, so the mark must be text.
const handshakeRefused = "TLS refused"

// fileCredentials is TLS with files that are read again at each handshake, so renewed
// certificates are used without a restart.
type fileCredentials struct {
	caCert, cert, key string
}

func (f fileCredentials) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
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

// ClientHandshake implements credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := f.config()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", handshakeRefused, err)
	}
	conn, info, err := credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
	if err == nil {
		return conn, info, nil
	}
	var unverified *tls.CertificateVerificationError
	var alert tls.AlertError
	var noTLS tls.RecordHeaderError
	if errors.As(err, &unverified) || errors.As(err, &alert) || errors.As(err, &noTLS) {
		return nil, nil, fmt.Errorf("%s: %w", handshakeRefused, err)
	}
	return nil, nil, err
}

// ServerHandshake implements credentials.TransportCredentials; this is no server.
func (fileCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server")
}

// Info implements credentials.TransportCredentials.
func (fileCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (f fileCredentials) Clone() credentials.TransportCredentials { return f }

// OverrideServerName implements credentials.TransportCredentials; gRPC does not use it.
func (fileCredentials) OverrideServerName(string) error { return nil }

// tokens trades user and password for etcd's token when a request needs one, and again
// when etcd refuses it. Requests without a token each ask for one themselves: waiting for
// another's answer would tie a new connection to a dead one.
type tokens struct {
	user, passwordFile string

	mu    sync.Mutex
	token string
	off   bool // the server has authentication switched off
}

func (t *tokens) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if t.user == "" || method == etcdserverpb.Auth_Authenticate_FullMethodName {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	token, err := t.get(ctx, cc)
	if err != nil {
		return err
	}
	err = invoke(withToken(ctx, token), method, req, reply, cc, opts...)
	if !refusesToken(err) {
		return err
	}
	// The request was refused before it did anything, so it may be repeated once.
	t.drop(token)
	if token, err = t.get(ctx, cc); err != nil {
		return err
	}
	return invoke(withToken(ctx, token), method, req, reply, cc, opts...)
}

func (t *tokens) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if t.user == "" {
		return open(ctx, desc, cc, method, opts...)
	}
	token, err := t.get(ctx, cc)
	if err != nil {
		return nil, err
	}
	stream, err := open(withToken(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &tokenStream{ClientStream: stream, tokens: t, token: token}, nil
}

// tokenStream forgets a token that the server refuses, so that the next stream asks anew.
type tokenStream struct {
	grpc.ClientStream
	tokens *tokens
	token  string
}

func (s *tokenStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) && refusesToken(err) {
		s.tokens.drop(s.token)
	}
	return err
}

func (t *tokens) get(ctx context.Context, cc *grpc.ClientConn) (string, error) {
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
	answer, err := etcdserverpb.NewAuthClient(cc).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{
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

func requireLeaderUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(clientv3.WithRequireLeader(ctx), method, req, reply, cc, opts...)
}

func requireLeaderStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(clientv3.WithRequireLeader(ctx), desc, cc, method, opts...)
}
