//go:build pulsar

package pulsar

import (
	"testing"

	"holdfast/lab/harness"
)

func TestTopicsShareTheBundlesEvenly(t *testing.T) {
	in := map[string]int{}
	for i, topic := range Topics(8) {
		b := harness.PulsarBundle(topic)
		if in[b]++; in[b] != i/harness.PulsarBundles+1 {
			t.Errorf("topic %d, %s, is the %dth in %s", i, topic, in[b], b)
		}
	}
}
