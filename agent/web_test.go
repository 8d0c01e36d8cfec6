package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/web"
)

// snapshotOfState is all that a request could change in a sidecar that does not run.
func snapshotOfState(a *agent) string {
	events, _ := a.journal.Since(0)
	return fmt.Sprint(a.status().Mode, a.status().Reason, a.pausing.Load(), len(events), len(a.inbox))
}

func TestTheWebListenerChangesNothingWhateverIsAsked(t *testing.T) {
	a := built(t)
	a.feed = web.NewFeed(a.status, a.journal, a.settings)
	h := a.webHandler(prometheus.NewRegistry())
	before := snapshotOfState(a)
	paths := []string{"/", "/metrics", "/api/status", "/api/events", "/api/page", "/-/healthy", "/-/ready", "/-/quit", "/-/reload/", "/nothing",
		"/v1/status", "/v1/drain", "/v1/activate", "/v1/confirm", "/v1/pause", "/v1/resume", "/v1/reload", "/v1/events", "/debug/pprof/", "/debug/requests", "/debug/vars"}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "reload"} {
		for _, path := range paths {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // an answer that streams ends
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(`{"reason":"mine","for_seconds":60,"owner":"x"}`)).WithContext(ctx))
			reads := method == "GET" || method == "HEAD"
			if !reads && (w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD") {
				t.Errorf("%s %s: %d, Allow %q", method, path, w.Code, w.Header().Get("Allow"))
			}
			if reads && strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/debug/") && w.Code < 400 {
				if w.Code != http.StatusNotFound {
					t.Errorf("%s %s: %d", method, path, w.Code)
				}
			}
			for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy"} {
				if w.Header().Get(name) == "" {
					t.Errorf("%s %s: no %s", method, path, name)
				}
			}
		}
	}
	if after := snapshotOfState(a); after != before {
		t.Errorf("before %s, after %s", before, after)
	}
}

// patience bounds the wait for an answer on a machine that is busy; it is no claim.
const patience = 60 * time.Second

const cheapHash = "$2a$04$QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq.KeKLctwB5G8iyjfKMC"

// webConfigFile writes a web config file into dir.
func webConfigFile(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
