package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

func TestReportHoldsOnlyWithinBothLimits(t *testing.T) {
	ms := func(list ...int) (all []outcome) {
		for _, n := range list {
			all = append(all, outcome{sidecar: time.Duration(n) * time.Millisecond, session: 40 * time.Second})
		}
		return all
	}
	late := func(added int) []outcome {
		all := ms(100, 100, 1001)
		all[2].added = time.Duration(added) * time.Millisecond
		return all
	}
	for _, row := range []struct {
		name           string
		outcomes       []outcome
		want, unjudged bool
	}{
		{"all fast", ms(100, 200, 300), true, false},
		{"exactly at both limits", ms(500, 500, 1000), true, false},
		{"one too slow", ms(100, 100, 1001), false, false},
		{"one too slow by what the machine added", late(1), false, true},
		{"one too slow by more than that", append(late(1), ms(1001)...), false, false},
		{"median too slow", ms(100, 501, 900), false, false},
		{"one missing", append(ms(100, 100), outcome{sidecar: missing, session: missing, added: time.Minute}), false, false},
		{"session missing is no fault of ours", append(ms(100, 100), outcome{sidecar: time.Millisecond, session: missing}), true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			got, err := report(&out, plan{}, row.outcomes)
			if got != row.want || errors.Is(err, standstill.ErrUnjudged) != row.unjudged {
				t.Fatalf("holds: %v, %v; want %v, unjudged %v\n%s", got, err, row.want, row.unjudged, &out)
			}
		})
	}
}

func TestHoleThatCannotOutlastTheTTLIsRefused(t *testing.T) {
	_, err := bench(t.Context(), io.Discard, plan{runs: 1, hole: 20 * time.Second, ttl: 15 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "make it at least 30s") {
		t.Fatalf("error %v, want the remedy", err)
	}
}

func TestARegistrationWithoutItsModeIsAViolation(t *testing.T) {
	const key = "/cluster/brokers/n1/state"
	for name, row := range map[string]struct {
		changes         []harness.Change
		ok, isViolation bool
	}{
		"active in the same revision": {[]harness.Change{{Key: key, Value: `{"mode":"active","reason":"boot"}`}}, true, false},
		"drained":                     {[]harness.Change{{Key: key, Value: `{"mode":"drained","reason":"stale_restart"}`}}, false, false},
		"all leases ended at once":    {[]harness.Change{{Key: key, Value: `{"mode":"active","reason":"fleet_expired"}`}}, false, false},
		"no state in that revision":   {[]harness.Change{{Key: "/cluster/register/n1", Value: `{}`}}, false, true},
	} {
		err := activeIn(row.changes, 7, key)
		if (err == nil) != row.ok || (err != nil && strings.Contains(err.Error(), harness.Violation)) != row.isViolation {
			t.Errorf("%s: %v", name, err)
		}
	}
}
