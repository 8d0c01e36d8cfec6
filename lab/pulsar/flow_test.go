//go:build pulsar

package pulsar

import (
	"testing"
	"time"

	"holdfast/lab/harness"
)

// flow is traffic that ends with its test.
type flow struct{ *Traffic }

// startTraffic returns when each topic has stored and given back a message.
func startTraffic(t *testing.T, topics []string, brokers ...*harness.ApacheBroker) flow {
	t.Helper()
	f, err := StartTraffic(t.Context(), topics, brokers...)
	if f != nil {
		t.Cleanup(f.Close)
	}
	ok(t, err)
	return flow{f}
}

// flowing waits until each topic has stored a message from now on.
func (f flow) flowing(t *testing.T) {
	t.Helper()
	ok(t, f.AwaitFlow(t.Context(), bootBound))
}

// stop ends the publishing, waits for what is to be received, and tells what became of it.
func (f flow) stop(t *testing.T) []Tally {
	t.Helper()
	all := f.Stop(t.Context())
	for _, one := range all {
		t.Log(one)
	}
	return all
}

// nothingLost wants every message that was acknowledged, and no topic away for longer than that.
func nothingLost(t *testing.T, all []Tally, longest time.Duration) {
	t.Helper()
	for _, one := range all {
		if one.Lost > 0 || one.Acknowledged == 0 || one.Gap > longest {
			t.Errorf("%s; want none lost and no gap above %v", one, longest)
		}
	}
}
