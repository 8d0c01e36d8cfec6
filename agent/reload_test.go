package agent

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/web"
	"holdfast/internal/fakenet"
	"holdfast/probes"
)

// A live setting that is read from the settings of the start would be taken up by half.
func TestLiveSettingsAreReadThroughTheSnapshot(t *testing.T) {
	fields := map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		if f.Tag.Get("live") != "" {
			fields[f.Name] = f.Tag.Get("name")
		}
	}
	if len(fields) != len(config.LiveSettings()) {
		t.Fatalf("fields %v", fields)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || fields[sel.Sel.Name] == "" {
				return true
			}
			if of, ok := sel.X.(*ast.SelectorExpr); ok && of.Sel.Name == "cfg" {
				t.Errorf("%s: --%s is read from the settings of the start", fset.Position(sel.Pos()), fields[sel.Sel.Name])
			}
			return true
		})
	}
}

// settingsFile is a file that a test rewrites.
type settingsFile struct {
	mu   sync.Mutex
	text string
	disk chan struct{} // not nil: it hangs until that is closed
}

func (f *settingsFile) write(text string) { f.mu.Lock(); defer f.mu.Unlock(); f.text = text }

func (f *settingsFile) read(string) ([]byte, error) {
	f.mu.Lock()
	disk := f.disk
	f.mu.Unlock()
	if disk != nil {
		<-disk
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return []byte(f.text), nil
}

// inReload runs claim beside a sidecar that is attached and was started with the file, a
// flag --health-rise 2 and HOLDFAST_LOAD_RATE=5.
func inReload(t *testing.T, text string, claim func(l *sidecarLife, f *settingsFile)) {
	t.Helper()
	f := &settingsFile{text: text}
	c, err := config.Load(config.Sources{File: "holdfast.yaml", Read: f.read, Flags: map[string][]string{"driver": {"nats"}, "health-rise": {"2"}},
		Env: []string{"HOLDFAST_LOAD_RATE=5"}})
	if err != nil {
		t.Fatal(err)
	}
	inLife(t, func(to *config.Config) { *to = c }, func(l *sidecarLife) { claim(l, f) })
}

func TestAReloadTakesUpWhatChangedAndTellsEverybody(t *testing.T) {
	inReload(t, "health-fall: 3\nlease-ttl: 32s\n", func(l *sidecarLife, f *settingsFile) {
		level := ""
		l.world.SetLogLevel = func(name string) { level = name }
		f.write("health-fall: 5\nhealth-rise: 9\nload-rate: 7\nlog-level: debug\ndetachment-recover-window: 4s\nlease-ttl: 32s\n")
		done, err := l.reload(context.Background(), "SIGHUP")
		if err != nil {
			t.Fatal(err)
		}
		want := "detachment-recover-window: 2s → 4s, health-fall: 3 → 5, log-level: info → debug" // the flag and the environment win
		slices.Sort(done.Changed)
		if got := strings.Join(done.Changed, ", "); got != want || level != "debug" {
			t.Errorf("%s, level %s, want %s", got, level, want)
		}
		s := l.status()
		if s.Config.Error != "" || s.Config.ReloadedAt == nil || !s.Config.ReloadedAt.Equal(time.Now()) {
			t.Errorf("%+v", s.Config)
		}
		events, _ := l.journal.Since(0)
		if e := events[len(events)-1]; e.Kind != "config" || e.To != "reloaded" || e.Reason != "SIGHUP" || !strings.Contains(e.Detail, "health-fall: 3 → 5") ||
			!strings.Contains(control.Explain(e, *l.settings()).Why, "in force") {
			t.Errorf("%+v", e)
		}
		if l.settings().DetachmentRecoverWindow != 4*time.Second || l.cfg.DetachmentRecoverWindow != 2*time.Second {
			t.Error("the snapshot is not the new one, or the settings of the start were written to")
		}
		l.set(func() { l.ended = true })
		l.until(l.age() + 3900*time.Millisecond)
		if v := l.health.Snapshot(); v.Verdict != probes.Up {
			t.Errorf("with --health-fall 5 after four failures: %+v", v)
		}
	})
}

// An etcd that refuses what it was shown all along is said, and keeps no other setting back.
func TestAReloadRestsOnEtcdOnlyWhereWhatItIsShownDiffers(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	etcd := "\netcd-user: hf\netcd-password-file: " + password + "\n"
	store := func(word string) {
		if err := os.WriteFile(password, []byte(word), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store("one")
	inReload(t, "health-fall: 3"+etcd, func(l *sidecarLife, f *settingsFile) {
		refusal := errors.New("etcd refuses us")
		for i, step := range []struct {
			word           string
			refuses, taken bool
		}{
			{"one", true, true},
			{"two", true, false},
			{"two", true, false},
			{"one", true, true},
			{"two", false, true},
			{"two", true, true},
			{"one", true, false},
		} {
			l.world.Try = func(_ context.Context, _ config.Config, shownAnew bool) ([]string, error) {
				if !step.refuses {
					return nil, nil
				} else if shownAnew {
					return nil, refusal
				}
				return []string{refusal.Error()}, nil
			}
			store(step.word)
			fall := 4 + i
			f.write(fmt.Sprintf("health-fall: %d%s", fall, etcd))
			done, err := l.reload(context.Background(), "SIGHUP")
			if (err == nil) != step.taken || (l.settings().HealthFall == fall) != step.taken || step.taken && (len(done.Found) > 0) != step.refuses {
				t.Errorf("step %d: %v, %+v, --health-fall %d", i, err, done, l.settings().HealthFall)
			}
		}
	})
}

func TestAReloadThatCannotBeTakenUpWholeIsNotTakenUpAtAll(t *testing.T) {
	const before = "health-fall: 3\nlease-ttl: 32s\n"
	for _, tt := range []struct {
		name, text, want string
		code             int
		try              error
	}{
		{name: "a lease that others were told of", text: "health-fall: 5\nlease-ttl: 20s\n", code: control.ExitRefused,
			want: "lease-ttl: 32s → 20s needs a restart; renew-interval: 4s → 2.5s needs a restart; lease-detach-margin: 10.667s → 6.667s needs a restart; " +
				"and so nothing was applied, not health-fall: 3 → 5 either: restart the sidecar, or take it back"},
		{name: "a value that is none", text: "health-fall: many\n", code: control.ExitUsage,
			want: `holdfast.yaml:1: health-fall "many": not a whole number: write digits only, such as 3`},
		{name: "a setting that there is not", text: "health-fall: 5\nlease-tll: 32s\n", code: control.ExitUsage,
			want: "holdfast.yaml:2: lease-tll: unknown setting: did you mean lease-ttl?"},
		{name: "values that do not go together", text: "health-fall: 5\nload-concurrency: 0\nhealth-timeout: 0s\n", code: control.ExitUsage,
			want: "holdfast.yaml:2: load-concurrency 0: must be at least 1; holdfast.yaml:3: health-timeout 0s: must be at least 1ms"},
		{name: "files that cannot be used", text: "health-fall: 5\n", code: control.ExitUsage, try: errors.New("--broker-token-file: empty"),
			want: "--broker-token-file: empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inReload(t, before, func(l *sidecarLife, f *settingsFile) {
				l.world.SetLogLevel = func(string) { t.Error("the log level was set") }
				l.world.Try = func(context.Context, config.Config, bool) ([]string, error) { return nil, tt.try }
				f.write(tt.text)
				_, err := l.reload(context.Background(), "SIGHUP")
				var exit *control.ExitError
				if !errors.As(err, &exit) || exit.Code != tt.code {
					t.Fatalf("%v", err)
				}
				s := l.status()
				if s.Config.Error != tt.want || s.Config.ReloadedAt != nil || s.Config.FailedAt == nil {
					t.Errorf("%+v\nwant %s", s.Config, tt.want)
				}
				if l.settings().HealthFall != 3 {
					t.Error("half of it was taken up")
				}
				if got := l.why("config"); got != "refused:SIGHUP" {
					t.Errorf("the journal says %s", got)
				}
				wantReloadMetrics(t, l, 0, l.started)
				l.world.SetLogLevel, l.world.Try = nil, nil
				f.write("health-fall: 6\nlease-ttl: 32s\n")
				l.until(l.age() + time.Minute)
				if _, err := l.reload(context.Background(), "SIGHUP"); err != nil || l.status().Config.Error != "" || l.settings().HealthFall != 6 {
					t.Errorf("mended: %v, %+v", err, l.status().Config)
				}
				wantReloadMetrics(t, l, 1, time.Now())
			})
		})
	}
}

func wantReloadMetrics(t *testing.T, l *sidecarLife, ok float64, at time.Time) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(stateGauges{l.agent})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if got["holdfast_config_last_reload_successful"] != ok ||
		got["holdfast_config_last_reload_success_timestamp_seconds"] != float64(at.UnixMilli())/1000 {
		t.Errorf("%v, want %v at %v", got, ok, float64(at.UnixMilli())/1000)
	}
}

func TestReloadsAtTheSameTimeAsEverythingElse(t *testing.T) {
	inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for n := range 20 {
					f.write([]string{"health-fall: 3\naudit-interval: 30s\n", "health-fall: 4\naudit-interval: 20s\nload-concurrency: 3\n", "lease-ttl: 9s\n"}[(n+i)%3])
					_, _ = l.reload(context.Background(), "test")
					time.Sleep(time.Millisecond)
				}
			})
			all.Go(func() {
				for range 50 {
					l.status()
					if c := l.settings(); (c.HealthFall == 4) != (c.AuditInterval == 20*time.Second) {
						t.Errorf("half: %d, %v", c.HealthFall, c.AuditInterval)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("not ready: %v", causes)
		}
	})
}

func TestEachHangupReloads(t *testing.T) {
	inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
		hangups := make(chan os.Signal, 1)
		l.world.Hangups = hangups
		ctx, cancel := context.WithCancel(context.Background())
		var follows sync.WaitGroup
		follows.Go(func() { _ = l.followHangups(ctx) })
		f.write("health-fall: 4\n")
		hangups <- os.Interrupt
		synctest.Wait()
		if l.settings().HealthFall != 4 {
			t.Error("not reloaded")
		}
		cancel()
		follows.Wait()
	})
}

// The end has a lease to give up, and a broker to quiesce.
func TestAReloadFromADiskThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
		hangups, disk := make(chan os.Signal, 1), make(chan struct{})
		defer close(disk)
		l.world.Hangups, f.disk = hangups, disk
		ctx, cancel := context.WithCancel(context.Background())
		var follows sync.WaitGroup
		follows.Go(func() { _ = l.followHangups(ctx) })
		hangups <- os.Interrupt
		synctest.Wait()
		ended := time.Now()
		cancel()
		follows.Wait()
		if took := time.Since(ended); took > reloadPatience {
			t.Errorf("the end waited %s", took)
		}
	})
}

func TestSystemdIsToldOfEachReload(t *testing.T) {
	inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
		var said []string
		l.systemd = &Systemd{Notify: func(state string) error { said = append(said, state); return nil }}
		for _, text := range []string{"health-fall: 4\n", "health-fall: no\n"} {
			said = nil
			f.write(text)
			_, _ = l.reload(context.Background(), "SIGHUP")
			if len(said) != 2 || !strings.HasPrefix(said[0], "RELOADING=1\nMONOTONIC_USEC=") || said[1] != "READY=1" {
				t.Errorf("%q: systemd was told %q", text, said)
			}
		}
	})
}

func TestSettingsThatWereNotLoadedCannotBeReadAnew(t *testing.T) {
	if _, err := config.Default().Again(); err == nil {
		t.Error("read anew from nowhere")
	}
}

func TestAReloadOverTheWebIsOnlyForThoseWhoShowWhoTheyAre(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name, file, site string
		want             int
	}{
		{"no file", "", "", http.StatusForbidden},
		{"TLS alone", "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n", "", http.StatusForbidden},
		{"certificates, of which this connection knows nothing", "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n", "", http.StatusForbidden},
		{"users", "basic_auth_users:\n  a: " + cheapHash + "\n", "", http.StatusOK},
		{"users, from another site's page", "basic_auth_users:\n  a: " + cheapHash + "\n", "cross-site", http.StatusForbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := ""
			if tt.file != "" {
				path = webConfigFile(t, dir, tt.file)
			}
			inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
				l.cfg.WebConfigFile = path
				l.reloading.now.Store(nil)
				f.write("health-fall: 4\nweb-config-file: \"" + path + "\"\n")
				if path == "" {
					f.write("health-fall: 4\n")
				}
				fakenet.NewAuthority(t, dir).Server("server")
				r := httptest.NewRequest("POST", web.ReloadPath, nil)
				if tt.site != "" {
					r.Header.Set("Sec-Fetch-Site", tt.site)
				}
				w := httptest.NewRecorder()
				l.webHandler(prometheus.NewRegistry()).ServeHTTP(w, r)
				if w.Code != tt.want || (l.settings().HealthFall == 4) != (tt.want == 200) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if tt.want == 403 && tt.site == "" && !strings.Contains(w.Body.String(), "send SIGHUP, or run 'holdfast reload'") {
					t.Error(w.Body)
				}
				w = httptest.NewRecorder()
				if l.webHandler(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequest("GET", web.ReloadPath, nil)); w.Code < 400 {
					t.Errorf("GET: %d", w.Code)
				}
			})
		})
	}
}

func TestTheControlSocketReloads(t *testing.T) {
	inReload(t, "health-fall: 3\n", func(l *sidecarLife, f *settingsFile) {
		post := func() (int, string) {
			w := httptest.NewRecorder()
			l.controlHandler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/reload", strings.NewReader("{}")))
			return w.Code, w.Body.String()
		}
		f.write("health-fall: 4\n")
		if code, body := post(); code != http.StatusOK || !strings.Contains(body, "health-fall: 3 → 4") {
			t.Errorf("%d %s", code, body)
		}
		f.write("prefix: /x\n")
		if code, body := post(); code != http.StatusConflict || !strings.Contains(body, "prefix: empty → /x needs a restart") || !strings.Contains(body, `"exit_code":3`) {
			t.Errorf("%d %s", code, body)
		}
	})
}
