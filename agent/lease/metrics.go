package lease

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	renewals         *prometheus.CounterVec
	failures         *prometheus.CounterVec
	hedges           *prometheus.CounterVec
	duration, margin prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, k *Keeper) *metrics {
	m := &metrics{
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lease_renewals_total",
			Help: "Renewals by result: confirmed, failed (no answer), unproven (etcd renewed, and no read showed under the same leader that the registration is ours: one or two at a change of leader are ordinary, more are not), lost (the answer was that the lease is gone), established (new or taken up again). Many failed beside few confirmed: look at etcd and the way to it.",
		}, []string{"result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lease_keepalive_failures_total",
			Help: "Failed renewals by class of failure. The class says whom to call: network, etcd, or who rotates its passwords.",
		}, []string{"class"}),
		hedges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lease_hedges_total",
			Help: "Renewals that were unanswered for up to 0.75 s and were sent again on another connection, to another endpoint if there are several, by whether the second was confirmed first. Growing won=\"true\": an etcd member is slow or silent, see etcd_endpoint_up.",
		}, []string{"won"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                            "holdfast_lease_renewal_duration_seconds",
			Help:                            "Time from the send of a renewal to its confirmation. Near the attempt timeout: etcd's disk or the network is too slow.",
			Buckets:                         []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  40,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		margin: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                            "holdfast_lease_margin_seconds",
			Help:                            "What was left to the deadline when a renewal was confirmed. Low values are near misses: raise the TTL or find what delays renewals.",
			Buckets:                         []float64{0, .5, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 60},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  40,
			NativeHistogramMinResetDuration: time.Hour,
		}),
	}
	for _, r := range []string{"confirmed", "failed", "unproven", "lost", "established"} {
		m.renewals.WithLabelValues(r)
	}
	for _, c := range k.set.Classes {
		m.failures.WithLabelValues(c)
	}
	for _, won := range []string{"true", "false"} {
		m.hedges.WithLabelValues(won)
	}
	gauge := func(name, help string, read func(View, Instant) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "holdfast_" + name, Help: help},
			func() float64 { return read(k.View(), k.set.Clock()) })
	}
	reg.MustRegister(m.renewals, m.failures, m.hedges, m.duration, m.margin,
		gauge("lease_ttl_seconds", "TTL that etcd granted; 0 when no lease is held, as ever with --registration none.",
			func(v View, _ Instant) float64 { return v.Validity.TTL.Seconds() }),
		gauge("lease_detach_margin_seconds", "How long before the deadline the broker is fenced, as --lease-detach-margin says; lease_remaining_seconds near it means that this is about to happen.",
			func(View, Instant) float64 { return k.set.Timing.Margin.Seconds() }),
		gauge("lease_remaining_seconds", "Time to the deadline, negative once it has passed; 0 when no lease is held. Below the margin the broker is fenced.",
			func(v View, now Instant) float64 {
				if !v.Validity.Known() {
					return 0
				}
				return v.Validity.Deadline().Sub(now).Seconds()
			}),
		gauge("lease_deadline_timestamp_seconds", "Wall-clock time of the deadline, after which the registration may be gone; 0 when no lease is held. It should move on with every renewal.",
			func(v View, now Instant) float64 {
				if !v.Validity.Known() {
					return 0
				}
				return float64(time.Now().Add(v.Validity.Deadline().Sub(now)).UnixMilli()) / 1000
			}),
		gauge("lease_keepalive_failure_streak", "Renewals that failed since the last confirmed one. Above 0 for more than a few seconds: see lease_keepalive_failures_total for the class.",
			func(v View, _ Instant) float64 { return float64(v.FailureStreak) }),
		gauge("lease_failing_seconds", "Time since the send of the last confirmed renewal while renewals fail, else 0. At TTL minus margin the broker is fenced.",
			func(v View, now Instant) float64 { return v.FailingFor(now).Seconds() }),
	)
	return m
}
