package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// streams is what JetStream has, as text.
func (n *node) streams() string {
	n.t.Helper()
	c, err := n.nats.Connect()
	n.must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(n.ctx, bound)
	defer cancel()
	msg, err := c.RequestWithContext(ctx, "$JS.API.STREAM.LIST", nil)
	n.must(err)
	var list struct {
		Streams []struct {
			Config json.RawMessage `json:"config"`
		} `json:"streams"`
	}
	n.must(json.Unmarshal(msg.Data, &list))
	return fmt.Sprintf("%s", list.Streams)
}

// wouldHave is how often the shadow would have done something.
func (n *node) wouldHave(action string) (count float64) {
	n.t.Helper()
	text, err := n.sidecar.Metrics(n.ctx)
	n.must(err)
	count, ok := seriesValue(text, `holdfast_would_have_total{action="`+action+`"}`)
	if !ok {
		n.t.Errorf("no series for %s", action)
	}
	return count
}

func TestAShadowDecidesEverythingAndDoesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	n := s.prepare("n1", nodeOptions{Cuttable: true})
	n.sidecar.SetFlags("--shadow", "--broker-pid-file", n.nats.PIDFile)
	s.must(n.nats.Start(s.ctx))
	c, err := n.nats.Connect()
	s.must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	_, err = c.RequestWithContext(ctx, "$JS.API.STREAM.CREATE.theirs", []byte(`{"name":"theirs","subjects":["theirs"]}`))
	s.must(err)
	s.revisionSeen()
	before, revision, pid := n.streams(), s.revision(), n.nats.PID()

	s.must(n.sidecar.Start())
	n.await("the shadow to suppose that all is well", func(st harness.Status) bool {
		return st.Attachment == "attached" && st.Mode == "active" && st.Ready.OK && st.Topics.Served == len(n.topics)
	})
	for action, want := range map[string]float64{"register": 1, "set_mode": 1, "load": 2, "quiesce": 0, "stop": 0, "revoke": 0} {
		if got := n.wouldHave(action); got != want {
			t.Errorf("would have %s %v times, want %v", action, got, want)
		}
	}
	leases, err := s.etcd.Client().Leases(s.ctx)
	s.must(err)
	if len(leases.Leases) != 1 {
		t.Errorf("leases %v, want the shadow's own", leases.Leases)
	}
	st, err := n.sidecar.Status(s.ctx)
	s.must(err)
	if !strings.HasPrefix(st.Summary, "shadow: ") {
		t.Errorf("summary %q", st.Summary)
	}
	for _, verb := range []string{"activate", "drain"} {
		res, err := n.sidecar.Verb(s.ctx, verb)
		s.must(err)
		if res.Exit != 3 || !strings.Contains(res.Stderr, "--shadow") {
			t.Errorf("%s: exit code %d, %s", verb, res.Exit, res.Stderr)
		}
	}

	// The lease is real, and so are its loss and what follows.
	s.must(n.link.Cut())
	n.await("the detachment", func(st harness.Status) bool { return st.Attachment == "detached" })
	s.must(harness.Await(s.ctx, bound, "quiesces to be counted", func(context.Context) (bool, string) {
		got := n.wouldHave("quiesce")
		return got == 2, fmt.Sprint(got)
	}))
	if code, body, err := n.sidecar.Probe(s.ctx, "/ready"); err != nil || code != http.StatusOK || !strings.Contains(body, "would have answered 503") {
		t.Errorf("/ready: %d %q %v", code, body, err)
	}
	s.must(harness.Await(s.ctx, n.ttl+bound, "the lease to run out", func(ctx context.Context) (bool, string) {
		res, err := s.etcd.Client().Leases(ctx)
		return err == nil && len(res.Leases) == 0, fmt.Sprint(res, err)
	}))
	s.must(n.link.Heal())
	n.await("the shadow to be back", func(st harness.Status) bool { return st.Attachment == "attached" })
	if got := n.wouldHave("register"); got != 2 {
		t.Errorf("would have registered %v times", got)
	}

	ended, done := context.WithTimeout(s.ctx, bound)
	defer done()
	s.must(n.sidecar.Stop(ended))
	if code, err := n.sidecar.ExitCode(); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, change := range s.history.Changes() {
		if change.Revision > revision {
			t.Errorf("written: %v", change)
		}
	}
	if now := s.revision(); now != revision {
		t.Errorf("etcd went from revision %d to %d", revision, now)
	}
	if after := n.streams(); after != before {
		t.Errorf("streams went from %s to %s", before, after)
	}
	if !n.nats.Running() || n.nats.PID() != pid {
		t.Error("the broker was stopped")
	}
	s.must(err)
}
