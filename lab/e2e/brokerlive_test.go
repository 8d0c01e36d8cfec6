package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// Without a way to stop the broker its own liveness probe is the only hand on it. The
// broker hangs for longer than NATS' own pings take to give a connection up, and asks
// for a restart all the while; one that was restarted is left alone.
func TestBrokerLiveAsksForARestartOfABrokerThatHangs(t *testing.T) {
	long(t)
	s := newStage(t)
	s.peer("n2") // alone it would be held, and asked for nothing
	n := s.add("n1", nodeOptions{})
	answers := func(want int) {
		t.Helper()
		s.must(harness.Await(s.ctx, n.ttl+bound, fmt.Sprintf("/broker/live to answer %d", want), func(ctx context.Context) (bool, string) {
			code, body, err := n.sidecar.Probe(ctx, "/broker/live")
			return err == nil && code == want, fmt.Sprint(code, body, err)
		}))
	}
	answers(http.StatusOK)
	s.must(n.nats.Freeze())
	answers(http.StatusServiceUnavailable)
	for end := time.Now().Add(35 * time.Second); time.Now().Before(end); {
		if code, body, err := n.sidecar.Probe(s.ctx, "/broker/live"); err != nil || code != http.StatusServiceUnavailable {
			t.Fatalf("while it hangs: %d %q %v", code, body, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-s.ctx.Done():
			return
		}
	}
	s.must(n.nats.Kill())
	answers(http.StatusOK)
	s.must(n.nats.Launch())
	n.await("drained: the peer lived on", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	n.activate()
	answers(http.StatusOK)
}
