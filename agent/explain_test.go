package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/guard"
	"holdfast/agent/process"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/moves"
	"holdfast/recovery/topics"
)

// unexplained is what explain says when it knows nothing.
func unexplained() string {
	return control.Explain(control.Event{Kind: "?", To: "?"}, natsDefaults().Effective()).Why
}

func TestEveryReasonIsExplained(t *testing.T) {
	c := natsDefaults().Effective()
	events := map[string]control.Event{}
	add := func(e control.Event) { events[e.Kind+" "+e.To+" "+e.Reason] = e }
	for _, w := range []recovery.Why{recovery.WhyRegistered, recovery.WhyRecovered, recovery.WhyRecoverOver, recovery.WhyFailing,
		recovery.WhyFencePoint, recovery.WhyLeaseLost, recovery.WhyConflict, recovery.WhyBrokerDown} {
		add(control.Event{Kind: "attachment", To: "detached", Reason: string(w)})
	}
	for _, r := range []recovery.Reason{recovery.ReasonFirstRegistration, recovery.ReasonUnknownData, recovery.RowKept, recovery.RowReconnected} {
		add(control.Event{Kind: "boot", To: "restart", Reason: "somebody's words", Row: string(r)})
	}
	add(control.Event{Kind: "mode", To: "drained", Reason: "reasserted"})
	add(control.Event{Kind: "readiness", To: "ready"})
	a := built(t)
	for _, check := range append(a.readyChecks(), a.liveChecks()...) {
		add(control.Event{Kind: "readiness", To: "not_ready", Reason: check.Name})
	}
	for _, v := range []probes.Verdict{probes.Up, probes.Down, probes.Unknown} {
		add(control.Event{Kind: "broker", To: v.String()})
	}
	for _, cause := range lossCauses {
		add(control.Event{Kind: "registration", To: "lost", Reason: cause})
	}
	add(control.Event{Kind: "fence", To: "stopped", Reason: control.StopReasonIll})
	add(control.Event{Kind: "registration", To: "left", Reason: "crash"})
	for _, to := range []string{"held", "registered", "repaired", "unreadable_record"} {
		add(control.Event{Kind: "registration", To: to})
	}
	add(control.Event{Kind: "registration", To: "contested", Reason: "identity_conflict"})
	for _, to := range []string{"quiesced", "stopped", "gone", "awaiting"} {
		add(control.Event{Kind: "fence", To: to})
	}
	for _, step := range []recovery.FenceStep{recovery.StepQuiesce, recovery.StepStop} {
		add(control.Event{Kind: "fence", To: "failed", Reason: string(step)})
	}
	for _, what := range []guard.What{guard.Started, guard.TakenOver, guard.Died, guard.Failing, "absent", "dismissed"} {
		add(control.Event{Kind: "guard", To: string(what)})
	}
	add(control.Event{Kind: "fence", To: guard.Fired, Reason: guard.Fired})
	for _, r := range append(slices.Clone(recovery.HeldReasons), recovery.ReasonPeerWell) {
		add(control.Event{Kind: "broker", To: "on_hold", Reason: string(r)})
	}
	add(control.Event{Kind: "broker", To: "hold_over"})
	add(control.Event{Kind: "topics", To: "guard_tripped", Reason: "mass_change"})
	add(control.Event{Kind: "topics", To: "guard_cleared"})
	add(control.Event{Kind: "topics", To: "foreign_owner"})
	add(control.Event{Kind: "topics", To: "placed"})
	add(control.Event{Kind: "topics", To: "ignored", Reason: "record"})
	for _, by := range []string{topics.GateComplete, topics.GateLoadTimeout} {
		add(control.Event{Kind: "topics", To: "reconciled", Reason: by})
	}
	add(control.Event{Kind: "etcd", To: "denied", Reason: "moves"})
	add(control.Event{Kind: "etcd", To: "over", Reason: "moves"})
	add(control.Event{Kind: "agent", To: "state_unsaved"})
	add(control.Event{Kind: "agent", To: "state_saved"})
	add(control.Event{Kind: "topics", To: "made_anew", Reason: "lost"})
	add(control.Event{Kind: "agent", To: "resumed", Reason: "suspension"})
	add(control.Event{Kind: "agent", To: "clock_jumped"})
	for _, to := range childChanges {
		add(control.Event{Kind: "process", To: to, Reason: map[string]string{"held": "fenced"}[to]})
	}
	for _, e := range []process.Ending{{Fenced: true}, {}, {Known: true, Signal: "killed"}, {Known: true, Code: 1}, {Known: true}} {
		add(control.Event{Kind: "process", To: "ended", Reason: e.Reason()})
	}
	add(control.Event{Kind: "process", To: "stopped", Reason: "clean_stop"})
	for _, what := range actions {
		if what != actNotReady { // which has its own event
			add(control.Event{Kind: "shadow", To: string(what)})
		}
	}
	for _, f := range []recovery.Failure{recovery.FailureUnreachable, recovery.FailureNoLeader, recovery.FailureOverloaded, recovery.FailureAuth,
		recovery.FailureNoSpace, recovery.FailureOther, recovery.Failure(recovery.ReasonRetriesUsedUp)} {
		add(control.Event{Kind: "registration", To: "failing", Reason: string(f)})
	}
	for _, r := range []recovery.Reason{"", recovery.ReasonSessionExpired, recovery.ReasonRetriesUsedUp} {
		add(control.Event{Kind: "agent", To: "shutdown", Reason: string(r)})
	}
	for _, r := range []string{"", "released", "broker_stopped", "broker_not_stopped"} {
		add(control.Event{Kind: "agent", To: "stopped", Reason: r})
	}
	for _, r := range []string{"operator", "expired"} {
		add(control.Event{Kind: "operator", To: "resumed", Reason: r})
	}
	add(control.Event{Kind: "operator", To: "paused", Reason: "operator"})
	for _, p := range moves.Phases {
		add(control.Event{Kind: "move", To: string(p), Reason: "operator"})
	}
	for name, e := range events {
		x := control.Explain(e, c)
		if x.Why == unexplained() || x.Why == "" || x.Avoid == "" {
			t.Errorf("%s: not explained: %+v", name, x)
		}
		if x.Event != e {
			t.Errorf("%s: the event was changed: %+v", name, x.Event)
		}
	}
}

// The page shows what the status says and what the journal asks for side by side.
func TestStatusAndJournalAskForTheSameWhileEtcdIsAway(t *testing.T) {
	inLife(t, func(c *config.Config) { c.EtcdEndpoints = []string{"https://e1:2379", "https://e2:2379"} }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, l.age()+time.Minute)
		l.until(l.age() + time.Minute)
		if s := l.status(); !strings.HasSuffix(s.Summary, "; check etcd (https://e1:2379, https://e2:2379) and the way to it.") {
			t.Error(s.Summary)
		}
		events, _ := l.journal.Since(0)
		i := slices.IndexFunc(events, func(e control.Event) bool { return e.Reason == string(recovery.WhyFencePoint) })
		if next := control.Explain(events[i], l.cfg).Next; !strings.HasPrefix(next, "See to etcd (https://e1:2379, https://e2:2379) and the way to it: ") {
			t.Error(next)
		}
	})
}
