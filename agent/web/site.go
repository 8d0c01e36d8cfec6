package web

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/web/page"
	"holdfast/probes"
)

// maxAnswers is how many are made or wait for a slow reader at a time, streams aside: one
// of /metrics holds some 100 kB.
const maxAnswers = 32

// ReloadPath is the one thing on the web listener that is no read.
const ReloadPath = "/-/reload"

// Site is what the web listener shows of a sidecar.
type Site struct {
	Metrics     *prometheus.Registry
	Status      func() control.Status
	Live, Ready func() []probes.Check
	Feed        *page.Feed       // who watches the status page
	Reload      http.HandlerFunc // at ReloadPath; it judges who asks, but for pages of other sites
	Log         *slog.Logger
}

// Handler serves metrics and the status. It changes nothing: whatever is registered
// here, only GET and HEAD get through to it, and a reload.
func (s Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: s.Metrics}))
	mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, r *http.Request) { control.Reply(w, s.Status()) })
	mux.Handle("GET /{$}", page.Handler())
	mux.HandleFunc("GET /-/healthy", s.answer(s.Live))
	mux.HandleFunc("GET /-/ready", s.answer(s.Ready))
	mux.Handle("POST "+ReloadPath, http.NewCrossOriginProtection().Handler(s.Reload))
	all := http.NewServeMux()
	all.Handle("/", few(maxAnswers, mux))
	all.HandleFunc("GET /api/events", unbounded(s.Feed.ServeHTTP)) // has a bound of its own
	return guarded(all)
}

// few turns away whoever comes while n are answered: each that waited would hold memory,
// and a sidecar without memory ends with its broker.
func few(n int, h http.Handler) http.Handler {
	places := make(chan struct{}, n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			h.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "5")
			http.Error(w, fmt.Sprintf("%d are being answered: try again later", n), http.StatusServiceUnavailable)
		}
	})
}

// guarded keeps everything but reads away from h, bounds each request, and tells browsers
// to trust an answer with nothing. A page that needs more sets its own
// Content-Security-Policy; an answer that streams clears the bounds by unbounded.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadlines := http.NewResponseController(w)
		now := time.Now()
		_ = deadlines.SetReadDeadline(now.Add(readTimeout)) // a test's recorder has none
		_ = deadlines.SetWriteDeadline(now.Add(writeTimeout))
		head := w.Header()
		for name, value := range map[string]string{
			"Cache-Control":           "no-store",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
			"Referrer-Policy":         "no-referrer",
			"X-Content-Type-Options":  "nosniff",
			"X-Frame-Options":         "deny",
		} {
			if head.Get(name) == "" { // the web config file may set some
				head.Set(name, value)
			}
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !(r.Method == http.MethodPost && r.URL.Path == ReloadPath) {
			head.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD: this listener changes nothing", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// unbounded lets h answer for as long as the client listens.
func unbounded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		deadlines := http.NewResponseController(w)
		_ = deadlines.SetReadDeadline(time.Time{})
		_ = deadlines.SetWriteDeadline(time.Time{})
		h(w, r)
	}
}

func (s Site) answer(checks func() []probes.Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		causes := probes.Causes(checks(), s.Log)
		if len(causes) == 0 {
			_, _ = io.WriteString(w, "ok\n")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, c := range causes {
			_, _ = io.WriteString(w, c.Name+": "+c.Message+"\n")
		}
	}
}

// NewFeed is for the status page of a sidecar. It tells nothing that /api/status and the log do not.
func NewFeed(status func() control.Status, journal *control.Journal, settings func() *config.Config) *page.Feed {
	return page.NewFeed(watched{status, journal, settings})
}

// watched is what the status page shows of a sidecar.
type watched struct {
	status   func() control.Status
	journal  *control.Journal
	settings func() *config.Config
}

// told is a journal entry with what `holdfast explain` says of it: whoever looks at a
// page that has lost its sidecar cannot ask any more.
type told struct {
	control.Event
	Why   string `json:"why"`
	Avoid string `json:"avoid"`
	Next  string `json:"next,omitempty"`
}

// Status implements page.Source.
func (w watched) Status() (data []byte, same string) {
	s := w.status()
	data, _ = json.Marshal(s) // strings and numbers: it cannot fail
	s.At = s.Since
	s.Lease.RemainingSeconds, s.Lease.FenceInSeconds, s.Lease.FailingSeconds = 0, 0, 0
	if s.Pause != nil {
		pause := *s.Pause
		pause.RemainingSeconds = 0
		s.Pause = &pause
	}
	lasting, _ := json.Marshal(s)
	return data, string(lasting)
}

// Journal implements page.Source.
func (w watched) Journal(after int64, most int) ([]page.Entry, <-chan struct{}) {
	events, more := w.journal.Since(after)
	events = events[:min(most, len(events))]
	list := make([]page.Entry, 0, len(events))
	for _, e := range events {
		x := control.Explain(e, *w.settings())
		data, _ := json.Marshal(told{e, x.Why, x.Avoid, x.Next})
		list = append(list, page.Entry{ID: e.ID, Data: data})
	}
	return list, more
}

// Newest implements page.Source.
func (w watched) Newest() int64 { return w.journal.Newest() }
