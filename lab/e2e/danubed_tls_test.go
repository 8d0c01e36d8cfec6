package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// certificate makes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "danube"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func TestDanubeOverTLSWithATokenIsHeldAsAnyOther(t *testing.T) {
	long(t)
	for _, release := range []string{"etcd", "Raft"} {
		t.Run(release, func(t *testing.T) {
			const secret = "open-sesame"
			cert, key := certificate(t)
			change := func(o *harness.DanubeOptions) { o.Cert, o.Key, o.Token = cert, key, secret }
			var s *stage
			if release == "Raft" {
				s = newRaftStage(t, change)
			} else {
				t.Parallel()
				s = newStageOf(t, danubeWith(change))
			}
			token := filepath.Join(t.TempDir(), "token")
			s.must(os.WriteFile(token, []byte("mistaken\n"), 0o600))
			prepare := func(id string) *node {
				n := s.prepare(id, nodeOptions{TTL: 10 * time.Second, Flags: []string{"--audit-interval", "1s"}})
				n.sidecar.SetFlags("--broker-admin", "https://"+n.danubed().AdminAddr(), "--danube-lookup", "https://"+n.danubed().ClientAddr(),
					"--broker-cacert", cert, "--broker-token-file", token)
				return n
			}
			n := prepare("n1")
			n.start()
			st := n.await("the refusal", func(st harness.Status) bool { return strings.Contains(st.Broker.LastError, "Unauthenticated") })
			contains(t, st.Broker.LastError, "--broker-token-file")
			if st.Ready.OK {
				t.Error("ready with the wrong token")
			}
			s.must(os.WriteFile(token, []byte(secret+"\n"), 0o600)) // which is read again
			n.awaitReady()
			n.equip()
			n.produces(3)

			s.must(n.broker.Kill())
			unready := n.awaitNotReady()
			s.must(n.broker.Launch())
			n.awaitReady()
			n.awaitEvent(unready.Add(-time.Minute), "boot", "restart")
			n.isInMode("active", "fast_restart")
			n.await("its topics", func(st harness.Status) bool { return st.Topics.Served == len(n.topics) })
			n.keeps(n.topics, 3)
			if release == "etcd" {
				return // it gives no topic up
			}

			peer := prepare("n2")
			peer.topics = nil
			peer.start()
			peer.awaitReady()
			n.says("drain", "--reason", "new disks")
			s.must(harness.Await(s.ctx, bound, "the topics to move", func(ctx context.Context) (bool, string) {
				st, err := peer.danubed().Status(ctx)
				return len(st.Loaded) == len(n.topics), fmt.Sprint(st.Loaded, err)
			}))
			peer.keeps(n.topics, 3)

			for _, n := range []*node{n, peer} {
				log, err := os.ReadFile(n.sidecar.LogPath())
				if err != nil || strings.Contains(string(log), secret) {
					t.Errorf("the log of %s shows the token, or %v", n.id, err)
				}
			}
		})
	}
}

func TestDanubeOverTLSIsRefusedInPlainWords(t *testing.T) {
	long(t)
	cert, key := certificate(t)
	s := newStageOf(t, danubeWith(func(o *harness.DanubeOptions) { o.Cert, o.Key = cert, key }))
	n := s.prepare("n1", nodeOptions{Topics: []string{}})
	s.must(n.broker.Start(s.ctx))
	bin, err := harness.Build(harness.Holdfast)
	s.must(err)
	for name, row := range map[string]struct {
		flags []string
		want  string
	}{
		"in the clear":          {nil, "If it speaks TLS, write https:// in --danube-lookup"},
		"unknown authority":     {[]string{"--broker-admin", "https://" + n.danubed().AdminAddr(), "--danube-lookup", "https://" + n.danubed().ClientAddr()}, "set --broker-cacert"},
		"authorities not found": {[]string{"--broker-admin", "https://" + n.danubed().AdminAddr(), "--broker-cacert", "/nowhere"}, "--broker-cacert \"/nowhere\": cannot be read"},
	} {
		args := append(append([]string{"check"}, n.broker.Driver()...), "--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", t.TempDir())
		res, err := harness.RunHoldfast(s.ctx, bin, append(args, row.flags...)...)
		if err != nil || res.Exit == 0 || !strings.Contains(res.Stdout+res.Stderr, row.want) {
			t.Errorf("%s: exit code %d, %v, want %q:\n%s%s", name, res.Exit, err, row.want, res.Stdout, res.Stderr)
		}
	}
}
