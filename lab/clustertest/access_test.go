package clustertest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"holdfast/cluster"
	"holdfast/standstill"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUserAndPasswordFromFile(t *testing.T) {
	server, _ := ownEtcd(t, nil)
	endpoint := server.AdvertiseClientUrls[0].String()
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "secret\n")
	cfg := cluster.Config{Endpoints: []string{endpoint}, User: "root", PasswordFile: password}

	early := open(t, cfg) // asks while authentication is off
	if _, err := early.Snapshot(bounded(t), "b1"); err != nil {
		t.Fatalf("a user at an etcd without authentication: %v", err)
	}
	admin := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}})
	ctx := bounded(t)
	for _, err := range []error{
		ignore(admin.RoleAdd(ctx, "root")), ignore(admin.UserAdd(ctx, "root", "secret")),
		ignore(admin.UserGrantRole(ctx, "root", "root")), ignore(admin.UserAdd(ctx, "guest", "guest")),
		ignore(admin.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	c := open(t, cfg)
	l := openLine(t, cfg)
	id := lease(t, c, time.Minute)
	if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
		t.Errorf("renewing with the right password: %v", err)
	}
	m := follow(t, c, cluster.Target{Key: c.Keys().State("b1")}, nil)
	m.untilContent(t, map[string]string{c.Keys().State("b1"): must[string](t)(note(bounded(t), c, "b1"))})
	if _, err := early.Snapshot(bounded(t), "b1"); err != nil {
		t.Errorf("after authentication was switched on: %v", err)
	}

	wrong, guest := filepath.Join(t.TempDir(), "wrong"), filepath.Join(t.TempDir(), "guest")
	write(t, wrong, "guess")
	write(t, guest, "guest")
	for _, refused := range []struct {
		name string
		cfg  cluster.Config
	}{
		{"wrong password", cluster.Config{Endpoints: cfg.Endpoints, User: "root", PasswordFile: wrong}},
		{"unknown user", cluster.Config{Endpoints: cfg.Endpoints, User: "nobody", PasswordFile: wrong}},
		{"no user", cluster.Config{Endpoints: cfg.Endpoints}},
		{"no permission", cluster.Config{Endpoints: cfg.Endpoints, User: "guest", PasswordFile: guest}},
		{"no password file", cluster.Config{Endpoints: cfg.Endpoints, User: "root", PasswordFile: wrong + ".missing"}},
	} {
		t.Run(refused.name, func(t *testing.T) {
			began := time.Now()
			_, err := open(t, refused.cfg).Snapshot(bounded(t), "b1")
			took := time.Since(began)
			if cluster.Classify(err) != cluster.ClassAuth {
				t.Errorf("after %v: %v of class %q, want auth", took, err, cluster.Classify(err))
			}
			standstill.Within(t, "refused", began, took, 2*time.Second)
		})
	}

	// A changed password makes the old token void; the file is read again.
	write(t, password, "changed")
	root := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "secret"})
	if _, err := root.UserChangePassword(bounded(t), "root", "changed"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Snapshot(bounded(t), "b1"); err != nil {
		t.Errorf("after the password and its file changed: %v", err)
	}
	if _, err := l.KeepAlive(bounded(t), id, true); err != nil {
		t.Errorf("renewing after the password and its file changed: %v", err)
	}

	// What is missing is asked for, and none of it written.
	g := open(t, cluster.Config{Endpoints: cfg.Endpoints, User: "guest", PasswordFile: guest})
	state := c.Keys().State("b2")
	root = rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "changed"})
	for _, err := range []error{ignore(root.RoleAdd(ctx, "guest")), ignore(root.UserGrantRole(ctx, "guest", "guest"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		missing, grant string
		kind           clientv3.PermissionType
	}{
		{"write", "readwrite", clientv3.PermissionType(clientv3.PermWrite)},
		{"read", "read", clientv3.PermissionType(clientv3.PermReadWrite)}, // of a guard
	} {
		_, err := g.PutState(bounded(t), "b2", cluster.State{Mode: cluster.ModeActive}, 0)
		if want := "permission denied to " + step.missing + " " + state; !cluster.Denied(err) || !contains(err, want+": etcdctl role grant-permission ROLE "+step.grant+" "+state) {
			t.Errorf("%v, want %q", err, want)
		}
		if kv := must[*clientv3.GetResponse](t)(root.Get(bounded(t), state)); kv.Count > 0 {
			t.Errorf("written: %s", kv.Kvs[0].Value)
		}
		_ = must[*clientv3.AuthRoleGrantPermissionResponse](t)(root.RoleGrantPermission(bounded(t), "guest", state, "", step.kind))
	}
	if _, err := g.PutState(bounded(t), "b2", cluster.State{Mode: cluster.ModeActive}, 0); err != nil {
		t.Error(err)
	}
}

func ignore(_ any, err error) error { return err }

// authority signs certificates for 127.0.0.1.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key))
	a.file = filepath.Join(a.dir, "ca.pem")
	write(t, a.file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

func (a *authority) issue(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key))
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key)),
	})))
	return certFile, keyFile
}

func TestTLSWithFiles(t *testing.T) {
	ca, stranger := newAuthority(t, "ours"), newAuthority(t, "strangers")
	serverCert, serverKey := ca.issue(t, "etcd")
	cert, key := ca.issue(t, "agent")
	server, _ := ownEtcd(t, func(cfg *embed.Config) {
		for i := range cfg.ListenClientUrls {
			cfg.ListenClientUrls[i].Scheme = "https"
		}
		cfg.AdvertiseClientUrls = cfg.ListenClientUrls
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = serverCert, serverKey
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = ca.file, true
	})
	endpoint := server.AdvertiseClientUrls[0].String()
	good := cluster.Config{Endpoints: []string{endpoint}, CACert: ca.file, Cert: cert, Key: key}
	c, l := open(t, good), openLine(t, good)
	id := lease(t, c, time.Minute)
	if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
		t.Errorf("renewing over TLS: %v", err)
	}
	for _, bad := range []struct {
		name, text string
		class      cluster.Class
		change     func(*cluster.Config)
	}{
		{"another CA", "certificate signed by unknown authority", cluster.ClassAuth, func(c *cluster.Config) { c.CACert = stranger.file }},
		{"no CA file", "no such file", cluster.ClassAuth, func(c *cluster.Config) { c.CACert += ".missing" }},
		{"CA file without PEM", "has no certificate in PEM form", cluster.ClassAuth, func(c *cluster.Config) { c.CACert = key }},
		{"certificate and key that do not match", "private key", cluster.ClassAuth, func(c *cluster.Config) { c.Key = serverKey }},
		{"no certificate", "it wants a client's certificate: set --etcd-cert and --etcd-key", cluster.ClassAuth, func(c *cluster.Config) { c.Cert, c.Key = "", "" }},
		{"no TLS", "it speaks TLS: write https://", cluster.ClassAuth, func(c *cluster.Config) { c.Endpoints = []string{"http" + endpoint[len("https"):]} }},
	} {
		t.Run(bad.name, func(t *testing.T) {
			cfg := good
			bad.change(&cfg)
			began := time.Now()
			_, err := open(t, cfg).Snapshot(bounded(t), "b1")
			took := time.Since(began)
			if cluster.Classify(err) != bad.class || !contains(err, bad.text) {
				t.Errorf("after %v: %v of class %q, want %q of class %q", took, err, cluster.Classify(err), bad.text, bad.class)
			}
			standstill.Within(t, "refused", began, took, 2*time.Second)
		})
	}
	t.Run("each endpoint by its own name", func(t *testing.T) {
		dead, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		cfg := good
		cfg.Endpoints = []string{"https://localhost" + dead[len("127.0.0.1"):], endpoint} // the certificate is not for localhost
		if _, err := open(t, cfg).Snapshot(bounded(t), "b1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("one endpoint that refuses us", func(t *testing.T) {
		dead := must[string](t)(freePort())
		strange, other := "https://localhost"+endpoint[strings.LastIndex(endpoint, ":"):], "http"+shared.url[len("http"):]
		cfg := good
		cfg.Endpoints = []string{strange, endpoint} // the certificate is not for localhost
		for told := ""; !strings.Contains(told, "refuses us"); {
			var log bytes.Buffer
			c, l := must[*cluster.Client](t)(cluster.Open(cfg, slog.New(slog.NewTextHandler(&log, nil)))), openLine(t, cfg)
			if _, err := c.Snapshot(bounded(t), "b1"); err != nil {
				t.Fatal(err)
			}
			if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
				t.Fatal(err)
			}
			c.Close()
			told = log.String() // nothing, if the other was asked first
		}
		for _, c := range []struct {
			name, text string
			class      cluster.Class
			endpoints  []string
		}{
			{"and the other is dead", "write a name that etcd's certificate has", cluster.ClassAuth, []string{strange, "https://" + dead}},
			{"and the other, too", "write ", cluster.ClassAuth, []string{strange, "https" + other[len("http"):]}},
		} {
			for range 3 { // whichever is asked first
				cfg.Endpoints = c.endpoints
				if _, err := open(t, cfg).Snapshot(bounded(t), "b1"); cluster.Classify(err) != c.class || !contains(err, c.text) {
					t.Errorf("%s: %v of class %q", c.name, err, cluster.Classify(err))
				}
			}
		}
	})
	t.Run("TLS at a plain port", func(t *testing.T) {
		_, err := open(t, cluster.Config{Endpoints: []string{"https" + shared.url[len("http"):]}, CACert: ca.file}).Snapshot(bounded(t), "b1")
		if cluster.Classify(err) != cluster.ClassAuth || !contains(err, "no TLS is spoken there: write http://") {
			t.Errorf("%v of class %q", err, cluster.Classify(err))
		}
	})
	t.Run("renewed certificate is read at the next connection", func(t *testing.T) {
		cfg := good
		cfg.Cert, cfg.Key = filepath.Join(t.TempDir(), "c.pem"), filepath.Join(t.TempDir(), "k.pem")
		l := openLine(t, cfg)
		if _, err := l.KeepAlive(bounded(t), id, false); cluster.Classify(err) != cluster.ClassAuth {
			t.Errorf("without the files: %v", err)
		}
		for from, to := range map[string]string{cert: cfg.Cert, key: cfg.Key} {
			write(t, to, string(must[[]byte](t)(os.ReadFile(from))))
		}
		for ctx := bounded(t); ; {
			_, err := l.KeepAlive(ctx, id, true)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	})
}

// Whatever way the refusal comes, the words are the same each time, and so they are told once.
func TestACertificateThatIsRefusedIsToldOnce(t *testing.T) {
	ca, stranger := newAuthority(t, "ours"), newAuthority(t, "strangers")
	serverCert, serverKey := ca.issue(t, "etcd")
	pair := must[tls.Certificate](t)(tls.LoadX509KeyPair(serverCert, serverKey))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must[[]byte](t)(os.ReadFile(ca.file)))
	l := must[net.Listener](t)(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}))
	defer l.Close()
	cert, key := stranger.issue(t, "agent")
	c := open(t, cluster.Config{Endpoints: []string{"https://" + l.Addr().String()}, CACert: ca.file, Cert: cert, Key: key})
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	followed := make(chan error)
	go func() {
		followed <- c.Follow(ctx, cluster.Target{Key: "/a"}, func(cluster.Update) {}, func(err error) { told = append(told, err.Error()) })
	}()
	for range 12 {
		conn := must[net.Conn](t)(l.Accept())
		_ = conn.(*tls.Conn).HandshakeContext(ctx)
		conn.Close()
	}
	cancel()
	<-followed
	if len(told) != 1 || !strings.Contains(told[0], "in place of "+cert) {
		t.Errorf("told %d times: %q", len(told), told)
	}
}

func TestNobodyListeningIsUnreachableAtOnce(t *testing.T) {
	dead, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, endpoint string }{
		{"IPv4", "http://" + dead},
		{"IPv6", "http://[::1]" + dead[len("127.0.0.1"):]},
		{"TLS", "https://" + dead},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			_, err := open(t, cluster.Config{Endpoints: []string{c.endpoint}}).Snapshot(bounded(t), "b1")
			took := time.Since(began)
			if cluster.Classify(err) != cluster.ClassUnreachable {
				t.Errorf("after %v: %v of class %q, want unreachable", took, err, cluster.Classify(err))
			}
			standstill.Within(t, "unreachable", began, took, 2*time.Second)
		})
	}
	both := cluster.Config{Endpoints: []string{"http://" + dead, shared.url}, Prefix: prefix(t)}
	if _, err := open(t, both).Snapshot(bounded(t), "b1"); err != nil {
		t.Errorf("with one live endpoint of two: %v", err)
	}
}

func TestSilenceIsATimeoutAndTheCallersEndIsItsOwn(t *testing.T) {
	p := newProxy(t, host(t, shared.url))
	p.hold()
	c := open(t, cluster.Config{Endpoints: []string{p.url()}})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.Snapshot(ctx, "b1"); cluster.Classify(err) != cluster.ClassTimeout {
		t.Errorf("held back: %v of class %q, want timeout", err, cluster.Classify(err))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := c.Snapshot(ended, "b1"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled by the caller: %v", err)
	}
	c.Close()
	if _, err := c.Snapshot(bounded(t), "b1"); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

func TestNoSpaceIsAClassOfItsOwn(t *testing.T) {
	server, _ := ownEtcd(t, func(cfg *embed.Config) { cfg.QuotaBackendBytes = 64 << 10 })
	c := open(t, cluster.Config{Endpoints: []string{server.AdvertiseClientUrls[0].String()}})
	id := lease(t, c, time.Minute)
	for ctx, n := bounded(t), 0; ; n++ {
		_, err := note(ctx, c, "b1")
		if cluster.Classify(err) == cluster.ClassNoSpace {
			break
		}
		if err != nil && ctx.Err() != nil {
			t.Fatalf("%v after %d writes", err, n)
		}
	}
	if _, err := c.KeepAlive(bounded(t), id); err != nil {
		t.Errorf("a full etcd must still renew: %v", err)
	}
}
