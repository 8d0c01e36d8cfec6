package pulsar

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// answering is a driver of a server that answers by path, and well where nothing is said.
func answering(t *testing.T, answers map[string]http.HandlerFunc, change func(*Config)) *Broker {
	t.Helper()
	say := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(body))
		}
	}
	usual := map[string]http.HandlerFunc{
		"/admin/v2/brokers/health":  say("text/plain", "ok"),
		"/admin/v2/brokers/ready":   say("text/plain", "ok\n"),
		"/admin/v2/brokers/version": say("text/plain", "3.0.0"),
		"/status.html":              say("text/plain", "OK"),
		"owned":                     say("application/json", "{}"),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if strings.HasSuffix(path, "/ownedNamespaces") {
			path = "owned"
		}
		for _, set := range []map[string]http.HandlerFunc{answers, usual} {
			if f := set[path]; f != nil {
				f(w, r)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	cfg := Config{AdminURL: server.URL, Cluster: "cl"}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Location"] = []string{to}
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

func cutShort(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = w.Write([]byte("ok"))
	panic(http.ErrAbortHandler)
}

func TestWhatIsNotOKIsNotHealthy(t *testing.T) {
	const health, ready = "/admin/v2/brokers/health", "/admin/v2/brokers/ready"
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"failing":       {health, status(500, `{"reason":"no message"}`), "500"},
		"not ready":     {ready, status(500, "no"), "500"},
		"no token":      {health, status(401, "no"), "--broker-token-file"},
		"another word":  {health, status(200, "okay"), "want ok"},
		"empty":         {health, status(200, ""), "want ok"},
		"a page":        {health, status(200, "<html>ok</html>"), "want ok"},
		"a redirect":    {health, status(307, ""), "307"},
		"not there":     {health, status(404, "no"), "404"},
		"cut short":     {health, cutShort, "GET " + health},
		"huge":          {health, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 5<<20)) }, "larger than"},
		"ready but not": {ready, status(200, "ok, but"), "want ok"},
	} {
		t.Run(name, func(t *testing.T) {
			b := answering(t, map[string]http.HandlerFunc{c.path: c.answer}, nil)
			err := b.Health(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
	if err := answering(t, nil, nil).Health(t.Context()); err != nil {
		t.Errorf("a healthy broker: %v", err)
	}
}

func TestAHealthCheckThatHangsEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	b := answering(t, map[string]http.HandlerFunc{"/admin/v2/brokers/health": func(http.ResponseWriter, *http.Request) { <-release }}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Health(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestAListThatCannotBeReadIsNoList(t *testing.T) {
	for name, body := range map[string]string{
		"not JSON":           `{`,
		"null":               `null`,
		"a list":             `[]`,
		"not a bundle":       `{"orders":{"is_active":true}}`,
		"activity not said":  `{"public/default/0x00000000_0x40000000":{}}`,
		"activity is a word": `{"public/default/0x00000000_0x40000000":{"is_active":"yes"}}`,
		"first form":         `{"p/c/n/0x00000000_0x40000000":{"is_active":true}}`,
		"twice the same":     `{"public/default/0x00000000_0x40000000":{"is_active":false},"public/default/0x00000000_0x40000000":{"is_active":true}}`,
	} {
		b := answering(t, map[string]http.HandlerFunc{"owned": status(200, body)}, nil)
		if serving, _, err := b.Topics(t.Context()); err == nil {
			t.Errorf("%s: %q", name, serving)
		}
		if err := b.Steer(t.Context(), brokerapi.Drained, ""); err == nil {
			t.Errorf("%s: drained", name)
		}
	}
}

func TestAStrangerIsNotIdentified(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"another broker":     {"owned", status(307, ""), "--pulsar-advertised"},
		"another cluster":    {"owned", status(404, `{"reason":"Cluster does not exist"}`), "--pulsar-cluster"},
		"a page":             {"owned", status(200, "<html>"), "application/json"},
		"no version":         {"/admin/v2/brokers/version", status(200, ""), "version"},
		"a page for version": {"/admin/v2/brokers/version", status(200, strings.Repeat("<html>", 100)), "version"},
	} {
		b := answering(t, map[string]http.HandlerFunc{c.path: c.answer}, nil)
		_, err := b.Identify(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		if !errors.Is(err, brokerapi.ErrIdentity) {
			t.Errorf("%s: %v does not wrap %v", name, err, brokerapi.ErrIdentity)
		}
	}
}

func TestALookupThatLeadsElsewhereIsElsewhere(t *testing.T) {
	const path = "/lookup/v2/topic/persistent/public/default/orders"
	for name, answer := range map[string]http.HandlerFunc{
		"redirect":       redirect("http://other:8080/lookup"),
		"another's name": status(200, `{"httpUrl":"http://other:8080"}`),
	} {
		b := answering(t, map[string]http.HandlerFunc{path: answer}, nil)
		if err := b.Load(t.Context(), "/default/orders", nil); !errors.Is(err, brokerapi.ErrElsewhere) {
			t.Errorf("%s: got %v, want %v", name, err, brokerapi.ErrElsewhere)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"nobody": status(200, `{}`), "no URL": status(200, `{"httpUrl":"here"}`), "failing": status(503, "no"), "not JSON": status(200, "x"),
	} {
		b := answering(t, map[string]http.HandlerFunc{path: answer}, nil)
		if err := b.Load(t.Context(), "/default/orders", nil); err == nil || errors.Is(err, brokerapi.ErrElsewhere) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, to := range []string{"", "http://", "/lookup/again", "http://self:8080/lookup"} {
		b := answering(t, map[string]http.HandlerFunc{path: redirect(to)}, func(c *Config) {
			if to != "/lookup/again" {
				c.Advertised = "self:8080"
			}
		})
		if err := b.Load(t.Context(), "/default/orders", nil); err == nil || errors.Is(err, brokerapi.ErrElsewhere) || !strings.Contains(err.Error(), "no other broker") {
			t.Errorf("redirect to %q: got %v", to, err)
		}
	}
}

// TestAnUnloadThatFailedIsJudgedByTheBrokersList: a release that fails leaves the bundle
// closed, and a refusal may be about one that is served on.
func TestAnUnloadThatFailedIsJudgedByTheBrokersList(t *testing.T) {
	const bundle, path = "/public~default/0x00000000_0x40000000", "/admin/v2/namespaces/public/default/0x00000000_0x40000000/unload"
	for name, c := range map[string]struct {
		code   int
		list   string
		unload bool
	}{
		"done":                 {204, `{}`, true},
		"not owned":            {412, `{}`, true},
		"refused, and serving": {412, `{"public/default/0x00000000_0x40000000":{"is_active":true}}`, false},
		"failed, and closed":   {500, `{"public/default/0x00000000_0x40000000":{"is_active":false}}`, true},
		"failed, and serving":  {500, `{"public/default/0x00000000_0x40000000":{"is_active":true}}`, false},
		"elsewhere":            {307, `{}`, true},
		"not allowed":          {401, `{"public/default/0x00000000_0x40000000":{"is_active":true}}`, false},
	} {
		b := answering(t, map[string]http.HandlerFunc{path: status(c.code, ""), "owned": status(200, c.list)}, nil)
		if err := b.Unload(t.Context(), bundle); (err == nil) != c.unload {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestTheStatusFileGoesBeforeTheBundlesAndComesBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	asked := false
	b := answering(t, map[string]http.HandlerFunc{"owned": func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(file); err == nil {
			asked = true
		}
		status(200, `{"pulsar/h:1/0x00000000_0xffffffff":{"is_active":true}}`)(w, r)
	}}, func(c *Config) { c.StatusFile = file })
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Steer(t.Context(), brokerapi.Drained, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err == nil || asked {
			t.Error("the status file is there while the broker is drained")
		}
	}
	for range 2 {
		if err := b.Steer(t.Context(), brokerapi.Active, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

func TestSettingsThatCannotWorkAreRefusedWithTheirFlag(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no cluster":     {Config{AdminURL: "http://h:8080"}, "--pulsar-cluster"},
		"cluster's name": {Config{AdminURL: "http://h:8080", Cluster: "a/b"}, "--pulsar-cluster"},
		"advertised":     {Config{AdminURL: "http://h:8080", Cluster: "c", Advertised: "h"}, "--pulsar-advertised"},
		"address":        {Config{AdminURL: "h:8080", Cluster: "c"}, "--broker-admin"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %s", name, err, c.want)
		}
	}
}
