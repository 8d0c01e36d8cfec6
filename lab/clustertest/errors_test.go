package clustertest

import (
	"testing"
	"time"

	"holdfast/cluster"
)

// What etcd answers that says nothing of its health, nor of the way to it, must not be
// taken for either.
func TestARequestThatIsRefusedForItselfHasNoClass(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		c := open(t, s.config(t))
		_, _, err := c.Grant(bounded(t), 290*365*24*time.Hour)
		if class := cluster.Classify(err); err == nil || class != cluster.ClassOther {
			t.Errorf("a TTL of centuries: %v of class %q", err, class)
		}
	})
}
