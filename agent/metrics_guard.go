package agent

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/guard"
)

var (
	descGuardUp     = desc("guard_up", "1 while the dead-man guard stands by. 0 with a broker that runs: nothing stops it if the sidecar dies or hangs.")
	descGuardStarts = desc("guard_starts_total", "Guards that were started; one outlives the processes of the broker. Growing: something kills the guard.")
	descGuardFired  = desc("guard_last_fired_timestamp_seconds", "When the guard last stopped the broker because the sidecar was not heard of, as far as the journal goes back; 0: never. Find out what froze or killed the sidecar.")
)

// guardMetrics show the guard at the moment of the scrape. What it did is known only when
// the sidecar runs again, as another process perhaps, so the journal is asked as well: a
// counter alone would begin anew at the number that it had before.
type guardMetrics struct {
	a         *agent
	firings   prometheus.Counter
	lastFired atomic.Int64 // Unix time in ms; 0: never
}

func newGuardMetrics(reg prometheus.Registerer, a *agent) *guardMetrics {
	m := &guardMetrics{a: a, firings: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_guard_fired_total",
		Help: "Times this sidecar learned that its guard had stopped the broker. 'holdfast events' says when; find out what froze or killed the sidecar."})}
	if a.journal != nil {
		events, _ := a.journal.since(0)
		for _, e := range events {
			if e.Kind == "fence" && e.To == string(guard.Fired) && !e.Shadow {
				m.note(e.when())
			}
		}
	}
	reg.MustRegister(m, m.firings)
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

// Describe implements prometheus.Collector.
func (m *guardMetrics) Describe(c chan<- *prometheus.Desc) {
	c <- descGuardUp
	c <- descGuardStarts
	c <- descGuardFired
}

// Collect implements prometheus.Collector.
func (m *guardMetrics) Collect(c chan<- prometheus.Metric) {
	up, starts := 0.0, 0.0
	if p, ok := m.a.guard.(guardProcess); ok {
		if p.Alive() {
			up = 1
		}
		starts = float64(p.Starts())
	}
	c <- prometheus.MustNewConstMetric(descGuardUp, prometheus.GaugeValue, up)
	c <- prometheus.MustNewConstMetric(descGuardStarts, prometheus.CounterValue, starts)
	c <- prometheus.MustNewConstMetric(descGuardFired, prometheus.GaugeValue, float64(m.lastFired.Load())/1000)
}
