package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

func TestReportHoldsOnlyWithinBothLimits(t *testing.T) {
	ms := func(list ...int) (all []outcome) {
		for _, n := range list {
			all = append(all, outcome{time.Duration(n) * time.Millisecond, 40 * time.Second})
		}
		return all
	}
	for _, row := range []struct {
		name     string
		outcomes []outcome
		want     bool
	}{
		{"all fast", ms(100, 200, 300), true},
		{"exactly at both limits", ms(500, 500, 1000), true},
		{"one too slow", ms(100, 100, 1001), false},
		{"median too slow", ms(100, 501, 900), false},
		{"one missing", append(ms(100, 100), outcome{missing, missing}), false},
		{"session missing is no fault of ours", append(ms(100, 100), outcome{time.Millisecond, missing}), true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			if got := report(&out, plan{}, row.outcomes); got != row.want {
				t.Fatalf("holds: %v, want %v\n%s", got, row.want, &out)
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

func TestSessionLoopRegistersAgainAfterItsLeaseIsRevoked(t *testing.T) {
	ctx := t.Context()
	lab := harness.ForTest(t)
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	link, err := harness.NewLink(lab, etcd)
	if err != nil {
		t.Fatal(err)
	}
	history, err := lab.Watch(ctx, etcd, "/session/")
	if err != nil {
		t.Fatal(err)
	}
	loop, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- keepSession(loop, link, "/session/n1", 3*time.Second) }()
	first, err := history.Await(ctx, harness.Patience, "the first put", 0, harness.PutKey("/session/n1"))
	if err == nil {
		_, err = etcd.Client().Revoke(ctx, clientv3.LeaseID(first.Lease))
	}
	if err == nil {
		_, err = history.Await(ctx, harness.Patience, "the second put", first.Revision+1, harness.PutKey("/session/n1"))
	}
	end()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
}

// CI runs a bench that failed once more, unless it saw a safety rule broken.
func TestARegistrationThatIsNotDrainedIsAViolation(t *testing.T) {
	const key = "/cluster/brokers/n1/state"
	for name, row := range map[string]struct {
		changes         []harness.Change
		ok, isViolation bool
	}{
		"drained in the same revision": {[]harness.Change{{Key: key, Value: `{"mode":"drained","reason":"registration_expired"}`}}, true, false},
		"drained, another reason":      {[]harness.Change{{Key: key, Value: `{"mode":"drained","reason":"stale_restart"}`}}, false, false},
		"all leases ended at once":     {[]harness.Change{{Key: key, Value: `{"mode":"active","reason":"fleet_expired"}`}}, false, false},
		"active":                       {[]harness.Change{{Key: key, Value: `{"mode":"active","reason":"boot"}`}}, false, true},
		"no state in that revision":    {[]harness.Change{{Key: "/cluster/register/n1", Value: `{}`}}, false, true},
	} {
		err := drainedIn(row.changes, 7, key)
		if (err == nil) != row.ok || (err != nil && strings.Contains(err.Error(), harness.Violation)) != row.isViolation {
			t.Errorf("%s: %v", name, err)
		}
	}
}
