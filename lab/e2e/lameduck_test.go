package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// lameDuck is for how long a server in lame duck mode keeps its clients, of whom it then takes
// leave one after the other. JetStream and the client port are down from the first moment.
const lameDuck = 20 * time.Second

// A server that is told to leave its clients (nats-server --signal ldm) says so, and has the time
// that it takes for that, beside one that is well.
func TestAServerInLameDuckModeIsLeftToItsEndAndComesBackActive(t *testing.T) {
	long(t)
	for _, row := range []struct {
		name   string
		ttl    time.Duration
		late   bool // it is back when its lease is over
		reason string
	}{
		{"back within its lease", 4 * ttl, false, "fast_restart"},
		{"back after it", ttl, true, "planned_restart"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newSharedStage(t)
			peer := s.stoppable("n2", "")
			n := s.stoppable("n1", `lame_duck_grace_period: "`+lameDuck.String()+`", lame_duck_duration: "30s"`, "--lease-ttl", row.ttl.String())
			n.must(harness.Await(s.ctx, bound, "the process to be recognized", func(context.Context) (bool, string) {
				return strings.Contains(n.sidecar.LogTail(100), "process is recognized"), ""
			}))
			for range 4 {
				c, err := n.nats.Connect()
				s.must(err)
				t.Cleanup(c.Close)
			}
			since, revision, pid, exited := time.Now(), s.revision(), n.nats.PID(), n.nats.Exited()
			s.must(n.nats.Signal(syscall.SIGUSR2))
			n.awaitEvent(since, "broker", "leaving")
			select {
			case <-exited:
			case <-time.After(2*lameDuck + bound):
				t.Fatal("the server does not end")
			}
			if took := time.Since(since); took < lameDuck {
				t.Errorf(harness.Violation+"ended after %v", took)
			}
			if code, err := n.nats.ExitCode(); code != 0 || err != nil {
				t.Errorf(harness.Violation+"process %d ended with %d, %v", pid, code, err)
			}
			n.awaitEvent(since, "registration", "left")
			if row.late {
				n.awaitExpiry(revision)
			}
			s.must(n.nats.Start(s.ctx))
			n.awaitReady()
			n.isInMode("active", row.reason)
			events, err := n.sidecar.Events(s.ctx)
			s.must(err)
			for _, e := range events {
				if e.At.After(since) && (e.Kind == "fence" && strings.Contains(e.To, "stop") || e.To == "guard_fired" || e.To == "detached" && !row.late) {
					t.Errorf(harness.Violation+"%+v", e)
				}
			}
			peer.neverDetached(since)
		})
	}
}
