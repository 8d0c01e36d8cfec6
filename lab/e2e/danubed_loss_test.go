package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// awaitSuccessor waits until the broker's next process is adopted, under its own number.
func (n *node) awaitSuccessor(former string, after int64) harness.Change {
	n.t.Helper()
	c := n.awaitRegistered(after)
	if c.Key == n.keys.Registration(former) {
		n.t.Fatalf(harness.Violation+"%s was registered again under the number of a process that has gone", n.id)
	}
	return c
}

func TestDanubeWithEtcdAwayPastTheTTLServesAllAgainWhenItIsBack(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeChildKind)
	nodes := []*node{s.supervise("n2", nodeOptions{}), s.supervise("n1", nodeOptions{})}
	var ended []<-chan time.Time
	var former []string
	for _, n := range nodes {
		n.produces(3)
		ended, former = append(ended, n.ending()), append(former, n.name())
	}
	from := s.revision()
	s.must(s.etcd.Freeze())
	t.Cleanup(func() { _ = s.etcd.Thaw() })
	frozen := time.Now()
	for i, n := range nodes {
		select {
		case at := <-ended[i]:
			t.Logf("%s ended %v after etcd froze", n.id, at.Sub(frozen).Round(time.Millisecond))
			within(t, n.id+" ended after etcd froze", frozen, at.Sub(frozen), n.ttl)
		case <-time.After(n.ttl + bound):
			t.Fatalf("%s was not stopped", n.id)
		}
	}
	select {
	case <-time.After(time.Until(frozen.Add(2 * ttl))): // as the scenario has it
	case <-s.ctx.Done():
	}
	s.must(s.etcd.Thaw())
	for i, n := range nodes {
		n.awaitSuccessor(former[i], from)
		n.awaitReady()
		n.await("active", func(st harness.Status) bool { return st.Mode == "active" })
	}
	s.must(harness.Await(s.ctx, ttl+bound, "all topics to be served", func(context.Context) (bool, string) {
		served, want := 0, 0
		for _, n := range nodes {
			st := n.await("a status", func(harness.Status) bool { return true })
			served, want = served+st.Topics.Served, want+len(n.topics)
		}
		return served == want, fmt.Sprintf("%d of %d", served, want)
	}))
	// The brokers' leader may see a registration go before the next process has what was
	// under it, and gives the topics anew. Holdfast gives none up, also not by what was asked
	// of etcd while it was away and is carried out now.
	s.never("Holdfast gave a topic up", from, func(c harness.Change) bool {
		return strings.HasPrefix(c.Key, "/cluster/unassigned/") && strings.Contains(c.Value, "unload")
	})
	for _, n := range nodes {
		n.keeps(slices.DeleteFunc(slices.Clone(n.topics), func(topic string) bool {
			return len(s.puts("/cluster/unassigned"+topic, from)) > 0
		}), 3)
	}
}

func TestDanubeACleanStopOfTheSidecarEndsTheBrokerBeforeItsRegistration(t *testing.T) {
	long(t)
	for kindName, k := range map[string]kind{"with a pid file": danubeKind, "supervised": danubeChildKind} {
		t.Run(kindName, func(t *testing.T) {
			t.Parallel()
			s := newStageOf(t, k)
			add := s.add
			if kindName == "supervised" {
				add = s.supervise
			}
			peer, n := add("n2", nodeOptions{}), add("n1", nodeOptions{})
			former, from, ended := n.name(), s.revision(), n.ending()
			ctx, cancel := context.WithTimeout(s.ctx, bound)
			defer cancel()
			s.must(n.sidecar.Stop(ctx))
			if code, err := n.sidecar.ExitCode(); err != nil || code != 0 {
				t.Errorf("exit code %d, %v", code, err)
			}
			n.endsInTime(ended, former, from) // it is never revoked
			peer.await("the topics", func(st harness.Status) bool { return st.Topics.Served == len(peer.topics)+len(n.topics) })
		})
	}
}
