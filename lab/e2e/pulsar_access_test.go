package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// renew replaces a file as Kubernetes and most tools do.
func (s *stand) renew(path, content string) {
	s.Helper()
	s.ok(os.WriteFile(path+".new", []byte(content), 0o600))
	s.ok(os.Rename(path+".new", path))
}

func (s *stand) file(name, content string) (path string) {
	s.Helper()
	path = filepath.Join(s.TempDir(), name)
	s.ok(os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestAPulsarBrokersTokenAndCertificatesAreShownAndRenewed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ours, err := s.lab.NewAuthority("ours")
	s.ok(err)
	wanted, held := s.file("wanted", "first-secret\n"), s.file("held", "first-secret\n")
	p, err := s.lab.NewPulsar(harness.PulsarOptions{Name: "p1", Etcd: s.etcd.Endpoint(), SessionTimeout: standTTL, TLS: ours, Token: wanted})
	s.ok(err)
	s.ok(p.Start(s.ctx))
	cert, key, err := ours.Issue("holdfast")
	s.ok(err)
	c := s.besidePulsar(p, "--broker-cacert", ours.CACert, "--broker-cert", cert, "--broker-key", key, "--broker-token-file", held,
		"--audit-interval", "500ms", "--lease-ttl", "30s")
	s.ok(p.Publish(s.ctx, "/default/orders", []byte("one")))
	s.awaitThat("the bundle to be listed", func() bool { st, err := c.Status(s.ctx); return err == nil && st.Topics.Served == 1 })

	// The broker takes only the next token from now on.
	s.renew(held, "next-secret\n")
	s.renew(wanted, "next-secret\n")
	s.ok(c.AwaitReady(s.ctx, bound))
	s.awaitThat("the bundles to be unloaded with the next token", func() bool {
		c.verb("drain")
		return c.owns() == 0
	})
	c.verb("activate")
	s.ok(c.AwaitReady(s.ctx, bound))

	// With a token that is not taken the broker is not well. Nothing tells what it was.
	s.renew(wanted, "last-secret\n")
	s.ok(c.AwaitNotReady(s.ctx, bound))
	st, err := c.Status(s.ctx)
	s.ok(err)
	if !strings.Contains(st.Broker.LastError, "--broker-token-file") {
		t.Errorf("with a token that is not taken any more: %q", st.Broker.LastError)
	}
	s.renew(held, "last-secret\n")
	s.ok(c.AwaitReady(s.ctx, bound))
	log, err := os.ReadFile(c.LogPath())
	s.ok(err)
	if strings.Contains(string(log), "-secret") {
		t.Error("the log holds a token")
	}
}

func TestWrongAccessToAPulsarBrokerIsOneLineWithTheSetting(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ours, err := s.lab.NewAuthority("ours")
	s.ok(err)
	strangers, err := s.lab.NewAuthority("strangers")
	s.ok(err)
	token, wrong := s.file("token", "secret\n"), s.file("wrong", "guess\n")
	p, err := s.lab.NewPulsar(harness.PulsarOptions{Name: "p1", Etcd: s.etcd.Endpoint(), SessionTimeout: standTTL, TLS: ours, Token: token})
	s.ok(err)
	s.ok(p.Start(s.ctx))
	cert, key, err := ours.Issue("holdfast")
	s.ok(err)
	otherCert, otherKey, err := strangers.Issue("stranger")
	s.ok(err)
	good := map[string]string{
		"--driver": "pulsar", "--broker-admin": p.URL(), "--pulsar-cluster": harness.PulsarCluster, "--pulsar-status-file": p.StatusFile,
		"--broker-cacert": ours.CACert, "--broker-cert": cert, "--broker-key": key, "--broker-token-file": token,
		"--etcd-endpoints": s.etcd.Endpoint(), "--state-dir": s.TempDir(), "--log-level": "error",
	}
	for _, tt := range []struct {
		name   string
		change map[string]string // to nothing: left out
		exit   int
		want   []string // in the one line
	}{
		{"all is right", nil, 0, nil},
		{"another's authority", map[string]string{"--broker-cacert": strangers.CACert}, 1, []string{"--broker-cacert", strangers.CACert}},
		{"no authority", map[string]string{"--broker-cacert": ""}, 1, []string{"--broker-cacert"}},
		{"a certificate of another authority", map[string]string{"--broker-cert": otherCert, "--broker-key": otherKey}, 1, []string{"--broker-cert", "--broker-key"}},
		{"no certificate", map[string]string{"--broker-cert": "", "--broker-key": ""}, 1, []string{"--broker-cert", "--broker-key"}},
		{"a wrong token", map[string]string{"--broker-token-file": wrong}, 2, []string{"--broker-token-file", wrong}},
		{"no token", map[string]string{"--broker-token-file": ""}, 2, []string{"--broker-token-file"}},
		{"http where TLS is spoken", map[string]string{"--broker-admin": strings.Replace(p.URL(), "https", "http", 1), "--broker-cacert": "", "--broker-cert": "", "--broker-key": ""},
			1, []string{"--broker-admin", "https"}},
		{"another cluster", map[string]string{"--pulsar-cluster": "other"}, 2, []string{"--pulsar-cluster", "other", "clusterName"}},
		{"another name", map[string]string{"--pulsar-advertised": "broker-9:8080"}, 1, []string{"--pulsar-advertised", "broker-9:8080", p.Advertised()}},
	} {
		args := []string{"check"}
		for flag, value := range good {
			if other, ok := tt.change[flag]; ok {
				value = other
			}
			if value != "" {
				args = append(args, flag, value)
			}
		}
		for flag, value := range tt.change {
			if _, ok := good[flag]; !ok {
				args = append(args, flag, value)
			}
		}
		res := s.command(args...)
		if res.Exit != tt.exit {
			t.Errorf("%s: exit code %d, want %d: %s", tt.name, res.Exit, tt.exit, res.Stderr)
		}
		if tt.exit != 0 && strings.Count(res.Stderr, "\n") != 1 {
			t.Errorf("%s: want one line:\n%s", tt.name, res.Stderr)
		}
		for _, part := range tt.want {
			if !strings.Contains(res.Stderr, part) {
				t.Errorf("%s: %q is missing in\n%s", tt.name, part, res.Stderr)
			}
		}
		if strings.Contains(fmt.Sprint(res), "secret") || strings.Contains(fmt.Sprint(res), "guess") {
			t.Errorf("%s: says the token", tt.name)
		}
	}
	for _, ch := range s.history.Changes() {
		if strings.HasPrefix(ch.Key, "/cluster/") {
			t.Errorf("written to etcd: %v", ch)
		}
	}
}
