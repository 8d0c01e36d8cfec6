package agent

import (
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/agent/page"
	"holdfast/probes"
)

// webHandler serves metrics and the status for machines. It changes nothing.
func (a *agent) webHandler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: reg}))
	mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, r *http.Request) { reply(w, a.status()) })
	mux.Handle("GET /{$}", page.Handler())
	mux.Handle("GET /api/events", a.feed)
	mux.HandleFunc("GET /-/healthy", answer(a.liveChecks))
	mux.HandleFunc("GET /-/ready", answer(a.readyChecks))
	return mux
}

func answer(checks func() []probes.Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		causes := probes.Causes(checks())
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
