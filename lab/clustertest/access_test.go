package clustertest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"holdfast/cluster"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// users makes an etcd ask who somebody is: root may do everything, and each of the others what is
// said of it, below these prefixes. Each password is the name.
func users(t *testing.T, admin *clientv3.Client, rights map[string]map[string]clientv3.PermissionType) {
	t.Helper()
	ctx := bounded(t)
	errs := []error{ignore(admin.RoleAdd(ctx, "root")), ignore(admin.UserAdd(ctx, "root", "root")), ignore(admin.UserGrantRole(ctx, "root", "root"))}
	for user, keys := range rights {
		errs = append(errs, ignore(admin.RoleAdd(ctx, user)), ignore(admin.UserAdd(ctx, user, user)), ignore(admin.UserGrantRole(ctx, user, user)))
		for key, kind := range keys {
			errs = append(errs, ignore(admin.RoleGrantPermission(ctx, user, key, clientv3.GetPrefixRangeEnd(key), kind)))
		}
	}
	if err := errors.Join(append(errs, ignore(admin.AuthEnable(ctx)))...); err != nil {
		t.Fatal(err)
	}
}

func ignore(_ any, err error) error { return err }

// as is somebody who shows a password, which stands in the file.
func as(t *testing.T, endpoint, user, password string) (cfg cluster.Config) {
	t.Helper()
	cfg = cluster.Config{Endpoints: []string{endpoint}, User: user, PasswordFile: filepath.Join(t.TempDir(), "password")}
	write(t, cfg.PasswordFile, password+"\n")
	return cfg
}

const (
	mayRead  = clientv3.PermissionType(clientv3.PermRead)
	mayWrite = clientv3.PermissionType(clientv3.PermReadWrite)
)

func TestUserAndPasswordFromFile(t *testing.T) {
	server, _ := ownEtcd(t, nil)
	endpoint := server.AdvertiseClientUrls[0].String()
	cfg := as(t, endpoint, "root", "root")
	c, l := open(t, cfg), openLine(t, cfg)
	if _, err := c.Snapshot(bounded(t), "b1"); err != nil { // asks while authentication is off
		t.Fatalf("a user at an etcd without authentication: %v", err)
	}
	state := c.Keys().State("b2")
	users(t, rawClient(t, clientv3.Config{Endpoints: []string{endpoint}}), map[string]map[string]clientv3.PermissionType{"guest": nil})
	root := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "root"})
	id := lease(t, c, time.Minute)
	works := func(when string) {
		t.Helper()
		_, read := c.Snapshot(bounded(t), "b1")
		_, renewed := l.KeepAlive(bounded(t), id, true)
		if err := errors.Join(read, renewed); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	works("after authentication was switched on")
	m := follow(t, c, cluster.Target{Key: c.Keys().State("b1")}, nil)
	m.untilContent(t, map[string]string{c.Keys().State("b1"): must[string](t)(note(bounded(t), c, "b1"))})
	for name, cfg := range map[string]cluster.Config{
		"wrong password":   as(t, endpoint, "root", "guess"),
		"no permission":    as(t, endpoint, "guest", "guest"),
		"no password file": {Endpoints: cfg.Endpoints, User: "root", PasswordFile: cfg.PasswordFile + ".missing"},
	} {
		if _, err := open(t, cfg).Snapshot(bounded(t), "b1"); cluster.Classify(err) != cluster.ClassAuth {
			t.Errorf("%s: %v of class %q, want auth", name, err, cluster.Classify(err))
		}
	}
	// A changed password makes the old token void; the file is read again.
	write(t, cfg.PasswordFile, "changed")
	if _, err := root.UserChangePassword(bounded(t), "root", "changed"); err != nil {
		t.Fatal(err)
	}
	works("after the password and its file changed")

	// What is missing is asked for, and none of it written.
	root = rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "changed"})
	g := open(t, as(t, endpoint, "guest", "guest"))
	for _, step := range []struct {
		missing, grant string
		kind           clientv3.PermissionType
	}{{"write", "readwrite " + state, clientv3.PermissionType(clientv3.PermWrite)}, {"read", "--prefix=true read " + c.Keys().Assignments("b2"), mayWrite}} {
		_, err := g.PutState(bounded(t), "b2", cluster.State{Mode: cluster.ModeActive}, 0)
		if want := "permission denied to " + step.missing + " " + state; !cluster.Denied(err) || !contains(err, want+": etcdctl role grant-permission ROLE "+step.grant) {
			t.Errorf("%v, want %q", err, want)
		}
		if kv := must[*clientv3.GetResponse](t)(root.Get(bounded(t), state)); kv.Count > 0 {
			t.Errorf("written: %s", kv.Kvs[0].Value)
		}
		must[*clientv3.AuthRoleGrantPermissionResponse](t)(root.RoleGrantPermission(bounded(t), "guest", state, "", step.kind))
	}
	if _, err := g.PutState(bounded(t), "b2", cluster.State{Mode: cluster.ModeActive}, 0); err != nil {
		t.Error(err)
	}
}

// Each wrong certificate and each wrong scheme alone is a mistake in lab/e2e.
func TestTLSWithFiles(t *testing.T) {
	ca := must[*harness.Authority](t)(harness.ForTest(t).NewAuthority("ours"))
	pair := func(name string) [2]string {
		cert, key, err := ca.Issue(name)
		return must[[2]string](t)([2]string{cert, key}, err)
	}
	of, own := pair("etcd"), pair("agent")
	server, _ := ownEtcd(t, func(cfg *embed.Config) {
		for i := range cfg.ListenClientUrls {
			cfg.ListenClientUrls[i].Scheme = "https"
		}
		cfg.AdvertiseClientUrls = cfg.ListenClientUrls
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = of[0], of[1]
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = ca.CACert, true
	})
	endpoint := server.AdvertiseClientUrls[0].String()
	good := cluster.Config{Endpoints: []string{endpoint}, CACert: ca.CACert, Cert: own[0], Key: own[1]}
	id := lease(t, open(t, good), time.Minute)
	dead := "https://localhost" + must[string](t)(freePort())[len("127.0.0.1"):]
	strange := "https://localhost" + endpoint[strings.LastIndex(endpoint, ":"):] // the certificate is not for localhost
	for name, row := range map[string]struct {
		endpoints []string
		want      cluster.Class
	}{
		"each endpoint by its own name":                {[]string{dead, endpoint}, ""},
		"one endpoint that refuses us":                 {[]string{strange, endpoint}, ""},
		"one that refuses us, and the other is dead":   {[]string{strange, dead}, cluster.ClassAuth},
		"one that refuses us, and one without any TLS": {[]string{strange, "https" + shared.url[len("http"):]}, cluster.ClassAuth},
	} {
		for range 3 { // whichever is asked first
			cfg := good
			cfg.Endpoints = row.endpoints
			_, err := open(t, cfg).Snapshot(bounded(t), "b1")
			if (err == nil) != (row.want == "") || err != nil && cluster.Classify(err) != row.want {
				t.Errorf("%s: %v of class %q", name, err, cluster.Classify(err))
			}
		}
	}
	for name, change := range map[string]func(*cluster.Config){
		"no such file":                      func(c *cluster.Config) { c.CACert += ".missing" },
		"has no certificate in PEM form":    func(c *cluster.Config) { c.CACert = own[1] },
		"private key does not match public": func(c *cluster.Config) { c.Key = of[1] },
	} {
		cfg := good
		change(&cfg)
		if _, err := open(t, cfg).Snapshot(bounded(t), "b1"); cluster.Classify(err) != cluster.ClassAuth || !contains(err, name) {
			t.Errorf("%v of class %q, want %s", err, cluster.Classify(err), name)
		}
	}
	// A renewed certificate is read at the next connection.
	cfg := good
	cfg.Cert, cfg.Key = filepath.Join(t.TempDir(), "c.pem"), filepath.Join(t.TempDir(), "k.pem")
	l := openLine(t, cfg)
	if _, err := l.KeepAlive(bounded(t), id, false); cluster.Classify(err) != cluster.ClassAuth {
		t.Errorf("without the files: %v", err)
	}
	write(t, cfg.Cert, string(must[[]byte](t)(os.ReadFile(own[0]))))
	write(t, cfg.Key, string(must[[]byte](t)(os.ReadFile(own[1]))))
	if err := harness.Await(t.Context(), wait, "a renewal with the new certificate", func(ctx context.Context) (bool, string) {
		_, err := l.KeepAlive(ctx, id, true)
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		t.Error(err)
	}
}

// Whatever way the refusal comes, the words are the same each time, and so the log has them once.
func TestACertificateThatIsRefusedIsToldInTheSameWords(t *testing.T) {
	lab := harness.ForTest(t)
	ca, stranger := must[*harness.Authority](t)(lab.NewAuthority("ours")), must[*harness.Authority](t)(lab.NewAuthority("strangers"))
	certFile, keyFile, err := ca.Issue("etcd")
	pair := must[tls.Certificate](t)(tls.LoadX509KeyPair(certFile, keyFile))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must[[]byte](t)(os.ReadFile(ca.CACert)))
	l := must[net.Listener](t)(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}))
	defer l.Close()
	cert, key, err2 := stranger.Issue("agent")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	c := open(t, cluster.Config{Endpoints: []string{"https://" + l.Addr().String()}, CACert: ca.CACert, Cert: cert, Key: key})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
	}()
	told := map[string]bool{}
	for range 12 {
		_, err := c.Snapshot(bounded(t), "b1")
		told[fmt.Sprint(err)] = true
	}
	if words := slices.Collect(maps.Keys(told)); len(words) != 1 || !strings.Contains(words[0], "in place of "+cert) {
		t.Errorf("told %d ways: %q", len(words), words)
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
