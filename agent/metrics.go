package agent

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/guard"
	"holdfast/recovery"
)

// metrics are the agent's own; the other parts register theirs.
type metrics struct {
	detachments, losses, boots *prometheus.CounterVec
	adoptions, suspensions     prometheus.Counter
	childChanges               *prometheus.CounterVec
	fenceDuration              *prometheus.HistogramVec
	fenceFailures              *prometheus.CounterVec
	readiness                  *prometheus.CounterVec
	guard                      *guardMetrics
	present                    atomic.Bool
}

var (
	lossCauses  = []string{"lease_expired", "key_deleted", "broker_down"}
	bootReasons = []recovery.Reason{
		recovery.ReasonBoot, recovery.ReasonJoin, recovery.ReasonFastRestart, recovery.ReasonFirstRegistration, recovery.ReasonUnknownData, recovery.ReasonDataMissing, recovery.ReasonPlannedRestart, recovery.ReasonStaleRestart,
		recovery.ReasonFullClusterRestart, recovery.ReasonFleetExpired, recovery.ReasonRestoredBackup, recovery.ReasonCorruptState,
		recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord,
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
			Help: "Starts of the broker process by kind and by the reason of the mode that followed. stale_restart waits for an operator, except of a Pulsar broker under the policy reconnect, which is active."}, []string{"kind", "reason"}),
		adoptions: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_registration_adoptions_total",
			Help: "Registrations that were found under another lease and bound to ours. Growing: the broker writes its registration again and again."}),
		suspensions: prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_agent_suspensions_total",
			Help: "Suspensions of the host that were noticed. Deadlines ran on meanwhile: one longer than the lease lets it end."}),
		childChanges: counters("broker_process_changes_total", "Transitions of the broker that 'run -- CMD' started. Many ended and started: read the broker's log.", "to"),
		fenceDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_fence_duration_seconds",
			Help:    "Duration of each step of the fence ladder. It must stay below the margin, lease_detach_margin_seconds: raise that, or find out what holds the step up.",
			Buckets: []float64{.005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"step"}),
		fenceFailures: counters("fence_failures_total", "Failed steps of the fence ladder. Growing: 'holdfast events' says whether a later step succeeded; if none did, stop the broker by hand.", "step"),
		readiness:     counters("ready_transitions_total", "Changes of readiness, by what it became. Growing: clients come and go; 'holdfast events' names the cause of each.", "to"),
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
	for _, to := range []string{"ready", "not_ready"} {
		m.readiness.WithLabelValues(to)
	}
	m.fenceDuration.WithLabelValues(guardStep)
	for _, s := range recovery.FenceSteps {
		m.fenceDuration.WithLabelValues(string(s))
		m.fenceFailures.WithLabelValues(string(s))
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_build_info",
		Help: "Always 1; the labels say what runs here. Several versions in one cluster for long: finish the upgrade."}, []string{"version", "goversion", "driver"})
	build.WithLabelValues(a.version, runtime.Version(), a.cfg.Driver).Set(1)
	reg.MustRegister(m.detachments, m.losses, m.boots, m.adoptions, m.suspensions, m.childChanges, m.fenceDuration, m.fenceFailures, m.readiness, build, stateGauges{a})
	m.guard = newGuardMetrics(reg, a)
	registerSettings(reg, a.cfg)
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

// registerSettings shows the settings that rules and dashboards judge the rest by.
func registerSettings(reg prometheus.Registerer, c Config) {
	shadow := prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_shadow",
		Help: "1 with --shadow: everything is decided and counted, and nothing is done. What else is shown is only supposed; expect no recovery."})
	if c.Shadow {
		shadow.Set(1)
	}
	policy := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_policy_info",
		Help: "Always 1; the labels are the settings that decide what becomes of a broker. They should be the same in a whole cluster."},
		[]string{"registration", "assignment", "failover", "session_expired_policy", "detach", "fence", "guard"})
	policy.WithLabelValues(c.Registration, c.Assignment, c.Failover, c.SessionExpiredPolicy,
		strconv.FormatBool(c.Detach), strings.Join(c.Fence, ","), c.Guard).Set(1)
	reg.MustRegister(shadow, policy)
}

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
