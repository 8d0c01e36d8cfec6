package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/lab/harness"
)

// This file is a node as those beside it see it: the probes' answers and the journal.

// firstReady is when /ready was first seen to be 200 since a moment.
func (n *node) firstReady(since time.Time) (at time.Time) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, n.id+" to be seen ready", func(context.Context) (ok bool, saw string) {
		at, ok = n.probes.FirstReady(since)
		return ok, n.probes.String()
	}))
	return at
}

// probed returns now, once the probes were asked after it.
func (n *node) probed() (now time.Time) {
	n.t.Helper()
	now = time.Now()
	n.recorded("probed", func(s harness.ProbeSample) bool { return s.Until.After(now) })
	return now
}

// alwaysReady checks every answer of /ready since a moment.
func (n *node) alwaysReady(since time.Time) {
	n.t.Helper()
	n.should(n.probes.AlwaysReady(since, n.probed()))
}

// neverReady checks every answer of /ready since a moment at which it was not 200.
func (n *node) neverReady(since time.Time) {
	n.t.Helper()
	n.should(n.probes.NeverReady(since, n.probed()))
}

// alwaysLive checks every answer of /live since a moment; the sidecar ran all the while.
func (n *node) alwaysLive(since time.Time) {
	n.t.Helper()
	n.should(n.probes.AlwaysLive(since, n.probed()))
}

// awaitEvent waits for the first event of that kind in the journal since a moment.
func (n *node) awaitEvent(since time.Time, kind string, to ...string) (event harness.Event) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, n.ttl+bound, "event "+kind+" "+strings.Join(to, " or ")+" of "+n.id, func(ctx context.Context) (bool, string) {
		events, err := n.sidecar.Events(ctx)
		if err != nil {
			return false, err.Error()
		}
		for _, e := range events {
			if e.At.After(since) && e.Kind == kind && slices.Contains(to, e.To) {
				event = e
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", events)
	}))
	return event
}

// neverDetached checks the journal since a moment.
func (n *node) neverDetached(since time.Time) {
	n.t.Helper()
	events, err := n.sidecar.Events(n.ctx)
	n.must(err)
	if len(events) == 0 {
		n.t.Errorf("%s: the journal is empty", n.id)
	}
	for _, e := range events {
		if e.At.After(since) && e.Kind == "attachment" && e.To == "detached" {
			n.t.Errorf("%s detached at %s: %s", n.id, e.At.Format("15:04:05.000"), e.Reason)
		}
	}
}
