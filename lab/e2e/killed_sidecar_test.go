package e2e

import (
	"fmt"
	"testing"
	"time"
)

// A sidecar that comes back in a cut has nobody to ask about the lease of the one before,
// whose fence point is its own all the same.
func TestASidecarThatIsKilledInACutFencesAtTheFencePointOfItsLease(t *testing.T) {
	takesLong(t)
	t.Parallel()
	for _, tenth := range []int{1, 5, 8} {
		for mode, control := range map[string]bool{"process control": true, "no process control": false} {
			t.Run(fmt.Sprintf("%d tenths of the TTL, %s", tenth, mode), func(t *testing.T) {
				t.Parallel()
				n := newStage(t).prepare("n1", nodeOptions{Cuttable: true, TTL: 6 * time.Second})
				if control {
					n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
				} else {
					n.sidecar.SetFlags("--guard", "off")
				}
				n.start()
				n.awaitReady()
				tr := n.publishAlways()
				tr.await(served, time.Now())
				revision := n.revision()
				n.must(n.link.Cut())
				cut := time.Now()
				<-time.After(n.ttl * time.Duration(tenth) / 10) // a moment of the fault, not a state
				n.must(n.sidecar.Kill())
				n.must(n.sidecar.Start())
				gone := n.awaitExpiry(revision)
				n.waitOut(n.ttl)
				tr.unserved(gone.At, time.Now())
				// The last renewal was sent before the cut, so the fence point was this at the latest.
				fence := cut.Add(n.ttl * 2 / 3)
				last := tr.lastServed()
				t.Logf("last served %v after the fence point, %v before the key was gone", last.Sub(fence).Round(time.Millisecond), gone.At.Sub(last).Round(time.Millisecond))
				if tenth < 6 { // else it came back behind it
					within(t, "served behind the fence point", fence, last.Sub(fence), time.Second)
				}
			})
		}
	}
}

// lastServed is when publishers last got a message stored.
func (tr *traffic) lastServed() (last time.Time) {
	for _, h := range tr.heard() {
		if h.What == served || h.What == mixed {
			last = h.Until
		}
	}
	return last
}
