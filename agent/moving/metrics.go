package moving

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery/moves"
)

type metrics struct {
	phases   *prometheus.HistogramVec
	ends     *prometheus.CounterVec
	underway *prometheus.GaugeVec
	bytes    prometheus.Counter
	drain    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_move_phase_duration_seconds",
			Help:    "How long a phase of a topic's move took whose end this sidecar wrote. Long in sealed: much data, or a slow way; in any other: look at 'holdfast moves'.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}}, []string{"phase"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_moves_total",
			Help: "Moves of topics whose end this sidecar wrote. Failed: 'holdfast moves' says why, and where the topic is served."}, []string{"result"}),
		underway: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_moves_in_progress",
			Help: "Moves that this broker has a part in, by phase. One that stays: 'holdfast moves' names what it waits for."}, []string{"phase"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_move_bytes_total",
			Help: "Bytes of topics that this sidecar has copied and compared. Standing still while moves are in progress: they are stalled."}),
		drain: prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_drain_progress_ratio",
			Help: "Share of the topics that this broker's drain with --move has moved, parts of moves included; 1: none is under way, or it waits for its turn. Standing still below 1: 'holdfast status' names what is in the way."}),
	}
	m.drain.Set(1)
	for _, p := range moves.Phases {
		if p.Over() {
			m.ends.WithLabelValues(string(p))
			continue
		}
		m.phases.WithLabelValues(string(p))
		m.underway.WithLabelValues(string(p))
	}
	reg.MustRegister(m.phases, m.ends, m.underway, m.bytes, m.drain)
	return m
}

// step counts a phase that has ended.
func (m *metrics) step(was, now moves.Move) {
	if was.Phase == now.Phase || was.Phase == "" {
		return
	}
	if d := now.Since[now.Phase].Sub(was.Since[was.Phase]); d >= 0 {
		m.phases.WithLabelValues(string(was.Phase)).Observe(d.Seconds())
	}
	if now.Phase.Over() {
		m.ends.WithLabelValues(string(now.Phase)).Inc()
	}
}

func (m *metrics) progress(own map[string]*under) {
	count := map[moves.Phase]float64{}
	for _, u := range own {
		count[u.Phase]++
	}
	for _, p := range moves.Phases {
		if !p.Over() {
			m.underway.WithLabelValues(string(p)).Set(count[p])
		}
	}
}
