package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// healthInterval is the one by default. The guard waits for three of them.
const healthInterval = time.Second

// Somebody who works on the broker's streams in an outage of etcd knows nothing of leases.
func TestAQuiescedTopicThatOthersBringBackIsQuiescedAgainAndTheBrokerRunsOn(t *testing.T) {
	takesLong(t)
	t.Parallel()
	for name, bring := range map[string]func(context.Context, *nats.Conn, string) error{
		"subject restored": harness.RestoreSubject, "stream created": harness.CreateStream,
	} {
		for mode, control := range map[string]bool{"process control": true, "no process control": false} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				n := newStage(t).prepare("n1", nodeOptions{Cuttable: true, Topics: []string{"/default/orders"}})
				n.sidecar.SetFlags("--health-interval", healthInterval.String())
				if control {
					n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
				}
				n.start()
				n.awaitReady()
				tr := n.publishAlways()
				revision, pid := n.revision(), n.nats.PID()
				n.must(n.link.Cut())
				tr.await(refused, time.Now())
				c, err := n.nats.Connect()
				n.must(err)
				t.Cleanup(c.Close)
				back := func() {
					from := time.Now()
					n.must(bring(n.ctx, c, n.topics[0]))
					tr.await(refused, time.Now().Add(time.Second))
					within(t, "served after it was brought back", from, max(0, tr.lastServed().Sub(from)), healthInterval+time.Second)
				}
				back()
				n.awaitExpiry(revision)
				back()
				// The guard waits for as long as somebody keeps proving that nothing is served.
				n.waitOut(n.ttl)
				if !n.nats.Running() || n.nats.PID() != pid {
					t.Error("the broker was stopped, and nothing was served")
				}
				n.must(n.link.Heal())
				n.await("attachment", func(st harness.Status) bool { return st.Attachment == "attached" })
			})
		}
	}
}

// Nobody looks at what is served any more, so the broker must go.
func TestAQuiescedBrokerIsStoppedWhenItsSidecarFreezesInTheOutage(t *testing.T) {
	takesLong(t)
	t.Parallel()
	n := newStage(t).prepare("n1", nodeOptions{Cuttable: true, Topics: []string{"/default/orders"}})
	n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile, "--health-interval", healthInterval.String())
	n.start()
	n.awaitReady()
	n.awaitGuard(0)
	tr := n.publishAlways()
	revision := n.revision()
	n.must(n.link.Cut())
	tr.await(refused, time.Now())
	n.awaitExpiry(revision)
	c, err := n.nats.Connect()
	n.must(err)
	t.Cleanup(c.Close)
	n.must(n.sidecar.Freeze())
	from := time.Now()
	n.must(harness.RestoreSubject(n.ctx, c, n.topics[0]))
	select {
	case <-n.nats.Exited():
	case <-time.After(n.ttl + bound):
		t.Fatal(harness.Violation + "a topic that others brought back is served, and nobody stops it")
	}
	// Three health intervals after the last proof, and no beat for two seconds.
	within(t, "stopped after the topic was brought back", from, time.Since(from), 4*time.Second)
	n.must(n.sidecar.Thaw())
}
