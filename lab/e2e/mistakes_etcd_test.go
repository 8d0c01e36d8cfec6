package e2e

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// besideBroker are the settings of a sidecar without those of etcd.
const besideBroker = "--driver nats --broker-admin {admin} --nats-monitor {monitor} --state-dir {state} " +
	"--probe-listen 127.0.0.1:0 --web-listen 127.0.0.1:0 --log-level warn --log-format text"

// etcdMistakes are those with etcd's address, TLS, users and rights.
var etcdMistakes = []mistake{
	{
		name:    "nobody at etcd's address",
		command: "check " + besideBroker + " --etcd-endpoints http://127.0.0.1:1",
		exit:    1,
		message: `--etcd-endpoints "http://127.0.0.1:1": etcd is out of reach: dial tcp 127.0.0.1:1: connect: connection refused: is it running there, and is the way open?`,
	},
	{
		name:    "something that is not etcd",
		command: "fleet --etcd-endpoints {monitor}",
		exit:    1,
		message: `--etcd-endpoints "{monitor}": etcd is out of reach: what answers speaks HTTP/1.1: that is not etcd's client port (2379): is it running there, and is the way open?`,
	},
	{
		name:    "https for http",
		given:   secured,
		command: "run " + besideBroker + " --etcd-endpoints https://{plain}",
		exit:    2,
		message: `--etcd-endpoints "https://{plain}": no connection: no TLS is spoken there: write http://`,
	},
	{
		name:    "http for https",
		given:   secured,
		command: "run " + besideBroker + " --etcd-endpoints http://{tls}",
		exit:    2,
		message: `--etcd-endpoints "http://{tls}": no connection: it speaks TLS: write https://`,
	},
	{
		name:    "http for https at one of two endpoints",
		given:   secured,
		command: "check " + besideBroker + " --etcd-endpoints http://{plain},http://{tls} --etcd-user n1 --etcd-password-file {password}",
		message: `; 1 of 2 endpoints answer; http://{tls} does not: it speaks TLS: write https:// (auth)`,
	},
	{
		name:    "an authority that nobody was told of",
		given:   secured,
		command: "fleet --etcd-endpoints https://{tls}",
		exit:    2,
		message: `--etcd-endpoints "https://{tls}": no connection: tls: failed to verify certificate: x509: certificate signed by unknown authority: set --etcd-cacert to the authority that signed etcd's certificate`,
	},
	{
		name:    "another's authority",
		given:   secured,
		command: "run " + besideBroker + " --etcd-endpoints https://{tls} --etcd-cacert {other-ca}",
		exit:    2,
		message: `x509: certificate signed by unknown authority: set --etcd-cacert to the authority that signed etcd's certificate, in place of {other-ca}`,
	},
	{
		name:    "a name that is not in etcd's certificate",
		given:   secured,
		command: "fleet --etcd-endpoints https://{tls-localhost} --etcd-cacert {ca}",
		exit:    2,
		message: `x509: certificate is not valid for any names, but wanted to match localhost: write a name that etcd's certificate has, or have it issued for this one`,
	},
	{
		name:    "a certificate of etcd's that ran out",
		given:   func(w *world) { secured(w); w.front("{expired}", "h2") },
		command: "fleet --etcd-endpoints https://{front} --etcd-cacert {ca}",
		exit:    2,
		message: `: renew etcd's certificate, or set the clock of this host`,
	},
	{
		name:    "no certificate, and the authority by SSL_CERT_FILE",
		given:   secured,
		env:     []string{"SSL_CERT_FILE={ca}"},
		command: "fleet --etcd-endpoints https://{tls}",
		exit:    2,
		message: `: it wants a client's certificate: set --etcd-cert and --etcd-key to a pair that an authority of etcd has issued`,
	},
	{
		name:    "a certificate that ran out",
		given:   secured,
		command: "run " + besideBroker + " --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {expired} --etcd-key {expired-key}",
		exit:    2,
		message: `: --etcd-cert {expired} ran out on {ran-out}: renew it`,
	},
	{
		name:    "a certificate that ran out, and an etcd of Debian",
		given:   securedDebian,
		command: "run " + besideBroker + " --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {expired} --etcd-key {expired-key}",
		exit:    2,
		message: `: --etcd-cert {expired} ran out on {ran-out}: renew it`,
	},
	{
		name:    "a certificate of another authority",
		given:   secured,
		command: "fleet --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {other} --etcd-key {other-key}",
		exit:    2,
		message: `: set --etcd-cert and --etcd-key to a pair that an authority of etcd has issued, in place of {other}`,
	},
	{
		name:    "a certificate of another authority, and an etcd of Debian",
		given:   securedDebian,
		command: "fleet --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {other} --etcd-key {other-key}",
		exit:    2,
		message: `: set --etcd-cert and --etcd-key to a pair that an authority of etcd has issued, in place of {other}`,
	},
	{
		name:    "a certificate and a key that do not fit",
		given:   secured,
		command: "fleet --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {cert} --etcd-key {other-key}",
		exit:    2,
		message: `--etcd-cert {cert} and --etcd-key {other-key}: tls: private key does not match public key: set --etcd-key to the key that belongs to the certificate`,
	},
	{
		name:    "a front that ends TLS and offers no HTTP/2",
		given:   func(w *world) { secured(w); w.front("{cert}") },
		command: "fleet --etcd-endpoints https://{front} --etcd-cacert {ca}",
		exit:    2,
		message: `missing selected ALPN property.: what ends TLS there offers no HTTP/2: have it offer h2 (ALPN), or pass TLS through to etcd`,
	},
	{
		name:    "a front that ends TLS and offers HTTP/1.1",
		given:   func(w *world) { secured(w); w.front("{cert}", "http/1.1") },
		command: "fleet --etcd-endpoints https://{front} --etcd-cacert {ca}",
		exit:    2,
		message: `: what ends TLS there offers no HTTP/2: have it offer h2 (ALPN), or pass TLS through to etcd`,
	},
	{
		name:    "a user that etcd does not know",
		given:   secured,
		command: "run " + besideBroker + " --etcd-endpoints http://{plain} --etcd-user nobody --etcd-password-file {password}",
		exit:    2,
		message: `--etcd-user "nobody": etcd refuses us: authentication failed, invalid user ID or password: check --etcd-password-file "{password}"`,
	},
	{
		name:    "no user where etcd has users",
		given:   secured,
		command: "fleet --etcd-endpoints http://{plain}",
		exit:    2,
		message: `--etcd-endpoints "http://{plain}": etcd refuses us: user name is empty: set --etcd-user and --etcd-password-file, or --etcd-cert and --etcd-key`,
	},
	{
		name:    "fleet without a right",
		given:   secured,
		command: "fleet --etcd-endpoints http://{plain} --etcd-user n1 --etcd-password-file {password} --prefix /other",
		exit:    2,
		message: `--etcd-user "n1": etcd refuses it: permission denied to read /other/cluster/brokers/: etcdctl role grant-permission ROLE --prefix=true read /other/cluster/brokers/: see docs/security.md`,
	},
	{
		name:    "check without a right",
		given:   secured,
		command: "check " + besideBroker + " --etcd-endpoints http://{plain} --etcd-user n1 --etcd-password-file {password} --prefix /other",
		exit:    2,
		message: `--etcd-user "n1": etcd refuses it: permission denied to read /other/cluster/register/: etcdctl role grant-permission ROLE --prefix=true read /other/cluster/register/: see docs/security.md`,
	},
	{
		name: "check with one right of those of the page",
		given: func(w *world) {
			secured(w)
			e, err := secureShared()
			w.ok(err)
			_, err = e.Client().RoleGrantPermission(w.ctx, "n1", "/some/cluster/register/", "/some/cluster/register0", clientv3.PermissionType(clientv3.PermRead))
			w.ok(err)
		},
		command: "check " + besideBroker + " --etcd-endpoints http://{plain} --etcd-user n1 --etcd-password-file {password} --prefix /some",
		exit:    2,
		message: `--etcd-user "n1": etcd refuses it: permission denied to read /some/cluster/brokers/n1/state: etcdctl role grant-permission ROLE --prefix=true read /some/cluster/brokers/n1/: see docs/security.md`,
	},
	{
		name:    "the user of a certificate that etcd does not know",
		given:   secured,
		command: "fleet --etcd-endpoints https://{tls} --etcd-cacert {ca} --etcd-cert {cert} --etcd-key {cert-key} --prefix /other",
		exit:    2,
		message: `--etcd-endpoints "https://{tls}": etcd refuses the user of --etcd-cert {cert} (its CN): permission denied to read /other/cluster/brokers/: etcdctl role grant-permission ROLE --prefix=true read /other/cluster/brokers/: see docs/security.md`,
	},
	{
		name:    "https for a broker that speaks http",
		given:   func(w *world) { w.set("address", strings.TrimPrefix(w.say("{monitor}"), "http://")) },
		command: "check --driver http --broker-admin https://{address} --etcd-endpoints {etcd} --state-dir {state}",
		exit:    1,
		message: `: http: server gave HTTP response to HTTPS client: no TLS is spoken there: write http://`,
	},
	{
		name:    "a broker's authority that nobody was told of",
		given:   func(w *world) { secured(w); w.front("{cert}") },
		command: "check --driver http --broker-admin https://{front} --etcd-endpoints {etcd} --state-dir {state}",
		exit:    1,
		message: `x509: certificate signed by unknown authority: set --broker-cacert to the authority that signed the broker's certificate`,
	},
	{
		name: "a password of the web that is no hash",
		given: func(w *world) {
			w.set("web", w.written("web.yaml", "basic_auth_users:\n  ops: open sesame\n"))
		},
		command: "run {settings} --web-config-file {web}",
		exit:    2,
		message: `--web-config-file "{web}": the password of "ops" is not a bcrypt hash: make one with 'htpasswd -nBC 10 ops'`,
	},
	{
		name:    "a tab in the settings",
		file:    "driver: nats\nlease-ttl: 32s\n\tbroker-id: n1\n",
		command: "run --config {file}",
		exit:    2,
		message: `{file}: not YAML: line 3: begins with a tab: write one 'name: value' a line, without indentation`,
	},
	{
		name:    "indentation in the settings",
		file:    "driver: nats\n  lease-ttl: 32s\n",
		command: "run --config {file}",
		exit:    2,
		message: `{file}: not YAML: line 2: mapping values are not allowed in this context: write one 'name: value' a line, without indentation`,
	},
}

// secureEtcd has TLS at one port and none at the other, users at both, and what is shown to it.
type secureEtcd struct {
	*harness.Etcd
	names map[string]string
}

func startSecureEtcd(name, binary string) (*secureEtcd, error) {
	ours, err := sharedLab.NewAuthority(name + "-ours")
	if err != nil {
		return nil, err
	}
	others, err := sharedLab.NewAuthority(name + "-others")
	if err != nil {
		return nil, err
	}
	e, err := sharedLab.StartEtcd(context.Background(), harness.EtcdOptions{Name: name, Binary: binary, Fsync: binary != "", TLS: ours})
	if err != nil {
		return nil, err
	}
	s := &secureEtcd{e, map[string]string{"plain": e.Endpoint()[len("http://"):], "tls": e.Secure[len("https://"):], "ca": ours.CACert, "other-ca": others.CACert}}
	s.names["tls-localhost"] = "localhost" + s.names["tls"][len("127.0.0.1"):]
	ranOut := time.Now().Add(-time.Hour)
	s.names["ran-out"] = ranOut.UTC().Format("2006-01-02 15:04 MST")
	for kind, of := range map[string]*harness.Authority{"cert": ours, "expired": ours, "other": others} {
		end := time.Now().Add(time.Hour)
		if kind == "expired" {
			end = ranOut
		}
		if s.names[kind], s.names[kind+"-key"], err = of.IssueUntil(name+"-"+kind, end); err != nil {
			return nil, err
		}
	}
	s.names["password"] = filepath.Join(sharedLab.Dir, name+"-password")
	if err := os.WriteFile(s.names["password"], []byte("n1-word\n"), 0o600); err != nil {
		return nil, err
	}
	return s, e.EnableAuth(context.Background(), "root-word", "n1", "n1-word", "/cluster/")
}

var (
	secureShared = sync.OnceValues(func() (*secureEtcd, error) { return startSecureEtcd("secure", "") })
	secureDebian = sync.OnceValues(func() (*secureEtcd, error) {
		binary, err := harness.Debian("etcd", "etcd-server")
		if err != nil {
			return nil, err
		}
		return startSecureEtcd("secure-debian", binary)
	})
)

func secured(w *world) { w.secured(secureShared()) }

func securedDebian(w *world) { w.secured(secureDebian()) }

func (w *world) secured(e *secureEtcd, err error) {
	w.Helper()
	w.ok(err)
	for name, value := range e.names {
		w.set(name, value)
	}
}

// front ends TLS in front of etcd's plain port.
func (w *world) front(cert string, protocols ...string) {
	w.Helper()
	pair, err := tls.LoadX509KeyPair(w.say(cert), w.say(cert[:len(cert)-1]+"-key}"))
	w.ok(err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: protocols})
	w.ok(err)
	w.Cleanup(func() { l.Close() })
	w.set("front", l.Addr())
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func(c net.Conn) {
				_ = c.(*tls.Conn).Handshake() // each row's ends here
				c.Close()
			}(c)
		}
	}()
}

// written is the path of a file with that text.
func (w *world) written(name, text string) (path string) {
	w.Helper()
	path = filepath.Join(w.dir, name)
	w.ok(os.WriteFile(path, []byte(text), 0o600))
	return path
}
