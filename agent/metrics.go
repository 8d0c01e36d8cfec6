package agent

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

// metrics are the agent's own; the other parts register theirs.
type metrics struct {
	detachments, losses, boots *prometheus.CounterVec
	adoptions, suspensions     prometheus.Counter
	childChanges               *prometheus.CounterVec
	fenceDuration              *prometheus.HistogramVec
	fenceFailures              *prometheus.CounterVec
	present                    atomic.Bool
}

var (
	lossCauses  = []string{"lease_expired", "key_deleted", "broker_down"}
	bootReasons = []recovery.Reason{
		recovery.ReasonBoot, recovery.ReasonJoin, recovery.ReasonFastRestart, recovery.ReasonStaleRestart,
		recovery.ReasonFullClusterRestart, recovery.ReasonRestoredBackup, recovery.ReasonCorruptState,
		recovery.ReasonUnreadableMode,
	}
	// keptReason stands for every mode that was kept, whoever's words its reason is.
	keptReason = "kept"
)

// childChanges are the transitions that process.Change has.
var childChanges = []string{"started", "adopted", "ended", "start_failed", "held"}

func newMetrics(reg prometheus.Registerer, a *agent) *metrics {
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		detachments: counters("detachments_total", "Detachments by reason. Each one kept clients away; 'holdfast explain' says why.", "reason"),
		losses:      counters("registration_lost_total", "Registrations lost, by cause. After lease_expired the broker may have been declared dead.", "cause"),
		boots: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_broker_boots_total",
			Help: "Starts of the broker process by kind and by the reason of the mode that followed. stale_restart waits for a person."}, []string{"kind", "reason"}),
		adoptions: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_registration_adoptions_total",
			Help: "Registrations that were found under another lease and bound to ours. Growing: the broker writes its registration again and again."}),
		suspensions: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_agent_suspensions_total",
			Help: "Suspensions of the host that were noticed. Deadlines ran on meanwhile: one longer than the lease lets it end."}),
		childChanges: counters("broker_process_changes_total", "Transitions of the broker that 'run -- CMD' started. Many ended and started: read the broker's log.", "to"),
		fenceDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_fence_duration_seconds",
			Help:    "Duration of each step of the fence ladder. It must stay below the margin.",
			Buckets: []float64{.005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"step"}),
		fenceFailures: counters("fence_failures_total", "Failed steps of the fence ladder. Growing: 'holdfast events' says whether a later step succeeded; if none did, stop the broker by hand.", "step"),
	}
	for _, r := range recovery.DetachReasons {
		m.detachments.WithLabelValues(string(r))
	}
	for _, c := range lossCauses {
		m.losses.WithLabelValues(c)
	}
	for _, to := range childChanges {
		m.childChanges.WithLabelValues(to)
	}
	for _, kind := range []recovery.BootKind{recovery.FirstBoot, recovery.Restart} {
		for _, r := range bootReasons {
			m.boots.WithLabelValues(string(kind), string(r))
		}
		m.boots.WithLabelValues(string(kind), keptReason)
	}
	m.fenceDuration.WithLabelValues(guardStep)
	for _, s := range recovery.FenceSteps {
		m.fenceDuration.WithLabelValues(string(s))
		m.fenceFailures.WithLabelValues(string(s))
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_build_info",
		Help: "Always 1; the labels say what runs here."}, []string{"version", "goversion", "driver"})
	build.WithLabelValues(a.version, runtime.Version(), a.cfg.Driver).Set(1)
	reg.MustRegister(m.detachments, m.losses, m.boots, m.adoptions, m.suspensions, m.childChanges, m.fenceDuration, m.fenceFailures, build, stateGauges{a}, guardMetrics{a})
	if a.wouldHave == nil {
		a.wouldHave = newWouldHave()
	}
	reg.MustRegister(a.wouldHave)
	return m
}

func (m *metrics) lost(cause string) {
	if !slices.Contains(lossCauses, cause) {
		cause = lossCauses[0]
	}
	m.losses.WithLabelValues(cause).Inc()
}

func (m *metrics) child(to string) { m.childChanges.WithLabelValues(to).Inc() }

// bootReason bounds the label: an operator's own words are not one.
func (m *metrics) bootReason(r recovery.Reason) string {
	if slices.Contains(bootReasons, r) {
		return string(r)
	}
	return keptReason
}

// stateGauges show the state at the moment of the scrape.
type stateGauges struct{ a *agent }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("holdfast_"+name, help, labels, nil)
}

var (
	descReady      = desc("ready", "1 when clients may be sent here. 0: 'holdfast status' lists the causes.")
	descMode       = desc("broker_mode", "1 for the broker's mode, 0 for the others. drained waits for a person.", "mode")
	descAttachment = desc("attachment", "1 for the present attachment, 0 for the others.", "state")
	descDetached   = desc("detached", "1 while the broker is detached: not ready, and fenced or being fenced.")
	descPresent    = desc("registration_present", "1 while etcd has a registration of this broker id, as the watch last saw it. With --registration none: 1 unless the broker was away for longer than the TTL.")
	descEpoch      = desc("registration_epoch", "Create revision of the registration; it grows with each one. 0: none is held. With --registration none: grows when a broker comes back after the TTL.")
	descZombie     = desc("broker_zombie", "1 while the broker shows this sign of a zombie: it runs unregistered, or serves topics that are not assigned to it or that another broker owns, or does not see what is assigned to it (stale_view: restart it).", "kind")
	descPaused     = desc("paused", "1 while a person has paused recovery. The lease and the fencing go on; 'holdfast status' says who and until when.")
	descLoop       = desc("agent_loop_last_run_timestamp_seconds", "When the agent's loop last ran. More than 10 s ago: the sidecar hangs, restart it.")
)

// Describe implements prometheus.Collector.
func (g stateGauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descMode, descAttachment, descDetached, descPresent, descEpoch, descZombie, descPaused, descLoop} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (g stateGauges) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, on bool, labels ...string) {
		v := 0.0
		if on {
			v = 1
		}
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	a := g.a
	s := a.view.Load()
	gauge(descReady, len(a.notReady()) == 0)
	for _, m := range []recovery.Mode{recovery.Active, recovery.Draining, recovery.Drained} {
		gauge(descMode, s.mode.Mode == m, string(m))
	}
	for _, at := range recovery.Attachments {
		gauge(descAttachment, s.attachment == at, at.String())
	}
	gauge(descDetached, s.attachment == recovery.Detached)
	gauge(descPresent, a.metrics.present.Load())
	v, p := a.keeper.View(), a.reconciler.Snapshot()
	up := a.health.Snapshot().At(time.Now()).String() == "up"
	gauge(descZombie, up && v.Validity.ExpiredAt(a.clock()) && p.Served+p.Orphan > 0, "unregistered")
	gauge(descZombie, p.Orphan > 0, "orphan_topics")
	gauge(descZombie, p.Foreign > 0, "foreign_owner")
	gauge(descZombie, a.staleView().Stale, "stale_view")
	gauge(descPaused, a.pauseLeft() > 0)
	c <- prometheus.MustNewConstMetric(descEpoch, prometheus.GaugeValue, float64(v.Grant.Epoch))
	c <- prometheus.MustNewConstMetric(descLoop, prometheus.GaugeValue, float64(a.freshness.Last().UnixMilli())/1000)
}
