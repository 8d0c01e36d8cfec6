package e2e

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// Each secret of this test is a word of its own, so that a leak says what leaked. The
// seed is one of NATS's own form, made for this test.
const (
	natsSeed = "SUAIN5IS3ZC6ZVJ6Q6GNHY5AEDTOIV6DEWEWFGLBQKWNGLDYPUGXXXE5RA"
	natsCard = "eyJhbGciOiJlZDI1NTE5LW5rZXkifQ.secretclaims.secretsignature"
)

// spill is everything that a sidecar lets out, by where it stands.
type spill map[string]string

func (s *stand) spilled(c *harness.Sidecar, out spill) spill {
	s.Helper()
	for path := range map[string]bool{"/v1/status": true, "/v1/topics": true, "/v1/events": true} {
		body, err := c.Ask(s.ctx, path)
		s.ok(err)
		out[path] = body
	}
	for _, path := range []string{"/", "/metrics", "/api/status"} {
		req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, c.WebURL()+path, nil)
		s.ok(err)
		req.SetBasicAuth("prometheus", webPassword)
		resp, err := http.DefaultClient.Do(req)
		s.ok(err)
		body, err := io.ReadAll(resp.Body)
		s.ok(err)
		s.ok(resp.Body.Close())
		if resp.StatusCode != http.StatusOK {
			s.Errorf("%s: %s", path, resp.Status)
		}
		out[path] = string(body)
	}
	for _, path := range []string{"/ready?full=1", "/readyz?verbose", "/livez?verbose", "/broker/live"} {
		_, body, err := c.Probe(s.ctx, path)
		s.ok(err)
		out[path] = body
	}
	log, err := os.ReadFile(c.LogPath())
	s.ok(err)
	out["log"] = string(log)
	s.ok(filepath.WalkDir(c.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	}))
	return out
}

// keeps fails for each secret that stands anywhere.
func (s *stand) keeps(out spill, secrets map[string]string) {
	s.Helper()
	for what, secret := range secrets {
		for where, text := range out {
			if i := strings.Index(text, secret); i >= 0 {
				s.Errorf("%s has the secret %s: …%s…", where, what, text[max(0, i-80):min(len(text), i+40)])
			}
		}
	}
}

// NATS that goes, an etcd that refuses the password after it was right, wrong passwords and
// files that were spoilt before a reload: nothing of it makes the sidecar say what it keeps.
func TestNoSecretIsInAnythingThatASidecarLetsOut(t *testing.T) {
	long(t)
	s := newStand(t)
	secrets := map[string]string{
		"password of etcd": "etcd-secret-word", "its replacement": "wrong-secret-word", "root's in a URL": "url-secret-word",
		"password of the web": webPassword, "guess at it": "guessed-secret-word", "hash of it": "QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq",
		"seed of NATS": natsSeed, "card of NATS": natsCard, "password in a settings file": "spoilt-secret-word",
	}
	n := s.broker("n1")
	s.ok(s.etcd.EnableAuth(s.ctx, "root-word", "hf", secrets["password of etcd"], ""))
	password := s.write("etcd-password", secrets["password of etcd"]+"\n")
	web := s.write("web.yaml", webUsers)
	file := s.write("holdfast.yaml", "audit-interval: 30s\n")
	creds := s.write("nats.creds", "-----BEGIN NATS USER JWT-----\n"+natsCard+"\n------END NATS USER JWT------\n\n"+
		"-----BEGIN USER NKEY SEED-----\n"+natsSeed+"\n------END USER NKEY SEED------\n")
	flags := []string{"--log-level", "debug", "--config", file, "--etcd-user", "hf", "--etcd-password-file", password,
		"--web-config-file", web, "--nats-creds-file", creds}
	c := s.beside(n, flags...)
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	out := spill{}

	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, c.WebURL()+"/metrics", nil)
	s.ok(err)
	req.SetBasicAuth("prometheus", secrets["guess at it"])
	resp, err := http.DefaultClient.Do(req)
	s.ok(err)
	guessed, err := io.ReadAll(resp.Body)
	s.ok(err)
	s.ok(resp.Body.Close())
	out["answer to a guess"] = string(guessed)

	for name, text := range map[string]string{
		"a URL with a password":   "connect-url: nats://root:" + secrets["root's in a URL"] + "@127.0.0.1:1\n",
		"a URL that is none":      "broker-url: 'nats://me:" + secrets["root's in a URL"] + "@[::1'\n",
		"a password as a setting": "etcd-password: " + secrets["password in a settings file"] + "\n",
		"no YAML":                 "etcd-password-file: [" + secrets["password in a settings file"] + "\n\t",
	} {
		s.write("holdfast.yaml", text)
		res, err := c.Verb(s.ctx, "reload")
		s.ok(err)
		if res.Exit != 2 {
			t.Errorf("%s: exit code %d, %s%s", name, res.Exit, res.Stdout, res.Stderr)
		}
		out["reload of "+name] = res.Stdout + res.Stderr
	}
	s.write("holdfast.yaml", "audit-interval: 30s\n")
	for name, text := range map[string]string{
		"users that are none": "basic_auth_users: " + secrets["password in a settings file"] + "\n",
		"a hash that is none": "basic_auth_users:\n  prometheus: " + secrets["password in a settings file"] + "\n",
	} {
		s.write("web.yaml", text)
		res, err := c.Verb(s.ctx, "reload")
		s.ok(err)
		if res.Exit != 2 {
			t.Errorf("%s: exit code %d, %s%s", name, res.Exit, res.Stdout, res.Stderr)
		}
		out["reload of "+name] = res.Stdout + res.Stderr
	}
	s.write("web.yaml", webUsers)
	for _, flag := range []string{"--etcd-endpoints=http://root:" + secrets["root's in a URL"] + "@127.0.0.1:1", "--broker-admin=nats://me:" + secrets["root's in a URL"] + "@127.0.0.1:1",
		"--connect-url=nats://me:" + secrets["root's in a URL"] + "@127.0.0.1:1", "--nats-monitor=http://me:" + secrets["root's in a URL"] + "@127.0.0.1:1"} {
		res := s.command("check", "--driver", "nats", flag)
		if res.Exit != 2 {
			t.Errorf("check %s: exit code %d", flag, res.Exit)
		}
		name, _, _ := strings.Cut(flag, "=")
		out["check "+name] = res.Stdout + res.Stderr
	}

	s.write("etcd-password", secrets["its replacement"]+"\n")
	res := s.command(append([]string{"check", "--driver", "nats", "--broker-admin", n.URL(), "--nats-monitor", n.MonitorURL(), "--etcd-endpoints", s.etcd.Endpoint()}, flags[2:]...)...)
	out["check with a wrong password"] = res.Stdout + res.Stderr
	if res.Exit != 2 {
		t.Errorf("check with a wrong password: exit code %d, %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	_, err = s.etcd.Client().UserChangePassword(s.ctx, "hf", "another") // tokens of before are void
	s.ok(err)
	s.ok(n.Kill())
	c.await("a broker that is down", func(st harness.Status) bool { return st.Broker.Up == "down" })
	s.ok(s.etcd.Kill())
	c.await("the end of its lease", func(st harness.Status) bool { return st.Attachment == "detached" })
	s.ok(c.Signal(syscall.SIGHUP))
	c.told(1, "config", "reloaded")
	s.spilled(c.Sidecar, out)
	s.keeps(out, secrets)

	// The test would find a secret that is there.
	found := false
	for _, text := range out {
		found = found || strings.Contains(text, "refused") || strings.Contains(text, "password")
	}
	if !found {
		t.Error("nothing of the failures is to be seen at all")
	}
}
