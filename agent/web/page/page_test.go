package page

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

func served(t *testing.T, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	Handler().ServeHTTP(w, r)
	return w
}

func TestTheDocumentMayRunNothingButItsOwnScript(t *testing.T) {
	w := served(t)
	text, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, tag := range []string{"script", "style"} {
		parts := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(text, -1)
		if len(parts) != 1 || len(parts[0][1]) < 1000 {
			t.Fatalf("%d elements %s", len(parts), tag)
		}
		sum := sha256.Sum256([]byte(parts[0][1]))
		if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("policy %s lacks %s", policy, want)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %s lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %s", policy)
	}
}

func TestTheDocumentIsSmallAndComplete(t *testing.T) {
	text := served(t).Body.String()
	if len(text) > 60_000 {
		t.Errorf("%d bytes", len(text))
	}
	for name, forbidden := range map[string]string{
		"markup made of text":   `innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser`,
		"a handler in markup":   `<[^>]+\son[a-z]+=`,
		"a style in markup":     `<[^>]+\sstyle=`,
		"something from abroad": `(src|href)="(https?:)?//|@import|url\(`,
		"a placeholder":         `/\*page\.`,
	} {
		if found := regexp.MustCompile(forbidden).FindString(text); found != "" {
			t.Errorf("%s: %q", name, found)
		}
	}
}

func TestTheDocumentIsSentOnce(t *testing.T) {
	tag := served(t).Header().Get("ETag")
	if w := served(t, "If-None-Match", tag); w.Code != http.StatusNotModified || w.Body.Len() != 0 || w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("%d with %d bytes", w.Code, w.Body.Len())
	}
}

// bound is for what takes no time but the machine's.
const bound = time.Minute

// A browser has six connections to a host for all its tabs: one that is hidden must hold none.
func TestAHiddenTabHoldsNoStream(t *testing.T) {
	for what, want := range map[string]string{
		"the stream ends when the tab is hidden, and another begins when it is shown": `addEventListener\('visibilitychange', \(\) => \{\s+if \(document\.hidden\) \{\s+if \(stop\) stop\.abort\(\);[^{}]+return;\s+\}[^{}]+\bwake\(\);\s+\}\);`,
		"a hidden tab begins none":              `for \(;;\) \{\s+while \(document\.hidden\) await new Promise\(go => \{ wake = go; \}\);\s+try \{\s+await listen\(\);`,
		"that it holds none is no lost sidecar": `if \(!polled && !document\.hidden\) failed = `,
	} {
		if !regexp.MustCompile(want).MatchString(scriptJS) {
			t.Errorf("not so: %s", what)
		}
	}
}
