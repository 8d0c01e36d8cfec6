package probes

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// switchboard is a set of checks that a test turns off and on, and that counts.
type switchboard struct {
	failing []string
	calls   map[string]int
}

func (s *switchboard) check(name string) Check {
	return Check{Name: name, Err: func() error {
		s.calls[name]++
		if slices.Contains(s.failing, name) {
			return errors.New("not now:\nlook at " + name)
		}
		return nil
	}}
}

func endpoints(failing ...string) (http.Handler, *switchboard) {
	s := &switchboard{failing: failing, calls: map[string]int{}}
	return NewEndpoints(EndpointChecks{
		Live:    []Check{s.check("loop")},
		Ready:   []Check{s.check("attachment"), s.check("mode")},
		Startup: []Check{s.check("started")},
	}, quiet()), s
}

// Every path, every method, every state.
func TestEndpointsAnswerByPathMethodAndState(t *testing.T) {
	states := map[string][]string{
		"all well":     nil,
		"loop stuck":   {"loop"},
		"not attached": {"attachment"},
		"not started":  {"started"},
		"all bad":      {"loop", "attachment", "mode", "started"},
	}
	paths := map[string]struct {
		checks []string
		text   bool
	}{
		"/live":    {[]string{"loop"}, false},
		"/ready":   {[]string{"loop", "attachment", "mode"}, false},
		"/startup": {[]string{"started"}, false},
		"/livez":   {[]string{"loop"}, true},
		"/readyz":  {[]string{"loop", "attachment", "mode"}, true},
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
	for state, failing := range states {
		for path, p := range paths {
			want := http.StatusOK
			for _, name := range p.checks {
				if slices.Contains(failing, name) {
					want = http.StatusServiceUnavailable
				}
			}
			for _, method := range methods {
				t.Run(state+" "+method+path, func(t *testing.T) {
					h, s := endpoints(failing...)
					server := httptest.NewServer(h) // which sends no body after HEAD
					defer server.Close()
					r, err := http.NewRequest(method, server.URL+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					answer, err := http.DefaultClient.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer answer.Body.Close()
					body, err := io.ReadAll(answer.Body)
					if err != nil {
						t.Fatal(err)
					}
					if got := answer.Header.Get("Cache-Control"); got != "no-store" {
						t.Errorf("Cache-Control %q", got)
					}
					if method != "GET" && method != "HEAD" {
						if answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" {
							t.Errorf("status %d, Allow %q", answer.StatusCode, answer.Header.Get("Allow"))
						}
						if len(s.calls) > 0 {
							t.Errorf("checks ran: %v", s.calls)
						}
						return
					}
					if answer.StatusCode != want {
						t.Errorf("status %d, want %d", answer.StatusCode, want)
					}
					if (method == "HEAD") != (len(body) == 0) {
						t.Errorf("body %q", body)
					}
					once := map[string]int{}
					for _, name := range p.checks {
						once[name] = 1
					}
					if !reflect.DeepEqual(s.calls, once) {
						t.Errorf("checks ran %v, want each once %v", s.calls, once)
					}
					isText := strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain")
					if isText != p.text {
						t.Errorf("Content-Type %q", answer.Header.Get("Content-Type"))
					}
				})
			}
		}
	}
}

func TestEndpointBodies(t *testing.T) {
	tests := []struct {
		name, target string
		failing      []string
		want         string
	}{
		{"ready, brief", "/ready", nil, "{}\n"},
		{"livez, brief", "/livez", nil, "ok\n"},
		{"readyz, verbose", "/readyz?verbose", nil, "[+]loop ok\n[+]attachment ok\n[+]mode ok\nreadyz: 0 of 3 checks failed\n"},
		{"readyz, failing, verbose", "/readyz?verbose=1", []string{"mode"},
			"[+]loop ok\n[+]attachment ok\n[-]mode failed: not now: look at mode\nreadyz: 1 of 3 checks failed\n"},
		{"readyz, failing, brief", "/readyz", []string{"mode", "loop"},
			"[-]loop failed: not now: look at loop\n[-]mode failed: not now: look at mode\nreadyz: 2 of 3 checks failed\n"},
		{"livez, failing", "/livez", []string{"loop"}, "[-]loop failed: not now: look at loop\nlivez: 1 of 1 checks failed\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := endpoints(tt.failing...)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", tt.target, nil))
			if w.Body.String() != tt.want {
				t.Errorf("got\n%swant\n%s", w.Body, tt.want)
			}
		})
	}
}

func TestFullAnswerNamesEveryCheck(t *testing.T) {
	tests := []struct {
		target string
		want   map[string]string
	}{
		{"/live?full=1", map[string]string{"loop": "OK"}},
		{"/ready?full=1", map[string]string{"loop": "OK", "attachment": "not now:\nlook at attachment", "mode": "OK"}},
		{"/startup?full=1", map[string]string{"started": "not now:\nlook at started"}},
	}
	for _, tt := range tests {
		t.Run(tt.target, func(t *testing.T) {
			h, _ := endpoints("attachment", "started")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", tt.target, nil))
			var got map[string]string
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestPanickingCheckIsA503AndInTheLogOnly(t *testing.T) {
	var log logText
	bad := Check{Name: "bad", Err: func() error { panic("secret detail") }}
	h := NewEndpoints(EndpointChecks{Ready: []Check{bad}, Startup: []Check{bad}}, slog.New(slog.NewTextHandler(&log, nil)))
	server := httptest.NewServer(h) // a real server: a panic would cut the connection
	defer server.Close()
	for _, path := range []string{"/ready", "/ready?full=1", "/readyz?verbose", "/startup"} {
		before := len(log.String())
		r, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusServiceUnavailable || strings.Contains(string(body), "secret") {
			t.Errorf("%s: %d %q %v", path, r.StatusCode, body, err)
		}
		if said := log.String()[before:]; !strings.Contains(said, "secret detail") || !strings.Contains(said, "check=bad") {
			t.Errorf("%s: log %q", path, said)
		}
	}
}

func TestUnknownPathIs404(t *testing.T) {
	h, _ := endpoints()
	for _, path := range []string{"/", "/live/x", "/metrics"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestCausesAreWhatFails(t *testing.T) {
	_, s := endpoints("mode")
	bad := Check{Name: "bad", Err: func() error { panic("x") }}
	got := Causes([]Check{s.check("loop"), s.check("mode"), bad}, quiet())
	want := []Cause{{"mode", "not now:\nlook at mode"}, {"bad", "the check itself failed: see the log of holdfast"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

func TestBrokerLiveSaysWhyInOneLine(t *testing.T) {
	var why error
	h := NewEndpoints(EndpointChecks{
		Live:   []Check{{Name: "agent", Err: func() error { return errors.New("the loop hangs") }}},
		Ready:  []Check{{Name: "lease", Err: func() error { return errors.New("no lease") }}},
		Broker: []Check{{Name: "fence", Err: func() error { return why }}},
	}, slog.New(slog.DiscardHandler))
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code, w.Body.String()
	}
	for _, row := range []struct {
		name, method, path string
		why                error
		code               int
		body               string
	}{
		{"nothing is wrong with the broker, whatever else is", "GET", "/broker/live", nil, 200, "ok\n"},
		{"it must be restarted", "GET", "/broker/live", errors.New("must be\nrestarted"), 503, "must be restarted\n"},
		{"as JSON", "GET", "/broker/live?full=1", errors.New("restart"), 503, "{\n    \"fence\": \"restart\"\n}\n"},
		{"as JSON, all well", "GET", "/broker/live?full=1", nil, 200, "{\n    \"fence\": \"OK\"\n}\n"},
		{"another method", "POST", "/broker/live", nil, 405, "Method Not Allowed\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			why = row.why
			if code, body := ask(row.method, row.path); code != row.code || body != row.body {
				t.Errorf("%d %q, want %d %q", code, body, row.code, row.body)
			}
		})
	}
}
