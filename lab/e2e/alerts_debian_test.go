package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// The oldest Prometheus that the rules are for, as Debian ships it.
func debianPrometheus(t *testing.T) string {
	t.Helper()
	path, err := harness.Debian("prometheus", "prometheus")
	if err != nil {
		t.Skip(err)
	}
	return path
}

// Rules as they are shipped, at their own pace, and one listener with TLS and a password.
func TestDebiansPrometheusScrapesSidecarsAndAlerts(t *testing.T) {
	takesLong(t)
	t.Parallel()
	program := debianPrometheus(t)
	s := newStage(t)
	ca, err := s.NewAuthority("web")
	s.must(err)
	cert, key, err := ca.Issue("web")
	s.must(err)
	web := s.file("web.yml", fmt.Sprintf(`
tls_server_config: { cert_file: %q, key_file: %q }
basic_auth_users: { prometheus: %q }
`, cert, key, webHash))
	plain := s.add("n1", nodeOptions{})
	private := s.add("n2", nodeOptions{Flags: []string{"--web-config-file", web}})
	api := s.debianPrometheus(program, fmt.Sprintf(`
global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }
rule_files: [ %q ]
scrape_configs:
  - job_name: holdfast
    static_configs: [ { targets: [ %q ] } ]
  - job_name: tls/holdfast
    scheme: https
    tls_config: { ca_file: %q }
    basic_auth: { username: prometheus, password: %q }
    static_configs: [ { targets: [ %q ] } ]
`, absolute(t, alertRules), scrapeAddress(plain.sidecar), ca.CACert, webPassword, scrapeAddress(private.sidecar)))

	var targets struct {
		Active []struct {
			Health, LastError string
		} `json:"activeTargets"`
	}
	s.must(harness.Await(s.ctx, alertBound, "both sidecars to be scraped", func(ctx context.Context) (bool, string) {
		err := api.get(ctx, "targets", &targets)
		ok := len(targets.Active) == 2 && targets.Active[0].Health == "up" && targets.Active[1].Health == "up"
		return ok, fmt.Sprint(targets, err)
	}))
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, Type string }
		}
	}
	s.must(harness.Await(s.ctx, alertBound, "every rule to be evaluated", func(ctx context.Context) (bool, string) {
		if err := api.get(ctx, "rules", &rules); err != nil {
			return false, err.Error()
		}
		alerts := 0
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" {
					return false, fmt.Sprintf("%+v", r)
				}
				if r.Type == "alerting" {
					alerts++
				}
			}
		}
		return alerts == len(alertingRules(t)), fmt.Sprint(alerts, " alerts")
	}))

	// etcd says that the lease is gone: an alert that waits for nothing.
	for _, n := range []*node{plain, private} {
		_, err := s.etcd.Client().Revoke(s.ctx, n.registration().Lease)
		s.must(err)
		s.must(harness.Await(s.ctx, alertBound, "the alert about "+n.id, func(ctx context.Context) (bool, string) {
			var firing struct {
				Alerts []struct {
					State  string
					Labels map[string]string
				}
			}
			err := api.get(ctx, "alerts", &firing)
			for _, a := range firing.Alerts {
				if a.State == "firing" && a.Labels["alertname"] == "HoldfastLeaseLost" && a.Labels["instance"] == scrapeAddress(n.sidecar) {
					return true, ""
				}
			}
			return false, fmt.Sprint(firing, err)
		}))
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// file writes a file in the lab's directory.
func (s *stage) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	s.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// promAPI is the HTTP API of a Prometheus.
type promAPI string

// get reads the data of an answer.
func (a promAPI) get(ctx context.Context, what string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, string(a)+"/api/v1/"+what, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &struct{ Data any }{data}); err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %w: %s", res.Status, err, body)
	}
	return nil
}

// debianPrometheus runs the program until the end of the test.
func (s *stage) debianPrometheus(program, config string) promAPI {
	s.t.Helper()
	port, err := s.Port()
	s.must(err)
	var log strings.Builder
	cmd := exec.Command(program, "--config.file", s.file("prometheus.yml", config), "--storage.tsdb.path", filepath.Join(s.Dir, "prometheus"),
		"--web.listen-address", address(port), "--log.level", "warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	s.must(cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("prometheus says:\n%s", log.String())
		}
	})
	return promAPI("http://" + address(port))
}
