package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

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
	descReloadOK   = desc("config_last_reload_successful", "1 when the settings were read anew without an error, or never since the start. 0: those from before are in force; 'holdfast status' says why.")
	descReloadAt   = desc("config_last_reload_success_timestamp_seconds", "When the settings in force were read: at the start, or at the last reload that succeeded.")
	descLoop       = desc("agent_loop_last_run_timestamp_seconds", "When the agent's loop last ran. More than 10 s ago: the sidecar hangs, restart it.")
)

// Describe implements prometheus.Collector.
func (g stateGauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descCause, descMode, descAttachment, descDetached, descPresent, descEpoch, descZombie, descPaused,
		descStartup, descDrained, descDraining, descMismatch, descConflict, descTogether, descRestart, descUnsaved, descReloadOK, descReloadAt, descLoop} {
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
	for _, check := range a.clientChecks() {
		gauge(descCause, slices.ContainsFunc(causes, func(c probes.Cause) bool { return c.Name == check.Name }), check.Name)
	}
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
	gauge(descZombie, up && v.Validity.ExpiredAt(a.clock()) && a.servesUnregistered(s, v, p), "unregistered")
	gauge(descZombie, p.Orphan > 0, "orphan_topics")
	gauge(descZombie, p.Foreign > 0, "foreign_owner")
	gauge(descZombie, a.staleView() != "", "stale_view")
	gauge(descZombie, a.identity.unseen.Load(), "unseen")
	gauge(descPaused, a.paused())
	gauge(descStartup, s.startupDone())
	for _, r := range drainedReasons {
		gauge(descDrained, drainedReason(s.mode) == r, r)
	}
	gauge(descDraining, drainPending(s, p, a.steerer.View().Steering))
	gauge(descMismatch, s.reassert || a.steerer.View().Steering == recovery.SteerFailing)
	gauge(descConflict, s.conflict != "")
	gauge(descTogether, s.held != "")
	gauge(descRestart, s.restart != "")
	gauge(descUnsaved, a.unsavedWhy() != "")
	config := a.configStatus()
	gauge(descReloadOK, config.Error == "")
	at := func(d *prometheus.Desc, t time.Time) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(t.UnixMilli())/1000)
	}
	at(descReloadAt, *cmp.Or(config.ReloadedAt, &a.started))
	at(descLoop, *a.ran.Load())
	c <- prometheus.MustNewConstMetric(descEpoch, prometheus.GaugeValue, float64(v.Grant.Epoch))
}

// servesUnregistered reports whether a broker that is up, and has no lease, serves anything. One
// that was not asked since it is so, and whose own cluster gives it topics, may: it does not
// serve nothing until it has said so. One whose storage fences it serves on by design while
// etcd is away.
func (a *agent) servesUnregistered(s *snapshot, v lease.View, p recovery.Progress) bool {
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
func drainPending(s *snapshot, p recovery.Progress, taken recovery.Steering) bool {
	if s.mode.Mode != recovery.Draining && s.mode.Mode != recovery.Drained || s.attachment == recovery.Detached {
		return false
	}
	return p.ServedKnown && p.Served+p.Orphan > 0 || taken == recovery.SteerPending || taken == recovery.SteerFailing
}
