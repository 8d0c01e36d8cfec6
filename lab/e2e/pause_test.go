package e2e

import (
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// verb runs a verb that must succeed, and returns what it printed.
func (n *node) verb(verb string, args ...string) string {
	n.t.Helper()
	res, err := n.sidecar.Verb(n.ctx, verb, args...)
	n.must(err)
	if res.Exit != 0 {
		n.t.Fatalf("%s: exit code %d: %s", verb, res.Exit, res.Stderr)
	}
	return res.Stdout
}

func (n *node) pause(d string) {
	n.t.Helper()
	n.verb("pause", "--for", d, "--owner", "ops", "--reason", "disk swap")
}

// leftAlone checks that the one missing topic stays missing for several audits.
func (n *node) leftAlone() {
	n.t.Helper()
	n.await("the new assignment to be seen", func(st harness.Status) bool { return st.Topics.Missing == 1 })
	n.waitOut(time.Second)
	st, err := n.sidecar.Status(n.ctx)
	n.must(err)
	if st.Topics.Missing != 1 || st.Pause == nil || st.Pause.Owner != "ops" || st.Pause.Reason != "disk swap" {
		n.t.Errorf("not left alone: %s", st)
	}
}

var oftenAudited = []string{"--audit-interval", "200ms"}

func TestAPauseHoldsTopicsAndOutlivesTheSidecar(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	n1 := s.add("n1", nodeOptions{Flags: oftenAudited})
	if out := n1.verb("resume"); !strings.Contains(out, "was not paused: nothing to resume") {
		t.Errorf("resume without a pause: %s", out)
	}
	n1.pause("1h")
	n1.assign("/default/later")
	n1.leftAlone()
	since := n1.probed()

	before := n1.registration()
	n1.must(n1.sidecar.Kill())
	n1.must(n1.sidecar.Start())
	n1.leftAlone()
	n1.await("the registration to be held again", func(st harness.Status) bool { return st.Attachment == "attached" })
	if after := n1.registration(); after.CreateRevision != before.CreateRevision || after.Lease != before.Lease {
		t.Errorf("registration %+v after the restart, want %+v", after, before)
	}

	if out := n1.verb("resume"); !strings.Contains(out, "recovery goes on: the pause by ops (disk swap) is over") {
		t.Errorf("resume: %s", out)
	}
	n1.await("the topic to be loaded", func(st harness.Status) bool {
		return st.Pause == nil && st.Ready.OK && st.Topics.Missing == 0 && st.Topics.Served == len(n1.topics)
	})
	n1.publishes()
	if at := n1.firstReady(since); at.IsZero() {
		t.Error("never ready again")
	}
}

func TestALossDuringAPauseIsFencedAndDecidedAfterIt(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	s.add("n2", nodeOptions{})
	n1 := s.add("n1", nodeOptions{})
	n1.pause("1h")
	gone := n1.revoke()
	st := n1.await("fenced", func(st harness.Status) bool {
		return st.Attachment == "detached" && !st.Ready.OK && st.Topics.Served == 0 && strings.Contains(st.Summary, "register drained (registration_expired)")
	})
	if !strings.Contains(st.Summary, "Recovery is paused by ops") {
		t.Errorf("summary %q", st.Summary)
	}
	n1.waitOut(n1.ttl)
	s.never("written during the pause", gone.Revision, func(c harness.Change) bool {
		return c.Key == n1.keys.Registration("n1") || c.Key == n1.keys.State("n1")
	})
	n1.verb("resume")
	n1.withState(n1.awaitRegistered(gone.Revision), "drained", "registration_expired")
}

// revoke ends the node's lease by an outsider's hand, and returns the deletion.
func (n *node) revoke() harness.Change {
	n.t.Helper()
	from := n.revision()
	_, err := n.etcd.Client().Revoke(n.ctx, n.registration().Lease)
	n.must(err)
	return n.awaitExpiry(from)
}
