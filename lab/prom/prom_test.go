package prom

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
)

// bound is not a claim: it ends a test that hangs.
const bound = time.Minute

// exporter is a /metrics with one gauge.
type exporter struct {
	*httptest.Server
	load prometheus.Gauge
	down atomic.Bool
}

func newExporter(t *testing.T) *exporter {
	e := &exporter{load: prometheus.NewGauge(prometheus.GaugeOpts{Name: "load"})}
	reg := prometheus.NewRegistry()
	reg.MustRegister(e.load)
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		metrics.ServeHTTP(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *exporter) address() string { return strings.TrimPrefix(e.URL, "http://") }

const rulesFile = `
groups:
  - name: test
    interval: 10s
    rules:
      - record: job:load:max
        expr: max by (job) (load)
      - alert: Loaded
        expr: max_over_time(load[1m]) > 0
        for: 5m
        labels: {severity: warning}
        annotations: {description: 'load is {{ $value }} on {{ $labels.instance }}'}
      - alert: Gone
        expr: up == 0
`

func start(t *testing.T, c Config) *Prometheus {
	t.Helper()
	if c.Rules == nil {
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, []byte(rulesFile), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Rules = []string{file}
	}
	c.ScrapeInterval, c.Faster = 100*time.Millisecond, 100
	p, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnAlertOfFiveMinutesIsPendingFiresAndIsResolvedInSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	p, e := start(t, Config{}), newExporter(t)
	must(t, p.Target("holdfast", e.address(), map[string]string{"cluster": "c1"}))
	must(t, p.AwaitScrape(ctx))
	if all := p.Alerts(); len(all) > 0 {
		t.Errorf("before: %v", all)
	}
	began := time.Now()
	e.load.Set(7)
	_, err := p.AwaitChange(ctx, began, "Loaded", Pending, "cluster=c1")
	must(t, err)
	firing, err := p.AwaitChange(ctx, began, "Loaded", Firing, "severity=warning", "job=holdfast")
	must(t, err)
	if held := firing.At.Sub(firing.Alert.ActiveAt); held < 3*time.Second || firing.From != Pending {
		t.Errorf("fired after %v, and was %s; 5m divided by 100 are 3s", held, firing.From)
	}
	if got, want := firing.Alert.Annotations["description"], fmt.Sprintf("load is 7 on %s", e.address()); got != want {
		t.Errorf("description %q, want %q", got, want)
	}
	v, err := p.Query(ctx, `job:load:max{job="holdfast"}`)
	if err != nil || len(v) != 1 || v[0].F != 7 {
		t.Errorf("the recorded series is %v, %v", v, err)
	}
	e.load.Set(0)
	_, err = p.AwaitAlert(ctx, "Loaded", Inactive)
	must(t, err)
	if c, err := p.AwaitChange(ctx, firing.At, "Loaded", Inactive); err != nil || c.From != Firing || c.Alert.Labels["severity"] != "warning" {
		t.Errorf("the end is told as %v, %v", c, err)
	}
	must(t, p.RuleErrors())
	m, err := p.QueryRange(ctx, "load", began, time.Now(), 100*time.Millisecond)
	if err != nil || len(m) != 1 || len(m[0].Floats) < 10 {
		t.Errorf("the graph of load is %v, %v", m, err)
	}
}

func TestATargetThatGoesDownIsUpZeroAndOneThatIsForgottenIsGone(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	p, e := start(t, Config{}), newExporter(t)
	must(t, p.Target("holdfast", e.address(), map[string]string{"instance": "n1"}))
	must(t, p.AwaitScrape(ctx))
	e.down.Store(true)
	_, err := p.AwaitAlert(ctx, "Gone", Firing, "instance=n1")
	must(t, err)
	if v, err := p.Query(ctx, "load"); err != nil || len(v) > 0 {
		t.Errorf("a series of a target that is down: %v, %v", v, err)
	}
	must(t, p.Forget("holdfast", e.address()))
	_, err = p.AwaitAlert(ctx, "Gone", Inactive)
	must(t, err)
}

func TestAJobIsScrapedAsItsConfigurationSays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	e := newExporter(t)
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "prometheus" || password != "secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		e.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(guarded.Close)
	p := start(t, Config{Jobs: []Job{{Name: "guarded", Config: "basic_auth: {username: prometheus, password: secret}"}}})
	must(t, p.Target("guarded", strings.TrimPrefix(guarded.URL, "http://"), nil))
	must(t, p.AwaitScrape(ctx))
	must(t, p.Target("plain", strings.TrimPrefix(guarded.URL, "http://"), nil))
	for {
		short, cancel := context.WithTimeout(ctx, time.Second)
		err := p.AwaitScrape(short)
		cancel()
		if err != nil && strings.Contains(err.Error(), "plain: server returned HTTP status 401") {
			break
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("without a password: %v", err)
		}
	}
}

func TestRulesThatDoNotLoadAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.yaml")
	must(t, os.WriteFile(file, []byte("groups: [{name: g, rules: [{alert: A, expr: 'rate(a)'}]}]"), 0o600))
	_, err := Start(t.Context(), Config{Rules: []string{file}})
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "expected type range vector") {
		t.Errorf("got %v", err)
	}
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	e := newExporter(t)
	before := goleak.IgnoreCurrent()
	p, err := Start(t.Context(), Config{})
	must(t, err)
	must(t, p.Target("holdfast", e.address(), nil))
	must(t, p.AwaitScrape(t.Context()))
	dir := p.dir
	must(t, p.Close())
	must(t, p.Close())
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	e.Close()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	if _, err := p.AwaitAlert(t.Context(), "Any", Firing); err == nil {
		t.Error("a closed one was waited for")
	}
}
