package agent

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/guard"
)

// guardMetrics show the guard at the moment of the scrape. What it did is known only when
// the sidecar runs again, as another process perhaps, so the journal is asked as well: a
// counter alone would begin anew at the number that it had before.
type guardMetrics struct {
	firings   prometheus.Counter
	lastFired atomic.Int64 // Unix time in ms; 0: never
}

func newGuardMetrics(reg prometheus.Registerer, a *agent) *guardMetrics {
	m := &guardMetrics{firings: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_guard_fired_total",
		Help: "Times this sidecar learned that its guard had stopped the broker. 'holdfast events' says when; find out what froze or killed the sidecar."})}
	if a.journal != nil {
		events, _ := a.journal.since(0)
		for _, e := range events {
			if e.Kind == "fence" && e.To == guard.Fired && !e.Shadow {
				m.note(e.when())
			}
		}
	}
	up := func() float64 {
		if p, ok := a.guard.(guardProcess); ok && p.Alive() {
			return 1
		}
		return 0
	}
	starts := func() float64 {
		if p, ok := a.guard.(guardProcess); ok {
			return float64(p.Starts())
		}
		return 0
	}
	reg.MustRegister(m.firings,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "holdfast_guard_up",
			Help: "1 while the dead-man guard stands by. 0 with a broker that runs: nothing stops it if the sidecar dies or hangs."}, up),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "holdfast_guard_starts_total",
			Help: "Guards that were started; one outlives the processes of the broker. Growing: something kills the guard."}, starts),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "holdfast_guard_last_fired_timestamp_seconds",
			Help: "When the guard last stopped the broker because the sidecar was not heard of, as far as the journal goes back; 0: never. Find out what froze or killed the sidecar."},
			func() float64 { return float64(m.lastFired.Load()) / 1000 }))
	return m
}

// fired takes up that the guard stopped the broker at that time.
func (m *guardMetrics) fired(at time.Time) {
	m.firings.Inc()
	m.note(at)
}

func (m *guardMetrics) note(at time.Time) {
	m.lastFired.Store(max(m.lastFired.Load(), at.UnixMilli()))
}
