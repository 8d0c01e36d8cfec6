package pulsar

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// answering is a driver of a server that answers by path, and well where nothing is said.
func answering(t *testing.T, answers map[string]http.HandlerFunc, change func(*Config)) *Broker {
	t.Helper()
	b, _ := answeringAt(t, answers, change)
	return b
}

func answeringAt(t *testing.T, answers map[string]http.HandlerFunc, change func(*Config)) (*Broker, *httptest.Server) {
	t.Helper()
	say := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(body))
		}
	}
	usual := map[string]http.HandlerFunc{ // as 4.0.7 answered on 2026-11-23
		"/admin/v2/brokers/health":  say("application/json", "ok"),
		"/admin/v2/brokers/ready":   say("application/json", "ok"),
		"/admin/v2/brokers/version": say("application/json", "4.0.7"),
		"/admin/v2/clusters":        say("application/json", `["cl"]`),
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
	return b, server
}

// TestAPlainAnswerIsTakenUnderAnyName: 4.0.7 calls its plain answers JSON, and answers 406 to
// who does not take that. Proxies and other versions say text/plain.
func TestAPlainAnswerIsTakenUnderAnyName(t *testing.T) {
	for _, kind := range []string{"application/json", "text/plain", ""} {
		say := func(body string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if accept := r.Header.Get("Accept"); accept != "*/*" {
					http.Error(w, "HTTP 406 Not Acceptable", http.StatusNotAcceptable)
					return
				}
				w.Header()["Content-Type"] = []string{kind}
				_, _ = w.Write([]byte(body))
			}
		}
		b := answering(t, map[string]http.HandlerFunc{
			"/admin/v2/brokers/health": say("ok"), "/admin/v2/brokers/ready": say("ok\n"), "/admin/v2/brokers/version": say("4.0.7"),
		}, nil)
		if err := b.ready(t.Context()); err != nil {
			t.Errorf("%q: %v", kind, err)
		}
		if who, err := b.identify(t.Context()); who.Version != "4.0.7" || err != nil {
			t.Errorf("%q: %+v, %v", kind, who, err)
		}
	}
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

func TestWhatIsNotOKIsNotWell(t *testing.T) {
	const health, ready = "/admin/v2/brokers/health", "/admin/v2/brokers/ready"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"failing":        {status(500, `{"reason":"no message"}`), "500"},
		"while it boots": {status(500, "<html>Error 500</html>"), "500"},
		"no token":       {status(401, "no"), "--broker-token-file"},
		"another word":   {status(200, "okay"), "want ok"},
		"more words":     {status(200, "ok, but"), "want ok"},
		"empty":          {status(200, ""), "want ok"},
		"a page":         {status(200, "<html>ok</html>"), "want ok"},
		"a redirect":     {status(307, ""), "307"},
		"not there":      {status(404, "no"), "404"},
		"cut short":      {cutShort, "GET /admin/v2/brokers/"},
		"huge":           {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 5<<20)) }, "larger than"},
	} {
		for path, ask := range map[string]func(*Broker, context.Context) error{ready: (*Broker).ready, health: (*Broker).works} {
			b := answering(t, map[string]http.HandlerFunc{path: c.answer}, nil)
			if err := ask(b, t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %s: got %v, want an error with %q", name, path, err, c.want)
			}
		}
	}
	b := answering(t, map[string]http.HandlerFunc{health: status(500, "the bookies are away")}, nil)
	if err := b.ready(t.Context()); err != nil {
		t.Errorf("its process is well: %v", err)
	}
	b = answering(t, map[string]http.HandlerFunc{ready: status(500, "no")}, nil)
	if err := b.works(t.Context()); err != nil {
		t.Errorf("it works: %v", err)
	}
}

func TestWorkThatHangsEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	b := answering(t, map[string]http.HandlerFunc{"/admin/v2/brokers/health": func(http.ResponseWriter, *http.Request) { <-release }}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.works(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestAListThatCannotBeReadIsNoList(t *testing.T) {
	for name, body := range map[string]string{
		"not JSON": `{`,
		"null":     `null`,
		"a list":   `[]`,
		"half":     `{"public/default/0x00000000_0x40000000":{"is_active":true}`,
	} {
		b := answering(t, map[string]http.HandlerFunc{"owned": status(200, body)}, nil)
		if held, err := b.Topics(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, held)
		}
		if err := b.SetMode(t.Context(), brokerapi.Drained, ""); err == nil {
			t.Errorf("%s: drained", name)
		}
	}
}

func TestAnEntryThatCannotBeReadVoidsNoOther(t *testing.T) {
	const good = "/public~default/0x40000000_0x80000000"
	long := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct{ entry, serving, unreadable string }{
		"not a bundle":       {entry: `"orders":{"is_active":true}`, unreadable: `"orders"`},
		"no name":            {entry: `"":{"is_active":true}`, unreadable: `""`},
		"the first form":     {entry: `"public/default/we/0x00000000_0xffffffff":{"is_active":true}`, unreadable: `"public/default/we/0x00000000_0xffffffff"`},
		"it is on its way":   {entry: `"public/default/we/0x00000000_0xffffffff":{"is_active":false}`, unreadable: `"public/default/we/0x00000000_0xffffffff"`},
		"an emoji":           {entry: `"public/\U0001F600/0x00000000_0xffffffff":{"is_active":true}`, unreadable: `"public/\U0001f600/0x00000000_0xffffffff"`},
		"64 kB":              {entry: `"` + long + `":{"is_active":true}`, unreadable: brokerapi.Unreadable(long)},
		"activity not said":  {entry: `"public/default/0x00000000_0x40000000":{}`, serving: "/public~default/0x00000000_0x40000000"},
		"activity is a word": {entry: `"public/default/0x00000000_0x40000000":{"is_active":"yes"}`, serving: "/public~default/0x00000000_0x40000000"},
		"no status":          {entry: `"public/default/0x00000000_0x40000000":7`, serving: "/public~default/0x00000000_0x40000000"},
	} {
		entry := strings.ReplaceAll(c.entry, `\U0001F600`, "\U0001F600")
		b := answering(t, map[string]http.HandlerFunc{"owned": status(200, `{`+entry+`,"public/default/0x40000000_0x80000000":{"is_active":true}}`)}, nil)
		held, err := b.Topics(t.Context())
		want := brokerapi.Held{Serving: []string{good}}
		if c.serving != "" {
			want.Serving = []string{c.serving, good}
		}
		if c.unreadable != "" {
			want.Unreadable = []string{c.unreadable}
		}
		if err != nil || !reflect.DeepEqual(held, want) {
			t.Errorf("%s: got %+v, %v\nwant %+v", name, held, err, want)
		}
		if err := b.ready(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names of namespaces that differ in case are two names.
func TestNamespacesThatDifferInCaseAreBothListed(t *testing.T) {
	b := answering(t, map[string]http.HandlerFunc{"owned": status(200,
		`{"public/Orders/0x00000000_0xffffffff":{"is_active":true},"public/orders/0x00000000_0xffffffff":{"is_active":true}}`)}, nil)
	held, err := b.Topics(t.Context())
	if want := []string{"/public~Orders/0x00000000_0xffffffff", "/public~orders/0x00000000_0xffffffff"}; err != nil || !slices.Equal(held.Serving, want) {
		t.Errorf("got %+v, %v, want %q", held, err, want)
	}
}

func TestAStrangerIsNotIdentified(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"another broker":     {"owned", status(307, ""), "--pulsar-advertised"},
		"another cluster":    {"/admin/v2/clusters", status(200, `["lab","lab-2"]`), `--pulsar-cluster cl: the broker at`},
		"a page that is not": {"owned", status(404, "<html>"), "404"},
		"a page":             {"owned", status(200, "<html>"), "<html>"},
		"no version":         {"/admin/v2/brokers/version", status(200, ""), "version"},
		"a page for version": {"/admin/v2/brokers/version", status(200, strings.Repeat("<html>", 100)), "version"},
	} {
		b := answering(t, map[string]http.HandlerFunc{c.path: c.answer}, nil)
		_, err := b.identify(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
		if !errors.Is(err, brokerapi.ErrIdentity) {
			t.Errorf("%s: %v does not wrap %v", name, err, brokerapi.ErrIdentity)
		}
	}
}

// What does not say that it knows other clusters is no reason to refuse the broker.
func TestABrokerThatDoesNotTellItsClustersIsIdentified(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"refused": status(403, "no"), "not there": status(404, "no"), "its store is away": status(500, "<html>"), "none": status(200, `[]`),
		"not JSON": status(200, "lab"), "another kind": status(200, `{"lab":1}`), "cut short": cutShort, "its own, of several": status(200, `["other","cl"]`),
		"it hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		b := answering(t, map[string]http.HandlerFunc{"/admin/v2/clusters": answer}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if who, err := b.identify(ctx); err != nil || who.Name == "" {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
	}
}

func TestWhoIsNotRegisteredIsWaitedFor(t *testing.T) {
	b := answering(t, map[string]http.HandlerFunc{"owned": status(404, `{"reason":"Broker id '127.0.0.9:18080' not found in available brokers."}`)}, nil)
	_, err := b.identify(t.Context())
	if err == nil || errors.Is(err, brokerapi.ErrIdentity) || !strings.Contains(err.Error(), "no broker is registered as") || !strings.Contains(err.Error(), "--pulsar-advertised") {
		t.Errorf("got %v", err)
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
		if err := b.Withdraw(t.Context(), bundle); (err == nil) != c.unload {
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
		if err := b.SetMode(t.Context(), brokerapi.Drained, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err == nil || asked {
			t.Error("the status file is there while the broker is drained")
		}
	}
	for range 2 {
		if err := b.SetMode(t.Context(), brokerapi.Active, ""); err != nil {
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
		"address":        {Config{AdminURL: "h:8080", Cluster: "c"}, "--broker-admin"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %s", name, err, c.want)
		}
	}
}
