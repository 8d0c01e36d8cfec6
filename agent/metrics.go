package agent

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/config"
	"holdfast/agent/guard"
	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
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
			Help: "Starts of the broker process by kind and by the reason of the mode that followed. stale_restart is a drain that is lifted by itself if no other broker lived on, and else waits for an operator; of a Pulsar broker under the policy reconnect it is active."}, []string{"kind", "reason"}),
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
func registerSettings(reg prometheus.Registerer, c config.Config) {
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
		events, _ := a.journal.Since(0)
		for _, e := range events {
			if e.Kind == "fence" && e.To == guard.Fired && !e.Shadow {
				m.note(e.When())
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

// stateGauges show the state at the moment of the scrape.
type stateGauges struct{ a *agent }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("holdfast_"+name, help, labels, nil)
}

var (
	descReady      = desc("ready", "1 when clients may be sent here. 0: 'holdfast status' lists the causes.")
	descCause      = desc("ready_cause", "1 for each condition that keeps clients away, 0 for those that hold; ready is 1 when all are 0. 'holdfast status' has the words to each.", "cause")
	descMode       = desc("broker_mode", "1 for the broker's mode, 0 for the others. drained waits for an operator.", "mode")
	descAttachment = desc("attachment", "1 for the present attachment, 0 for the others. degraded: renewals fail, look at etcd now; detached: clients are kept away, 'holdfast explain' says why.", "state")
	descDetached   = desc("detached", "1 while the broker is detached: not ready, and fenced or being fenced. It comes back by itself when its registration is confirmed; 'holdfast status' says what is missing.")
	descPresent    = desc("registration_present", "1 while etcd has a registration of this broker id, as the watch last saw it. With --registration none: 1 unless the broker was away for longer than the TTL.")
	descEpoch      = desc("registration_epoch", "Create revision of the registration; it grows with each one. 0: none is held. With --registration none: grows when a broker comes back after the TTL.")
	descZombie     = desc("broker_zombie", "1 while the broker shows this sign of a zombie: it runs unregistered, or serves topics that are not assigned to it or that another broker owns, does not see what changes in etcd (stale_view: restart it), or lives and refuses us (unseen: a login, a limit).", "kind")
	descPaused     = desc("paused", "1 while an operator has paused recovery. The lease and the fencing go on; 'holdfast status' says who and until when.")
	descStartup    = desc("startup_done", "1 once startup has led somewhere: to a broker that was ready, or to a mode that an operator must change. 0 for minutes: 'holdfast status' says what it waits for.")
	descDrained    = desc("drained", "1 for the reason of the present drained, 0 for the others; all 0 while the broker is not drained. operator: an operator's or another program's word; pod_stop: that of the preStop of a pod which drains, as older manifests do. Any other waits for an operator: find the cause, then 'holdfast activate'.", "reason")
	descDraining   = desc("drain_pending", "1 while the broker is to be drained and still serves topics, or has not taken the mode. For minutes: 'holdfast topics' names what is left.")
	descMismatch   = desc("mode_mismatch", "1 while the mode in etcd, or the broker's own, is not the one that was decided here. For minutes: 'holdfast events' says who writes it, or why the broker does not take it.")
	descConflict   = desc("identity_conflict", "1 while another sidecar holds the registration of this broker id: clients are kept away here. Stop one of the two.")
	descTogether   = desc("ill_together", "1 while the broker is ill (its process lives, its calls fail) and keeps its registration, because no other broker is known to be well: nothing is stopped. Look at what the brokers depend on; 'holdfast explain' says how the others are.")
	descRestart    = desc("broker_restart_required", "1 while the broker may serve without its registration and nothing here could stop it; /broker/live fails. Restart it, or stop it by hand.")
	descUnsaved    = desc("state_unsaved", "1 while the state directory cannot be written: all goes on, and a sidecar that is started again would know less. Free space there, or make it writable.")
	descDenied     = desc("etcd_denied_total", "Requests that etcd denied for want of a right, by what they were for. Growing: 'holdfast status' names each right, and the command that grants it.", "for")
	descReloadOK   = desc("config_last_reload_successful", "1 when the settings were read anew without an error, or never since the start. 0: those from before are in force; 'holdfast status' says why.")
	descReloadAt   = desc("config_last_reload_success_timestamp_seconds", "When the settings in force were read: at the start, or at the last reload that succeeded.")
	descStarted    = desc("agent_start_timestamp_seconds", "When this sidecar was started. Changing again and again: read why the one before it ended, in its log.")
	descLoop       = desc("agent_loop_last_run_timestamp_seconds", "When the agent's loop last ran. More than 10 s ago: the sidecar hangs, restart it.")
)

// Describe implements prometheus.Collector.
func (g stateGauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descCause, descMode, descAttachment, descDetached, descPresent, descEpoch, descZombie, descPaused,
		descStartup, descDrained, descDraining, descMismatch, descConflict, descTogether, descRestart, descUnsaved, descDenied, descReloadOK, descReloadAt, descStarted, descLoop} {
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
	causes := a.notReady()
	gauge(descReady, len(causes) == 0)
	for _, name := range recovery.Causes {
		gauge(descCause, slices.ContainsFunc(causes, func(c probes.Cause) bool { return c.Name == name }), name)
	}
	for _, m := range []recovery.Mode{recovery.Active, recovery.Draining, recovery.Drained} {
		gauge(descMode, s.Mode.Mode == m, string(m))
	}
	for _, at := range recovery.Attachments {
		gauge(descAttachment, s.Attachment == at, at.String())
	}
	gauge(descDetached, s.Attachment == recovery.Detached)
	gauge(descPresent, a.metrics.present.Load())
	v, p := a.keeper.View(), a.reconciler.Snapshot()
	up := a.health.Snapshot().At(time.Now()).String() == "up"
	gauge(descZombie, up && v.Validity.ExpiredAt(a.clock()) && a.servesUnregistered(s, v, p), "unregistered")
	gauge(descZombie, p.Orphan > 0, "orphan_topics")
	gauge(descZombie, p.Foreign > 0, "foreign_owner")
	gauge(descZombie, a.staleView() != "", "stale_view")
	gauge(descZombie, a.identity.unseen.Load(), "unseen")
	gauge(descPaused, a.paused())
	gauge(descStartup, s.startupDone())
	for _, r := range drainedReasons {
		gauge(descDrained, drainedReason(s.Mode) == r, r)
	}
	gauge(descDraining, drainPending(s, p, a.steerer.View().Steering))
	gauge(descMismatch, s.reassert || a.steerer.View().Steering == recovery.SteerFailing)
	gauge(descConflict, s.Conflict != "")
	gauge(descTogether, s.held != "")
	gauge(descRestart, s.Restart != "")
	gauge(descUnsaved, a.unsavedWhy() != "")
	_, denied := a.denials.Look(time.Now())
	for _, what := range cluster.Purposes {
		c <- prometheus.MustNewConstMetric(descDenied, prometheus.CounterValue, float64(denied[what]), what)
	}
	config := a.configStatus()
	gauge(descReloadOK, config.Error == "")
	at := func(d *prometheus.Desc, t time.Time) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(t.UnixMilli())/1000)
	}
	at(descReloadAt, *cmp.Or(config.ReloadedAt, &a.started))
	at(descStarted, a.started)
	at(descLoop, *a.ran.Load())
	c <- prometheus.MustNewConstMetric(descEpoch, prometheus.GaugeValue, float64(v.Grant.Epoch))
}

// servesUnregistered reports whether a broker that is up, and has no lease, serves anything. One
// that was not asked since it is so, and whose own cluster gives it topics, may: it does not
// serve nothing until it has said so. One whose storage fences it serves on by design while
// etcd is away.
func (a *agent) servesUnregistered(s *snapshot, v lease.View, p topics.Progress) bool {
	if !p.ServedKnown && a.traits.Places || a.onlyUnready() && p.Served+p.Orphan > 0 {
		return a.registrationState(s, v) == "absent"
	}
	return p.Served+p.Orphan > 0
}

// byOperator is the label of every drained that is not Holdfast's, except those for the end
// of a pod: nobody may know of that one, as when its node was emptied. byPodStop is also the
// reason that preStop gave in deploy/kubernetes before 'holdfast leave', and pods of those
// manifests still give. byUnknown is the label of one of Holdfast's whose reason is none of
// those below.
const (
	byOperator = "operator"
	byPodStop  = "pod_stop"
	byUnknown  = "other"
)

// drainedReasons bounds the label: a person's own words are not one.
var drainedReasons = []string{
	byOperator, byPodStop, string(recovery.ReasonJoin), string(recovery.ReasonUnknownData), string(recovery.ReasonDataMissing), string(recovery.ReasonStaleRestart), string(recovery.ReasonRegistrationExpired),
	string(recovery.ReasonRestoredBackup), string(recovery.ReasonCorruptState), string(recovery.ReasonUnreadableMode), string(recovery.ReasonUnreadableRecord), byUnknown,
}

// drainedReason is the label of a drained mode; empty: the broker is not drained.
func drainedReason(m recovery.ModeRecord) string {
	switch {
	case m.Mode != recovery.Drained:
		return ""
	case m.By != recovery.ByHoldfast && m.Reason == byPodStop:
		return byPodStop
	case m.By != recovery.ByHoldfast:
		return byOperator
	case slices.Contains(drainedReasons, string(m.Reason)):
		return string(m.Reason)
	}
	return byUnknown
}

// drainPending reports whether a drain is not over. A detached broker is left to the
// fence, and told when it is attached again.
func drainPending(s *snapshot, p topics.Progress, taken recovery.Steering) bool {
	if s.Mode.Mode != recovery.Draining && s.Mode.Mode != recovery.Drained || s.Attachment == recovery.Detached {
		return false
	}
	return p.ServedKnown && p.Served+p.Orphan > 0 || taken == recovery.SteerPending || taken == recovery.SteerFailing
}
