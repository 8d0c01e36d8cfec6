package recovery

import (
	"slices"
	"strings"
	"testing"
)

var (
	allPolicies = []Policy{PolicyDrain, PolicyReconnect, PolicyShutdown}
	allFailures = []Failure{FailureUnreachable, FailureTimeout, FailureNoLeader, FailureOverloaded, FailureAuth,
		FailureLeaseGone, FailureNoSpace, FailureOther}
)

func TestFailureTable(t *testing.T) {
	silence := []Failure{FailureUnreachable, FailureTimeout}
	reconnect := []Policy{PolicyReconnect}
	for _, c := range []struct {
		name     string
		failures []Failure
		policies []Policy
		f        FailureFacts
		want     Sequel
		reason   Reason // empty: the class
	}{
		{"before the deadline", silence, allPolicies, FailureFacts{Limit: 1}, KeepTrying, ""},
		{"after the loss", silence, []Policy{PolicyDrain}, FailureFacts{Lost: true}, KeepTrying, ""},
		{"after the loss, only etcd's word stops the broker", silence, []Policy{PolicyShutdown}, FailureFacts{Lost: true}, KeepTrying, ""},
		{"after the loss, no limit", silence, reconnect, FailureFacts{Lost: true, Used: 1000}, KeepTrying, ""},
		{"after the loss, first of three", silence, reconnect, FailureFacts{Lost: true, Limit: 3}, CountAttempt, ""},
		{"after the loss, second of three", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 1}, CountAttempt, ""},
		{"after the loss, third of three", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 2}, GiveUp, ReasonRetriesUsedUp},
		{"after the loss, only one", silence, reconnect, FailureFacts{Lost: true, Limit: 1}, GiveUp, ReasonRetriesUsedUp},
		{"used up before", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 9}, GiveUp, ReasonRetriesUsedUp},
		{"used up, and a person drained the broker", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 2, Mode: Drained}, KeepTrying, ReasonModeKept},
		{"used up, and a person is draining the broker", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 2, Mode: Draining}, KeepTrying, ReasonModeKept},
		{"used up, and recovery is paused", silence, reconnect, FailureFacts{Lost: true, Limit: 3, Used: 2, Paused: true}, KeepTrying, ReasonPaused},
		{"no leader", []Failure{FailureNoLeader}, allPolicies, FailureFacts{Lost: true, Limit: 1}, KeepTrying, ""},
		{"overloaded", []Failure{FailureOverloaded}, allPolicies, FailureFacts{Lost: true, Limit: 1}, KeepTrying, ""},
		{"something else", []Failure{FailureOther}, allPolicies, FailureFacts{Lost: true, Limit: 1}, KeepTrying, ""},
		{"refused", []Failure{FailureAuth}, allPolicies, FailureFacts{Lost: true, Limit: 1}, AwaitPerson, ""},
		{"no space", []Failure{FailureNoSpace}, allPolicies, FailureFacts{Lost: true, Limit: 1}, AwaitPerson, ""},
		{"lease revoked", []Failure{FailureLeaseGone}, allPolicies, FailureFacts{Limit: 1}, TakeLoss, ""},
		{"lease revoked after the deadline", []Failure{FailureLeaseGone}, allPolicies, FailureFacts{Lost: true, Limit: 1, Used: 9}, TakeLoss, ""},
		{"broker sick", allFailures, allPolicies, FailureFacts{Lost: true, Limit: 1, Used: 9, BrokerDown: true}, Rest, ReasonBrokerDown},
	} {
		for _, failure := range c.failures {
			for _, p := range c.policies {
				t.Run(c.name+", "+string(failure)+", policy "+string(p), func(t *testing.T) {
					f := c.f
					f.Failure, f.Policy = failure, p
					if f.Mode == "" {
						f.Mode = Active
					}
					want := c.reason
					if want == "" {
						want = Reason(failure)
					}
					got := JudgeFailure(f)
					if got.Sequel != c.want || got.Reason != want || len(strings.Fields(got.Detail)) < 5 {
						t.Errorf("%s (%s): %q; want %s (%s)", got.Sequel, got.Reason, got.Detail, c.want, want)
					}
				})
			}
		}
	}
}

func TestTheAttemptsAreCounted(t *testing.T) {
	for used, says := range []string{"in 1 attempt since", "in 2 attempts since"} {
		f := FailureFacts{Failure: FailureTimeout, Policy: PolicyReconnect, Lost: true, Limit: 1, Used: used, Mode: Active}
		if got := JudgeFailure(f).Detail; !strings.Contains(got, says) {
			t.Errorf("%q, want %q", got, says)
		}
	}
}

// Over every combination: a broker is stopped only for silence, after a certain loss,
// with a limit that is used up, and never while it serves nothing anyway.
func TestOnlySilenceAfterTheLossStopsABroker(t *testing.T) {
	for _, failure := range append(slices.Clone(allFailures), "a class of tomorrow") {
		for _, p := range append(slices.Clone(allPolicies), "") {
			for _, m := range []Mode{Active, Draining, Drained, ""} {
				for bits := range 8 {
					for _, limit := range []int{0, 1, 3} {
						for _, used := range []int{0, 2, 5} {
							f := FailureFacts{Failure: failure, Policy: p, Limit: limit, Used: used, Mode: m,
								Lost: bits&1 != 0, BrokerDown: bits&2 != 0, Paused: bits&4 != 0}
							silence := failure == FailureUnreachable || failure == FailureTimeout
							may := silence && p == PolicyReconnect && f.Lost && !f.BrokerDown && !f.Paused &&
								m != Drained && m != Draining && limit > 0
							got := JudgeFailure(f)
							if (got.Sequel == GiveUp) != (may && used+1 >= limit) || (got.Sequel == CountAttempt) != (may && used+1 < limit) {
								t.Errorf("%s from %+v", got.Sequel, f)
							}
							if got.Reason == "" || got.Detail == "" {
								t.Errorf("no reason or no sentence from %+v", f)
							}
						}
					}
				}
			}
		}
	}
}
