package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/guard"
	"holdfast/agent/process"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/moves"
	"holdfast/recovery/topics"
)

// unexplained is what explain says when it knows nothing.
func unexplained() string { return explain(Event{Kind: "?", To: "?"}, natsDefaults().Effective()).Why }

// modeReasons are those that recovery gives a mode.
var modeReasons = []recovery.Reason{recovery.ReasonBoot, recovery.ReasonJoin, recovery.ReasonFirstRegistration, recovery.ReasonUnknownData,
	recovery.ReasonDataMissing, recovery.ReasonFastRestart, recovery.ReasonPlannedRestart, recovery.ReasonStaleRestart,
	recovery.ReasonFullClusterRestart, recovery.ReasonRegistrationExpired, recovery.ReasonFleetExpired, recovery.ReasonRestoredBackup,
	recovery.ReasonCorruptState, recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord, recovery.ReasonOperator}

func TestEveryReasonIsExplained(t *testing.T) {
	c := natsDefaults().Effective()
	events := map[string]Event{}
	add := func(e Event) { events[e.Kind+" "+e.To+" "+e.Reason] = e }
	for _, w := range []recovery.Why{recovery.WhyRegistered, recovery.WhyRecovered, recovery.WhyRecoverOver, recovery.WhyFailing,
		recovery.WhyFencePoint, recovery.WhyLeaseLost, recovery.WhyConflict, recovery.WhyBrokerDown} {
		add(Event{Kind: "attachment", To: "detached", Reason: string(w)})
	}
	for _, r := range modeReasons {
		add(Event{Kind: "mode", To: "drained", Reason: string(r)})
		add(Event{Kind: "boot", To: "restart", Reason: string(r)})
	}
	for _, r := range []recovery.Reason{recovery.ReasonFirstRegistration, recovery.ReasonUnknownData, recovery.RowKept, recovery.RowReconnected} {
		add(Event{Kind: "boot", To: "restart", Reason: "somebody's words", Row: string(r)})
	}
	add(Event{Kind: "mode", To: "drained", Reason: "reasserted"})
	add(Event{Kind: "readiness", To: "ready"})
	a := built(t)
	for _, check := range append(a.readyChecks(), a.liveChecks()...) {
		add(Event{Kind: "readiness", To: "not_ready", Reason: check.Name})
	}
	for _, v := range []probes.Verdict{probes.Up, probes.Down, probes.Unknown} {
		add(Event{Kind: "broker", To: v.String()})
	}
	for _, cause := range lossCauses {
		add(Event{Kind: "registration", To: "lost", Reason: cause})
	}
	add(Event{Kind: "fence", To: "stopped", Reason: stopReasonIll})
	add(Event{Kind: "registration", To: "left", Reason: "crash"})
	for _, to := range []string{"held", "registered", "repaired", "unreadable_record"} {
		add(Event{Kind: "registration", To: to})
	}
	add(Event{Kind: "registration", To: "contested", Reason: "identity_conflict"})
	for _, to := range []string{"quiesced", "stopped", "gone", "awaiting"} {
		add(Event{Kind: "fence", To: to})
	}
	for _, step := range []recovery.FenceStep{recovery.StepQuiesce, recovery.StepStop} {
		add(Event{Kind: "fence", To: "failed", Reason: string(step)})
	}
	for _, what := range []guard.What{guard.Started, guard.TakenOver, guard.Died, guard.Failing, "absent", "dismissed"} {
		add(Event{Kind: "guard", To: string(what)})
	}
	add(Event{Kind: "fence", To: guard.Fired, Reason: guard.Fired})
	for _, r := range append(slices.Clone(recovery.HeldReasons), recovery.ReasonPeerWell) {
		add(Event{Kind: "broker", To: "on_hold", Reason: string(r)})
	}
	add(Event{Kind: "broker", To: "hold_over"})
	add(Event{Kind: "topics", To: "guard_tripped", Reason: "mass_change"})
	add(Event{Kind: "topics", To: "guard_cleared"})
	add(Event{Kind: "topics", To: "foreign_owner"})
	add(Event{Kind: "topics", To: "placed"})
	add(Event{Kind: "topics", To: "ignored", Reason: "record"})
	for _, by := range []string{topics.GateComplete, topics.GateLoadTimeout} {
		add(Event{Kind: "topics", To: "reconciled", Reason: by})
	}
	add(Event{Kind: "agent", To: "state_unsaved"})
	add(Event{Kind: "agent", To: "state_saved"})
	add(Event{Kind: "topics", To: "made_anew", Reason: "lost"})
	add(Event{Kind: "agent", To: "resumed", Reason: "suspension"})
	add(Event{Kind: "agent", To: "clock_jumped"})
	for _, to := range childChanges {
		add(Event{Kind: "process", To: to, Reason: map[string]string{"held": "fenced"}[to]})
	}
	for _, e := range []process.Ending{{Fenced: true}, {}, {Known: true, Signal: "killed"}, {Known: true, Code: 1}, {Known: true}} {
		add(Event{Kind: "process", To: "ended", Reason: e.Reason()})
	}
	add(Event{Kind: "process", To: "stopped", Reason: "clean_stop"})
	for _, what := range actions {
		if what != actNotReady { // which has its own event
			add(Event{Kind: "shadow", To: string(what)})
		}
	}
	for _, f := range []recovery.Failure{recovery.FailureUnreachable, recovery.FailureNoLeader, recovery.FailureOverloaded, recovery.FailureAuth,
		recovery.FailureNoSpace, recovery.FailureOther, recovery.Failure(recovery.ReasonRetriesUsedUp)} {
		add(Event{Kind: "registration", To: "failing", Reason: string(f)})
	}
	for _, r := range []recovery.Reason{"", recovery.ReasonSessionExpired, recovery.ReasonRetriesUsedUp} {
		add(Event{Kind: "agent", To: "shutdown", Reason: string(r)})
	}
	for _, r := range []string{"", "released", "broker_stopped", "broker_not_stopped"} {
		add(Event{Kind: "agent", To: "stopped", Reason: r})
	}
	for _, r := range []string{"operator", "expired"} {
		add(Event{Kind: "operator", To: "resumed", Reason: r})
	}
	add(Event{Kind: "operator", To: "paused", Reason: "operator"})
	for _, p := range moves.Phases {
		add(Event{Kind: "move", To: string(p), Reason: "operator"})
	}
	for name, e := range events {
		x := explain(e, c)
		if x.Why == unexplained() || x.Why == "" || x.Avoid == "" {
			t.Errorf("%s: not explained: %+v", name, x)
		}
		if x.Event != e {
			t.Errorf("%s: the event was changed: %+v", name, x.Event)
		}
	}
}

// Without words of its own a reason would be told as an operator's.
func TestNoReasonOfAModeIsTakenForAnOperatorsWords(t *testing.T) {
	c := natsDefaults().Effective()
	for _, reason := range modeReasons {
		if _, ok := explanations["mode/"+string(reason)]; !ok && reason != recovery.ReasonOperator {
			t.Errorf("%s is not explained", reason)
		}
		if x := explain(Event{Kind: "boot", To: "restart", Reason: string(reason)}, c); (x.Otherwise == "") != (reason == recovery.ReasonOperator) {
			t.Errorf("%s: otherwise %q", reason, x.Otherwise)
		}
	}
}

func TestWhatKeepsABrokerOutHasANextStep(t *testing.T) {
	c := natsDefaults().Effective()
	for _, r := range []recovery.Reason{recovery.ReasonStaleRestart, recovery.ReasonRegistrationExpired, recovery.ReasonRestoredBackup,
		recovery.ReasonCorruptState, recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord, recovery.ReasonJoin, "somebody's words"} {
		if x := explain(Event{Kind: "mode", To: "drained", Reason: string(r)}, c); !strings.Contains(x.Next, "activate") {
			t.Errorf("%s: next %q", r, x.Next)
		}
	}
}

func TestNoEventMakesExplainFail(t *testing.T) {
	for _, c := range []config.Config{{}, natsDefaults(), natsDefaults().Effective()} {
		for _, e := range []Event{{}, {Kind: "mode"}, {Kind: "boot"}, {Kind: "readiness", To: "/"}, {Kind: "a/b", Reason: "c/d"}, {Kind: "future", To: "thing", Reason: "why"}} {
			if x := explain(e, c); x.Why == "" || x.Avoid == "" {
				t.Errorf("%+v: %+v", e, x)
			}
		}
		for key, known := range explanations {
			if x := spelled(c).Replace(known.why + known.avoid + known.next); known.why == "" || strings.ContainsAny(x, "{}") || strings.Contains(x, "%!") {
				t.Errorf("%s: %s", key, x)
			}
		}
	}
}

func TestAFenceAndAShotAreExplainedWithTheirMomentAndItsClock(t *testing.T) {
	c := natsDefaults()
	c.LeaseTTL, c.LeaseDetachMargin = 30*time.Second, 9*time.Second
	const moment = "The guard stops the broker 27s after the last confirmed renewal was sent (TTL 30s minus a third of margin 9s), on the boot clock"
	fence := Event{Kind: "attachment", From: "degraded", To: "detached", Reason: string(recovery.WhyFencePoint)}
	shot := Event{Kind: "fence", To: guard.Fired, Reason: guard.Fired}
	if why := explain(fence, c.Effective()).Why; !strings.Contains(why, "for 21s (TTL 30s minus margin 9s)") || !strings.Contains(why, "boot clock") || strings.Contains(why, "guard") {
		t.Errorf("fence point without a guard: %s", why)
	}
	c.BrokerProcess = "nats-server"
	for _, e := range []Event{fence, shot} {
		if why := explain(e, c.Effective()).Why; !strings.Contains(why, moment) {
			t.Errorf("%s: %s", e.Kind, why)
		}
	}
	c.SessionExpiredPolicy = "reconnect"
	if next := explain(shot, c.Effective()).Next; !strings.Contains(next, "sidecar runs") || strings.Contains(next, "activate") {
		t.Errorf("under policy reconnect: %s", next)
	}
}

// The page shows what the status says and what the journal asks for side by side.
func TestStatusAndJournalAskForTheSameWhileEtcdIsAway(t *testing.T) {
	for key, x := range explanations {
		if strings.HasPrefix(x.next, "Nothing") {
			t.Errorf("%s: what to do is %q: leave it out, or say what", key, x.next)
		}
	}
	inLife(t, func(c *config.Config) { c.EtcdEndpoints = []string{"https://e1:2379", "https://e2:2379"} }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, l.age()+time.Minute)
		l.until(l.age() + time.Minute)
		if s := l.status(); !strings.HasSuffix(s.Summary, "; check etcd (https://e1:2379, https://e2:2379) and the way to it.") {
			t.Error(s.Summary)
		}
		events, _ := l.journal.since(0)
		i := slices.IndexFunc(events, func(e Event) bool { return e.Reason == string(recovery.WhyFencePoint) })
		if next := explain(events[i], l.cfg).Next; !strings.HasPrefix(next, "See to etcd (https://e1:2379, https://e2:2379) and the way to it: ") {
			t.Error(next)
		}
	})
}
