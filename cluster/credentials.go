package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"holdfast/brokerapi/access"
)

// RefusedConnection marks failures to connect that another attempt will not cure. What is wrong and
// what to do follows it. gRPC keeps only the text of a handshake's error, so the mark must be text.
const RefusedConnection = "no connection this way: "

// files are those for TLS.
func (c Config) files() access.Files {
	return access.Files{CACert: c.CACert, Cert: c.Cert, Key: c.Key, Of: "etcd"}
}

// CheckFiles reads the files for TLS as a connection would. That reads them again: what is
// renewed on disk is used by the next one.
func (c Config) CheckFiles() error { return c.files().Check() }

// fileCredentials is TLS with files that are read again at each handshake, so renewed
// certificates are used without a restart; or, without TLS, what says that etcd speaks it.
type fileCredentials struct {
	credentials.TransportCredentials // for what is not the handshake
	access.Files
	endpoint
}

// ClientHandshake implements credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	shake := f.TransportCredentials
	if f.tls {
		cfg, err := f.Config(f.server)
		if err != nil {
			return nil, nil, fmt.Errorf("%s%w%s", RefusedConnection, err, f.Remedy(err))
		}
		shake = credentials.NewTLS(cfg)
	}
	conn, info, err := shake.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, f.explained(raw, err)
	}
	return &greeted{Conn: conn, why: func(err error) error { return f.explained(raw, err) }}, info, nil
}

// explained marks what another attempt will not cure, and says what will.
func (f fileCredentials) explained(conn net.Conn, err error) error {
	if other := access.OtherScheme(conn.RemoteAddr(), f.tls, err); other != "" {
		return errors.New(RefusedConnection + other)
	}
	if remedy := f.Remedy(err); remedy != "" {
		text, _, _ := strings.Cut(err.Error(), " If you upgraded from") // which gRPC says to who writes programs
		return errors.New(RefusedConnection + text + remedy)
	}
	return err
}

// greeted is a connection that says why it ended before etcd had said a word: with TLS 1.3 it refuses
// our certificate after our handshake, and one that speaks TLS hangs up on who does not.
type greeted struct {
	net.Conn
	why   func(error) error
	heard atomic.Bool
}

// Read implements net.Conn.
func (c *greeted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.heard.CompareAndSwap(false, n > 0)
	if err != nil && !c.heard.Load() {
		err = c.why(err)
	}
	return n, err
}

// Write reads what etcd said last, if it does not listen any more: that is here already.
func (c *greeted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && !c.heard.Load() && c.SetReadDeadline(time.Now().Add(250*time.Millisecond)) == nil {
		if _, last := c.Read(make([]byte, 1)); last != nil && !errors.Is(last, os.ErrDeadlineExceeded) {
			err = last
		}
	}
	return n, err
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
