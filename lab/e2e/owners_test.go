package e2e

import (
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// topicState is how the node's own verb shows a topic.
func (n *node) topicState(topic string) harness.Topic {
	n.t.Helper()
	list, err := n.sidecar.Topics(n.ctx)
	n.must(err)
	for _, t := range list {
		if t.Topic == topic {
			return t
		}
	}
	return harness.Topic{}
}

// Two brokers are assigned one topic. The lock says who serves it, and the other takes it
// over when the lock goes with the lease of a broker that died, not before and not later.
func TestATopicOfTwoBrokersIsServedByTheOwnerOfItsLock(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	const shared = "/default/shared"
	flags := []string{"--ownership-locks", "on"}
	n1 := s.add("n1", nodeOptions{Topics: []string{shared, "/default/one"}, Flags: flags})
	n2 := s.prepare("n2", nodeOptions{Topics: []string{shared, "/default/two"}, Flags: flags})
	n2.start()
	n2.awaitReady() // all the same
	if is := n2.topicState(shared); is.State != "held_elsewhere" || !strings.Contains(is.Error, "broker n1") {
		t.Errorf("n2 tells of %+v, want it held elsewhere, by broker n1", is)
	}
	if is := n1.topicState(shared); is.State != "served" {
		t.Errorf("n1 tells of %+v, want it served", is)
	}
	before := s.revision()
	n1.kill()
	key := "/cluster/owners" + shared
	gone, err := s.history.Await(s.ctx, ttl+bound, "the end of n1's lock", before+1, harness.DeletedKey(key))
	s.must(err)
	taken, err := s.history.Await(s.ctx, bound, "n2's lock", gone.Revision, harness.PutKey(key))
	s.must(err)
	if !strings.Contains(taken.Value, `"broker_id":"n2"`) {
		t.Errorf("taken by %s", taken.Value)
	}
	within(t, "taken, at once by the watch", gone.At, taken.At.Sub(gone.At), time.Second)
	n2.await("the shared topic to be served", func(st harness.Status) bool { return st.Topics.Served == 2 })
	n2.publishes()
}
