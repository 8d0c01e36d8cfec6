//go:build pulsar

package pulsar

import (
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// flow is traffic that ends with its test.
type flow struct {
	*Traffic
	began time.Time
}

// startTraffic returns when each topic has stored and given back a message.
func startTraffic(t *testing.T, topics []string, all []*couple) flow {
	t.Helper()
	began := time.Now()
	var brokers []*harness.ApacheBroker
	for _, c := range all {
		brokers = append(brokers, c.broker)
	}
	f, err := StartTraffic(t.Context(), topics, brokers...)
	if f != nil {
		t.Cleanup(f.Close)
	}
	ok(t, err)
	return flow{f, began}
}

// flowing waits until each topic has stored a message from now on.
func (f flow) flowing(t *testing.T) {
	t.Helper()
	ok(t, f.AwaitFlow(t.Context(), bootBound))
}

// stop ends the traffic and wants every message that was acknowledged, and no topic away for
// longer than that.
func (f flow) stop(t *testing.T, longest time.Duration) {
	t.Helper()
	all := f.Stop(t.Context())
	for _, one := range all {
		t.Log(one)
		if one.Lost > 0 || one.Acknowledged == 0 {
			t.Errorf("%s; want none lost", one)
		}
	}
	f.wantServed(t, all, longest)
}

// wantServed wants no topic away for longer than that.
func (f flow) wantServed(t *testing.T, all []Tally, longest time.Duration) {
	t.Helper()
	var gap time.Duration
	for _, one := range all {
		gap = max(gap, one.Gap)
	}
	standstill.Check(t, standstill.Judge("served again", f.began, time.Now(), gap, longest))
}
