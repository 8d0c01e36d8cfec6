package danube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

func TestSettingsThatCannotWorkNameTheFlag(t *testing.T) {
	dir := t.TempDir()
	empty := fakenet.File(t, "empty", "\n")
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"no admin URL", `--broker-admin "": not a URL with a scheme and a host: write http://host:port`, Config{}},
		{"scheme", `--broker-admin "nats://127.0.0.1:1": the scheme nats does not work here`, Config{AdminURL: "nats://127.0.0.1:1"}},
		{"path", `--danube-lookup "http://h:1/x": has a path`, Config{AdminURL: "http://h", LookupURL: "http://h:1/x", MetricsURL: "http://h"}},
		{"two hosts", `--danube-metrics "http://a:1,b:2"`, Config{AdminURL: "http://h", LookupURL: "http://h", MetricsURL: "http://a:1,b:2"}},
		{"password", `--broker-admin "http://u:xxxxx@h:1": holds a user or password`, Config{AdminURL: "http://u:s3cret@h:1"}},
		{"CA that is not there", "--broker-cacert: open", Config{AdminURL: "https://h", Files: access.Files{CACert: filepath.Join(dir, "no")}}},
		{"CA that is none", "has no certificate in PEM form", Config{AdminURL: "https://h", Files: access.Files{CACert: empty}}},
		{"certificate that is none", "--broker-cert " + empty, Config{AdminURL: "https://h", Files: access.Files{Cert: empty, Key: empty}}},
		{"empty token", "is empty: want the token or password alone", Config{AdminURL: "http://h", Files: access.Files{TokenFile: empty}}},
		{"no store", "needs the store", Config{AdminURL: "http://h"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "no store" {
				c.cfg.Store = &memory{}
			}
			b, err := New(c.cfg)
			if err == nil {
				_ = b.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestTLSAndTokenAreUsedAndReadAgain(t *testing.T) {
	cert, key := fakenet.Certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	f := newFake(t,
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer good" {
				return nil, status.Errorf(codes.Unauthenticated, "who is %s?", got)
			}
			return handler(ctx, req)
		}))
	cfg := f.config(t)
	cfg.AdminURL, cfg.LookupURL, cfg.Store = "https://"+f.address, "https://"+f.address, &memory{f: f}
	cfg.CACert, cfg.Cert, cfg.Key, cfg.TokenFile = cert, cert, key, fakenet.File(t, "token", "bad\n")
	b := opened(t, cfg)
	if err := health(soon(t), b); err == nil || !strings.Contains(err.Error(), "--broker-token-file") || strings.Contains(err.Error(), "bad") {
		t.Error(err)
	}
	if err := os.WriteFile(cfg.TokenFile, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := health(soon(t), b); err != nil {
		t.Error(err)
	}
	cfg.CACert, _ = fakenet.Certificate(t)
	if err := bounded(t, "probe", func(ctx context.Context) error { return health(ctx, opened(t, cfg)) }); err == nil ||
		!strings.Contains(err.Error(), ": set --broker-cacert to the authority that signed the broker's certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	cfg.CACert = cert
	cfg.LookupURL = strings.Replace(cfg.LookupURL, "127.0.0.1", "localhost", 1)
	if err := bounded(t, "probe", func(ctx context.Context) error { return health(ctx, opened(t, cfg)) }); err == nil || !strings.Contains(err.Error(), "certificate is not valid for any names") {
		t.Errorf("another name: %v", err)
	}
	cfg.AdminURL, cfg.LookupURL = "http://"+f.address, "http://"+f.address
	if err := health(soon(t), opened(t, cfg)); err == nil || !strings.HasSuffix(err.Error(), ": is it a Danube broker? If it speaks TLS, write https:// in --danube-lookup") {
		t.Errorf("in the clear: %v", err)
	}
	naked := newFake(t)
	cfg.AdminURL, cfg.LookupURL = "https://"+naked.address, "https://"+naked.address
	if err := bounded(t, "probe", func(ctx context.Context) error { return health(ctx, opened(t, cfg)) }); err == nil || !strings.Contains(err.Error(), ": no TLS is spoken there: write http://") {
		t.Errorf("TLS to a broker without: %v", err)
	}
}
