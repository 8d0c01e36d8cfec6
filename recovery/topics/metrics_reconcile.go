package topics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The results of a call to the broker, as metric labels.
const (
	resultOK      = "ok"
	resultError   = "error"
	resultTimeout = "timeout"
	resultDropped = "dropped" // its orders did not stand any more when it ended
)

type reconcileMetrics struct {
	loads, unloads, listings map[string]prometheus.Counter // by result
	anew                     prometheus.Counter
	duration                 prometheus.Histogram
}

func (m *reconcileMetrics) count(a act, result string) {
	if a == actLoad {
		m.loads[result].Inc()
	} else {
		m.unloads[result].Inc()
	}
}

// newReconcileMetrics registers the metrics; reg may be nil. Gauges are read from
// the snapshot when they are scraped.
func newReconcileMetrics(reg prometheus.Registerer, every func() time.Duration, snapshot func() Progress) *reconcileMetrics {
	f := promauto.With(reg)
	for state, of := range map[string]func(Progress) int{
		"assigned":       func(p Progress) int { return p.Assigned },
		"served":         func(p Progress) int { return p.Served },
		"missing":        func(p Progress) int { return p.Missing },
		"orphan":         func(p Progress) int { return p.Orphan },
		"quarantined":    func(p Progress) int { return p.Quarantined },
		"held_elsewhere": func(p Progress) int { return p.Elsewhere },
		"loading":        func(p Progress) int { return p.Loading },
		"failed":         func(p Progress) int { return p.Failed },
		"unreadable":     func(p Progress) int { return p.Unreadable },
	} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "holdfast_topics",
			ConstLabels: prometheus.Labels{"state": state},
			Help: "Topics by state; assigned = served + missing, and held_elsewhere is a part of missing. If missing stays above 0 see `holdfast topics` for the errors; " +
				"orphan above 0 for minutes means a tripped mass-change guard or a broker that refuses to quiesce; " +
				"unreadable counts what the broker lists and no topic here is called: it is left alone.",
		}, func() float64 { return float64(of(snapshot())) })
	}
	m := &reconcileMetrics{}
	m.loads = byResult(f.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_topic_loads_total",
		Help: "Topic loads by result. A growing error or timeout share: see `holdfast topics` and the broker's own log; " +
			"dropped: the sidecar was detached or got new orders meanwhile.",
	}, []string{"result"}))
	m.unloads = byResult(f.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_topic_unloads_total",
		Help: "Topics quiesced or unloaded by result. Growth without a drain or a fence means orphans: find out who else changes assignments or loads topics.",
	}, []string{"result"}))
	listings := f.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_topic_listings_total",
		Help: "Times that the broker was asked for its topics, by result. Growing errors: its admin API refuses or is overloaded, and what it serves is not known; see the log of holdfast.",
	}, []string{"result"})
	m.listings = map[string]prometheus.Counter{resultOK: listings.WithLabelValues(resultOK), resultError: listings.WithLabelValues(resultError)}
	m.anew = f.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_topics_made_anew_total",
		Help: "Topics that were served here before, on this data, were not there any more, and were made anew: empty and without consumers. 'holdfast events' names them; look for their data.",
	})
	m.duration = f.NewHistogram(prometheus.HistogramOpts{
		Name:                        "holdfast_reconcile_duration_seconds",
		Help:                        "From the listing or change that began a reconciliation until the broker was as etcd asks. If it grows, raise --load-concurrency or look at the broker.",
		Buckets:                     []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		NativeHistogramBucketFactor: 1.1,
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_reconcile_interval_seconds",
		Help: "Time between two looks at the broker's topics while nothing changes, as --audit-interval says; reconcile_last_success_timestamp_seconds should not be older than a few of them.",
	}, func() float64 { return every().Seconds() })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_mass_change_held",
		Help: "1 while a sudden change of many assignments is held back until an operator confirms it. Meant: `holdfast confirm`; else restore the assignments.",
	}, func() float64 {
		if snapshot().GuardTripped {
			return 1
		}
		return 0
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_reconcile_last_success_timestamp_seconds",
		Help: "Unix time at which the broker last was as etcd asks; 0: never. If it is older than some audit intervals while attached, see `holdfast topics` and `holdfast status`.",
	}, func() float64 {
		if at := snapshot().LastSuccess; !at.IsZero() {
			return float64(at.UnixNano()) / 1e9
		}
		return 0
	})
	return m
}

func byResult(v *prometheus.CounterVec) map[string]prometheus.Counter {
	m := map[string]prometheus.Counter{}
	for _, result := range []string{resultOK, resultError, resultTimeout, resultDropped} {
		m[result] = v.WithLabelValues(result)
	}
	return m
}
