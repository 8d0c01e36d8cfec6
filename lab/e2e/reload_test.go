package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// webPassword is what webUsers asks for; webHash is its bcrypt hash, of the least cost.
const (
	webPassword = "open sesame"
	webHash     = "$2a$04$QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq.KeKLctwB5G8iyjfKMC"
	webUsers    = "basic_auth_users:\n  prometheus: " + webHash + "\n"
)

func (s *stand) write(name, text string) (path string) {
	s.Helper()
	path = filepath.Join(s.lab.Dir, name)
	s.ok(os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettingsAreTakenUpByARealSidecarOnSIGHUPAndOverTheWebWithAPassword(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	file := s.write("holdfast.yaml", "audit-interval: 30s\n")
	c := s.couple("n1", "--config", file, "--web-config-file", s.write("web.yaml", webUsers))
	before := c.await("readiness", func(st harness.Status) bool { return st.Ready.OK })

	s.write("holdfast.yaml", "audit-interval: 7s\nlog-level: debug\n")
	s.ok(c.Signal(syscall.SIGHUP))
	e := c.told(1, "config", "reloaded")[0]
	if e.Reason != "SIGHUP" || !strings.Contains(e.Detail, "log-level: info → debug") || !strings.Contains(e.Detail, "audit-interval: 30s → 7s") {
		t.Errorf("%+v", e)
	}

	post := func(user string) int {
		req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, c.WebURL()+"/-/reload", nil)
		s.ok(err)
		if user != "" {
			req.SetBasicAuth(user, webPassword)
		}
		resp, err := http.DefaultClient.Do(req)
		s.ok(err)
		s.ok(resp.Body.Close())
		return resp.StatusCode
	}
	s.write("holdfast.yaml", "audit-interval: 9s\nlog-level: debug\n")
	if code := post(""); code != http.StatusUnauthorized {
		t.Errorf("without a password: %d", code)
	}
	if n := len(c.events("config", "reloaded")); n != 1 {
		t.Errorf("read anew %d times", n)
	}
	if code := post("prometheus"); code != http.StatusOK {
		t.Errorf("with the password: %d", code)
	}
	c.told(2, "config", "reloaded")

	// What needs a restart is refused by name, and nothing of it is taken up.
	s.write("holdfast.yaml", "audit-interval: 9s\nlog-level: warn\ndata-dir: /elsewhere\n")
	res, err := c.Verb(s.ctx, "reload")
	s.ok(err)
	if want := "data-dir: empty → /elsewhere needs a restart"; res.Exit != 3 || !strings.Contains(res.Stderr, want) {
		t.Errorf("exit code %d, %s", res.Exit, res.Stderr)
	}
	after := c.await("an answer", func(harness.Status) bool { return true })
	if !after.Ready.OK || after.Epoch != before.Epoch || len(c.events("config", "refused")) != 1 {
		t.Errorf("%+v", after)
	}
	s.write("holdfast.yaml", "audit-interval: 9s\nlog-level: warn\n")
	res, err = c.Verb(s.ctx, "reload")
	s.ok(err)
	if want := "n1: applied: log-level: debug → warn.\n"; res.Exit != 0 || res.Stdout != want {
		t.Errorf("exit code %d, %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	c.stayedLive()
}
