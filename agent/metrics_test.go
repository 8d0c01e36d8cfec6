package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// stillBroker holds one topic that nobody may find in a label.
type stillBroker struct{ brokerapi.Broker }

const telltale = "/tenant-a/topic-of-theirs"

func (stillBroker) Topics(context.Context) (brokerapi.Held, error) {
	return brokerapi.Held{Serving: []string{telltale}}, nil
}
func (stillBroker) Probe(context.Context) (brokerapi.Report, error) { return brokerapi.Report{}, nil }
func (stillBroker) Serve(context.Context, string, []byte) error     { return errors.New(telltale) }
func (stillBroker) Withdraw(context.Context, string) error          { return errors.New(telltale) }
func (stillBroker) Records(context.Context, []string) (map[string][]byte, error) {
	return nil, nil
}

// stillLine never answers, and never has to.
type stillLine struct{}

func (stillLine) KeepAlive(ctx context.Context, _ int64, _ bool) (lease.Renewal, error) {
	<-ctx.Done()
	return lease.Renewal{}, ctx.Err()
}
func (stillLine) AwaitReconnect(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (stillLine) Revoke(context.Context, int64) error      { return nil }
func (stillLine) Establish(ctx context.Context, _ int64, _ bool) (lease.Grant, error) {
	<-ctx.Done()
	return lease.Grant{}, ctx.Err()
}
func (stillLine) Prove(ctx context.Context, _ lease.Grant) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// built is a sidecar with every part that has metrics; nothing runs.
func built(t *testing.T) *agent {
	a, _ := builtWith(t)
	return a
}

func builtWith(t *testing.T) (*agent, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	return builtOn(t, reg, listed{stillBroker{}, new(atomic.Bool)}), reg
}

// builtOn is built with that registry, beside that broker.
func builtOn(t testing.TB, reg *prometheus.Registry, broker topics.Broker) *agent {
	t.Helper()
	c := natsDefaults().Effective()
	quiet := slog.New(slog.DiscardHandler)
	a := &agent{cfg: c, world: World{Clocks: lease.HostClocks}, version: "test", log: quiet, clock: lease.BootClock, started: time.Now(),
		inbox: make(chan func()), named: make(chan struct{}), broker: stillBroker{}, registrar: &registration.Registrar{}}
	a.memory = newMemory()
	a.journal = control.OpenJournal(t.TempDir(), quiet)
	t.Cleanup(a.journal.Close)
	a.metrics = newMetrics(reg, a)
	a.identity = newIdentityCheck(a.broker, c, "")
	a.health = probes.NewHealth(probes.HealthSettings{Interval: c.HealthInterval, Timeout: c.HealthTimeout, Rise: c.HealthRise, Fall: c.HealthFall},
		a.identity.check, nil, quiet, reg)
	a.dataDir = probes.NewDataDir("", c.DataMarkers, false, quiet)
	a.reconciler = topics.NewReconciler(reconcilerSettings(c), broker, stillBroker{}, quiet, reg)
	a.steerer = topics.NewSteerer(nil, 0, 0, quiet, reg)
	a.ownership = a.newOwnership(reg)
	a.moves = a.newMoves(reg)
	a.keeper = lease.NewKeeper(lease.Settings{Timing: c.Timing(), Clock: a.clock, Classify: classify, Classes: failureClasses()},
		stillLine{}, stillLine{}, 0, quiet, reg)
	line, err := cluster.OpenLine(c.Cluster(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { line.Close() })
	watchEndpoints(renewalLine{line}, reg)
	a.ranAt(time.Now())
	a.initLoop()
	return a
}

// series calls do with each series; a family's name stands alone first.
func series(t *testing.T, reg *prometheus.Registry, do func(name, label, value string)) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		do(f.GetName(), "", "")
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				do(f.GetName(), l.GetName(), l.GetValue())
			}
		}
	}
}

func TestMetricsOfAWholeSidecarAreWellFormed(t *testing.T) {
	_, reg := builtWith(t)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	series(t, reg, func(name, _, _ string) {
		if !strings.HasPrefix(name, "holdfast_") {
			t.Errorf("%s: not holdfast_", name)
		}
	})
}

// contracted is every metric of the public surface, with the values of its labels that
// must be there before anything has happened.
var contracted = map[string][]string{
	"build_info": {"nats", "test"}, "policy_info": {"own", "drain", "external"}, "shadow": nil,
	"ready": nil, "ready_transitions_total": {"ready", "not_ready"}, "startup_done": nil,
	"broker_up": nil, "broker_mode": {"active", "drained", "draining"}, "broker_restart_required": nil, "mode_mismatch": nil,
	"drained":       {"operator", "join", "stale_restart", "registration_expired", "restored_backup", "corrupt_state", "unreadable_mode", "unreadable_record", "other"},
	"drain_pending": nil,
	"ready_cause":   {"lease", "attached", "guard", "mode", "broker", "work", "steer", "topics", "agent"},
	"attachment":    {"attached", "degraded", "detached"}, "detached": nil, "identity_conflict": nil, "paused": nil,
	"detachments_total": {"broker_down", "fence_point", "identity_conflict", "lease_lost"},
	"lease_ttl_seconds": nil, "lease_detach_margin_seconds": nil, "lease_deadline_timestamp_seconds": nil, "lease_remaining_seconds": nil, "lease_margin_seconds": nil,
	"lease_renewals_total": {"confirmed", "failed", "lost"}, "lease_renewal_duration_seconds": nil,
	"lease_keepalive_failures_total": failureClasses(), "lease_keepalive_failure_streak": nil, "lease_failing_seconds": nil,
	"lease_hedges_total": {"true", "false"}, "etcd_endpoint_up": {"http://127.0.0.1:2379"},
	"registration_present": nil, "registration_lost_total": {"lease_expired", "key_deleted", "broker_down"}, "registration_adoptions_total": nil, "registration_epoch": nil,
	"broker_boots_total": {"first_boot", "restart", "stale_restart", "kept"}, "broker_zombie": {"unregistered", "orphan_topics", "foreign_owner", "stale_view"},
	"broker_process_changes_total": {"started", "adopted", "ended", "start_failed", "held"},
	"broker_steers_total":          {"active", "drained", "ok", "error", "timeout", "dropped"},
	"acquire_retry_attempts_total": nil, "acquire_retry_window_exhausted_total": nil, "ownership_conflicts_total": nil,
	"topics":            {"assigned", "served", "missing", "orphan", "quarantined", "held_elsewhere", "loading", "failed"},
	"topic_loads_total": {"ok", "error", "timeout", "dropped"}, "topic_unloads_total": {"ok", "error", "timeout", "dropped"}, "topic_listings_total": {"ok", "error"},
	"reconcile_duration_seconds": nil, "reconcile_last_success_timestamp_seconds": nil, "reconcile_interval_seconds": nil, "mass_change_held": nil, "topics_made_anew_total": nil,
	"fence_duration_seconds": {"guard", "ready", "quiesce", "stop"}, "fence_failures_total": {"ready", "quiesce", "stop"},
	"would_have_total": {"register", "rebind", "set_mode", "load", "quiesce", "stop", "not_ready", "revoke", "steer"},
	"guard_up":         nil, "guard_starts_total": nil, "guard_fired_total": nil, "guard_last_fired_timestamp_seconds": nil,
	"agent_start_timestamp_seconds": nil, "agent_loop_last_run_timestamp_seconds": nil, "agent_suspensions_total": nil, "ill_together": nil, "state_unsaved": nil, "etcd_denied_total": cluster.Purposes,
	"move_phase_duration_seconds": {"pending", "draining", "sealed", "copied", "switched", "resumed", "verified", "undoing", "returned"},
	"moves_in_progress":           {"pending", "sealed"}, "moves_total": {"done", "cancelled", "failed"}, "move_bytes_total": nil, "drain_progress_ratio": nil,
	"config_last_reload_successful": nil, "config_last_reload_success_timestamp_seconds": nil,
}

// The list is complete both ways: who adds a metric adds it there.
func TestSeriesExistFromTheStart(t *testing.T) {
	_, reg := builtWith(t)
	have := map[string][]string{}
	series(t, reg, func(name, _, value string) { have[name] = append(have[name], value) })
	for name, values := range contracted {
		got, ok := have["holdfast_"+name]
		if !ok {
			t.Errorf("holdfast_%s is missing", name)
		}
		for _, v := range values {
			if !slices.Contains(got, v) {
				t.Errorf("holdfast_%s: no series for %q, only %q", name, v, got)
			}
		}
	}
	for name := range have {
		if _, ok := contracted[strings.TrimPrefix(name, "holdfast_")]; !ok {
			t.Errorf("%s is not in the list", name)
		}
	}
}

// A help text is read by the person who was woken by the metric.
func TestEveryHelpSaysMoreThanTheName(t *testing.T) {
	_, reg := builtWith(t)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if help := f.GetHelp(); len(help) < 50 || !strings.HasSuffix(help, ".") {
			t.Errorf("%s: help %q: say in sentences what it is and what to do with it", f.GetName(), help)
		}
	}
}

func TestNoTopicIsALabel(t *testing.T) {
	a, reg := builtWith(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.reconciler.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	a.reconciler.SetAssigned(1, true, []string{telltale, "/tenant-a/other"}, nil)
	a.reconciler.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "i"})
	bound := time.After(patience)
	for p := a.reconciler.Snapshot(); p.Failed == 0; p = a.reconciler.Snapshot() {
		select {
		case <-a.reconciler.Changes():
		case <-bound:
			t.Fatalf("no topic failed to load within %v: %+v", patience, p)
		}
	}
	series(t, reg, func(name, label, value string) {
		if label == "topic" || strings.Contains(value, "tenant") {
			t.Errorf("%s{%s=%q}", name, label, value)
		}
	})
}

func TestOperatorsWordsAreNoLabel(t *testing.T) {
	a, reg := builtWith(t)
	a.metrics.boots.WithLabelValues("restart", a.metrics.bootReason("Ticket 42: new disk")).Inc()
	a.metrics.lost("something new")
	series(t, reg, func(name, label, value string) {
		if strings.Contains(value, "Ticket") || value == "something new" {
			t.Errorf("%s{%s=%q}", name, label, value)
		}
	})
}

func TestEveryReasonOfABootHasASeriesOrIsAModeThatWasKept(t *testing.T) {
	a := built(t)
	for _, r := range []recovery.Reason{recovery.ReasonBoot, recovery.ReasonJoin, recovery.ReasonFastRestart, recovery.ReasonStaleRestart,
		recovery.ReasonFullClusterRestart, recovery.ReasonRestoredBackup, recovery.ReasonCorruptState, recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord} {
		if got := a.metrics.bootReason(r); got != string(r) {
			t.Errorf("%s is counted as %s", r, got)
		}
	}
}

func TestABrokerIsReadyExactlyWhenNoCauseSaysOtherwise(t *testing.T) {
	_, reg := builtWith(t)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ready, causes := -1.0, 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "holdfast_ready":
				ready = m.GetGauge().GetValue()
			case "holdfast_ready_cause":
				causes += m.GetGauge().GetValue()
			}
		}
	}
	if ready != 0 || causes < 2 {
		t.Errorf("ready is %v with %v causes: a sidecar that has not begun has no lease and no mode", ready, causes)
	}
}
