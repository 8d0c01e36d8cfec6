package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// revoke ends the node's lease by an outsider's hand, and returns the deletion.
func (n *node) revoke() harness.Change {
	n.t.Helper()
	from := n.revision()
	_, err := n.etcd.Client().Revoke(n.ctx, n.registration().Lease)
	n.must(err)
	return n.awaitExpiry(from)
}

// events are the sidecar's of that kind that lead there, of all its lives.
func (n *node) events(kind, to string) []harness.Event {
	n.t.Helper()
	all, err := n.sidecar.Events(n.ctx)
	n.must(err)
	return slices.DeleteFunc(all, func(e harness.Event) bool { return e.Kind != kind || e.To != to })
}

// stopped waits for the end of the broker and of the sidecar that the session policy
// brings about, and returns the sidecar's last line. The sidecar must have failed.
func (n *node) stopped() string {
	n.t.Helper()
	n.must(harness.Await(n.ctx, 4*n.ttl+bound, "the end of "+n.id, func(context.Context) (bool, string) {
		return !n.sidecar.Running(), n.sidecar.LogTail(3)
	}))
	last := strings.TrimSpace(n.sidecar.LogTail(1))
	if code, err := n.sidecar.ExitCode(); err != nil || code != 1 {
		n.t.Errorf("exit code %d, %v; want 1", code, err)
	}
	if n.nats.Running() {
		n.t.Error("the broker outlived its sidecar")
	}
	return last
}

// silent checks that the node wrote nothing to etcd after revision.
func (n *node) silent(after int64) {
	n.t.Helper()
	n.never(n.id+" wrote to etcd", after, func(c harness.Change) bool {
		return !c.Deleted && strings.Contains(c.Key, "/"+n.id) && strings.HasPrefix(c.Key, "/cluster/")
	})
}

// governed prepares a node whose sidecar can stop the broker, and does so by its
// session policy alone: the fence ladder ends before.
func (s *stage) governed(o nodeOptions, flags ...string) *node {
	s.t.Helper()
	n := s.prepare("n1", o)
	n.sidecar.SetFlags(append(flags, "--broker-pid-file", n.nats.PIDFile, "--fence", "ready,quiesce")...)
	return n
}

func TestReconnectGivesUpWhenTheRetriesAreUsedUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.add("n2", nodeOptions{})
	n1 := s.governed(nodeOptions{Cuttable: true}, "--session-expired-policy", "reconnect", "--session-retries", "2")
	n1.start()
	n1.awaitReady()
	from := s.revision()
	n1.must(n1.link.Cut())
	gone := n1.awaitExpiry(from)
	last := n1.stopped()
	if !strings.Contains(last, "in 2 attempts since the registration ran out (--session-expired-policy reconnect, --session-retries 2): the broker was stopped (") {
		t.Errorf("the last line is %q", last)
	}
	n1.must(n1.link.Heal())
	n1.silent(gone.Revision)
	detached, given := n1.events("attachment", "detached"), n1.events("agent", "shutdown")
	if len(detached) == 0 || len(given) != 1 || given[0].ID < detached[0].ID || given[0].Reason != "retries_used_up" {
		t.Errorf("not detached, and then given up: %+v, %+v", detached, given)
	}
}
