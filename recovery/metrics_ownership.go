package recovery

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type ownershipMetrics struct {
	attempts, exhausted, conflicts prometheus.Counter
}

// newOwnershipMetrics registers the metrics; reg may be nil.
func newOwnershipMetrics(reg prometheus.Registerer) *ownershipMetrics {
	f := promauto.With(reg)
	return &ownershipMetrics{
		attempts: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_acquire_retry_attempts_total",
			Help: "Attempts at ownership locks after the first was refused because another broker held the lock. A burst at a failover is normal.",
		}),
		exhausted: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_acquire_retry_window_exhausted_total",
			Help: "Topics whose ownership lock another broker held for longer than --acquire-retry-window. Growing: two brokers are assigned the same topics; see `holdfast topics`.",
		}),
		conflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_ownership_conflicts_total",
			Help: "Topics held or served here whose ownership lock turned out to be another broker's; they are unloaded here at once. After an outage others may have taken over; otherwise find out who deletes locks.",
		}),
	}
}
