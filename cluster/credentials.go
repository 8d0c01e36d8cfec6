package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"holdfast/brokerapi/access"
)

// handshakeRefused marks TLS failures that another attempt will not cure. gRPC keeps only
// the text of a handshake's error, so the mark must be text.
const handshakeRefused = "TLS refused"

// files are those for TLS.
func (c Config) files() access.Files {
	return access.Files{CACert: c.CACert, Cert: c.Cert, Key: c.Key, Of: "etcd"}
}

// CheckFiles reads the files for TLS as a connection would. That reads them again: what is
// renewed on disk is used by the next one.
func (c Config) CheckFiles() error { return c.files().Check() }

// fileCredentials is TLS with files that are read again at each handshake, so renewed
// certificates are used without a restart.
type fileCredentials struct {
	credentials.TransportCredentials // for what is not the handshake
	access.Files
	server string
}

// ClientHandshake implements credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (conn net.Conn, info credentials.AuthInfo, err error) {
	cfg, unread := f.Config(f.server)
	if err = unread; err == nil {
		conn, info, err = credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
	}
	var unverified *tls.CertificateVerificationError
	var alert tls.AlertError
	var noTLS tls.RecordHeaderError
	if unread != nil || errors.As(err, &unverified) || errors.As(err, &alert) || errors.As(err, &noTLS) {
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
	last               atomic.Pointer[string] // empty: etcd asks nobody who he is; nil: to be asked for
}

// on is the context of what is asked over a connection: it requires a leader, and has a token
// where one is needed. By the context the etcd client tells watch streams apart: a watch with a new
// token is not asked for over a stream with an old one.
func (t *tokens) on(ctx context.Context, w *way) (_ context.Context, token string, err error) {
	ctx = clientv3.WithRequireLeader(ctx)
	if t.user != "" {
		token, err = t.get(ctx, w)
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
	}
	return ctx, token, err
}

func (t *tokens) get(ctx context.Context, w *way) (_ string, err error) {
	if last := t.last.Load(); last != nil {
		return *last, nil
	}
	defer during(&err, "authenticate as %s", t.user)
	password, err := os.ReadFile(t.passwordFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errCredentials, err)
	}
	answer, err := etcdserverpb.NewAuthClient(w.conn).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{
		Name: t.user, Password: strings.TrimRight(string(password), "\r\n"),
	})
	if err = clientv3.ContextError(ctx, err); err != nil && !errors.Is(err, rpctypes.ErrAuthNotEnabled) {
		return "", err
	}
	token := answer.GetToken()
	t.last.Store(&token)
	return token, nil
}

// refused drops a token that etcd has refused, and reports whether a new one may do. The empty
// user name comes when authentication was switched on after the token was asked for.
func (t *tokens) refused(token string, err error) bool {
	cures := []string{rpctypes.ErrInvalidAuthToken.Error(), rpctypes.ErrAuthOldRevision.Error(), rpctypes.ErrUserEmpty.Error()}
	if t.user == "" || err == nil || !slices.Contains(cures, words(err)) {
		return false
	}
	if last := t.last.Load(); last != nil && *last == token {
		t.last.CompareAndSwap(last, nil)
	}
	return true
}
