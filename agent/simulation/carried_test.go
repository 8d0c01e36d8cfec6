package simulation

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Some ways to etcd carry every call but renewals, or but what streams. A read tells that the key
// is gone, and the broker is registered again, each time for as long as it may serve.
func TestABrokerWhoseRenewalsAloneFailIsRegisteredAgain(t *testing.T) {
	const ttl = 8 * time.Second
	for name, refused := range map[string][]string{
		"renewals":             {"/LeaseKeepAlive"},
		"renewals and watches": {"/LeaseKeepAlive", "/Watch"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(schedule{Settings: settings{Nodes: 1, Topics: 1, TTL: ttl, Policy: "drain", Latency: time.Millisecond}})
				end := f.build(dir)
				var half atomic.Bool
				f.store.SetFault(func(method string) error {
					for _, one := range refused {
						if half.Load() && strings.HasSuffix(method, one) {
							return storeFaults[0]
						}
					}
					return nil
				})
				n := f.nodes[0]
				n.broker.start()
				n.startSidecar()
				time.Sleep(2 * ttl)
				s, ok := n.status()
				if !ok || s.Attachment != "attached" {
					t.Fatalf("%v, %s before anything fails", ok, s.Attachment)
				}
				f.checks.networks(1, true)
				half.Store(true)
				ready := 0
				epochs := map[int64]bool{s.Epoch: true}
				for range 10 * int(ttl/time.Second) {
					time.Sleep(time.Second)
					if s, ok := n.status(); ok && s.Ready.OK {
						ready++
						epochs[s.Epoch] = true
					}
				}
				if len(epochs) < 4 || ready < 20 {
					t.Errorf("registered %d times in 10 TTLs, and ready for %d of %d s: want it anew about each one", len(epochs)-1, ready, 10*int(ttl/time.Second))
				}
				half.Store(false)
				f.checks.networks(-1, true)
				time.Sleep(2 * ttl)
				if s, ok := n.status(); !ok || !s.Ready.OK || s.Mode != "active" {
					t.Errorf("when all is carried: %v, %s (%s), %v", ok, s.Mode, s.Reason, s.Ready.Causes)
				}
				n.stopSidecar()
				f.close(end)
				for _, v := range f.checks.found() {
					t.Error(v)
				}
			})
		})
	}
}
