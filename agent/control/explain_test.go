package control

import (
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/guard"
	"holdfast/recovery"
)

func natsDefaults() config.Config {
	c := config.Default()
	c.Driver = "nats"
	return c
}

// modeReasons are those that recovery gives a mode.
var modeReasons = []recovery.Reason{recovery.ReasonBoot, recovery.ReasonJoin, recovery.ReasonFirstRegistration, recovery.ReasonUnknownData,
	recovery.ReasonDataMissing, recovery.ReasonFastRestart, recovery.ReasonPlannedRestart, recovery.ReasonStaleRestart,
	recovery.ReasonFullClusterRestart, recovery.ReasonRegistrationExpired, recovery.ReasonFleetExpired, recovery.ReasonRestoredBackup,
	recovery.ReasonCorruptState, recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord, recovery.ReasonOperator}

func TestEveryReasonOfAModeIsExplained(t *testing.T) {
	nothing := Explain(Event{Kind: "?", To: "?"}, natsDefaults()).Why
	for _, r := range modeReasons {
		for _, e := range []Event{{Kind: "mode", To: "drained", Reason: string(r)}, {Kind: "boot", To: "restart", Reason: string(r)}} {
			if x := Explain(e, natsDefaults()); x.Why == nothing || x.Why == "" || x.Avoid == "" || x.Event != e {
				t.Errorf("%s %s: not explained: %+v", e.Kind, r, x)
			}
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
		if x := Explain(Event{Kind: "boot", To: "restart", Reason: string(reason)}, c); (x.Otherwise == "") != (reason == recovery.ReasonOperator) {
			t.Errorf("%s: otherwise %q", reason, x.Otherwise)
		}
	}
}

func TestWhatKeepsABrokerOutHasANextStep(t *testing.T) {
	c := natsDefaults().Effective()
	for _, r := range []recovery.Reason{recovery.ReasonStaleRestart, recovery.ReasonRegistrationExpired, recovery.ReasonRestoredBackup,
		recovery.ReasonCorruptState, recovery.ReasonUnreadableMode, recovery.ReasonUnreadableRecord, recovery.ReasonJoin, "somebody's words"} {
		if x := Explain(Event{Kind: "mode", To: "drained", Reason: string(r)}, c); !strings.Contains(x.Next, "activate") {
			t.Errorf("%s: next %q", r, x.Next)
		}
	}
}

func TestNoEventMakesExplainFail(t *testing.T) {
	for _, c := range []config.Config{{}, natsDefaults(), natsDefaults().Effective()} {
		for _, e := range []Event{{}, {Kind: "mode"}, {Kind: "boot"}, {Kind: "readiness", To: "/"}, {Kind: "a/b", Reason: "c/d"}, {Kind: "future", To: "thing", Reason: "why"}} {
			if x := Explain(e, c); x.Why == "" || x.Avoid == "" {
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
	if why := Explain(fence, c.Effective()).Why; !strings.Contains(why, "for 21s (TTL 30s minus margin 9s)") || !strings.Contains(why, "boot clock") || strings.Contains(why, "guard") {
		t.Errorf("fence point without a guard: %s", why)
	}
	c.BrokerProcess = "nats-server"
	for _, e := range []Event{fence, shot} {
		if why := Explain(e, c.Effective()).Why; !strings.Contains(why, moment) {
			t.Errorf("%s: %s", e.Kind, why)
		}
	}
	c.SessionExpiredPolicy = "reconnect"
	if next := Explain(shot, c.Effective()).Next; !strings.Contains(next, "sidecar runs") || strings.Contains(next, "activate") {
		t.Errorf("under policy reconnect: %s", next)
	}
}

func TestWhatIsToBeDoneIsSaidOrLeftOut(t *testing.T) {
	for key, x := range explanations {
		if strings.HasPrefix(x.next, "Nothing") {
			t.Errorf("%s: what to do is %q: leave it out, or say what", key, x.next)
		}
	}
}
