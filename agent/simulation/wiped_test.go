package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/probes"
	"holdfast/recovery"
)

// While its broker is down for a moment, the disk is exchanged for an empty one.
func TestABrokerIsDrainedThatComesBackOnAnEmptyDisk(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("the sidecar restarts too: %t", both), func(t *testing.T) {
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(schedule{Settings: settings{Nodes: 2, Topics: 2, TTL: 8 * time.Second, Policy: "drain", Latency: time.Millisecond}})
				end := f.build(dir)
				wiped := f.nodes[0]
				wiped.broker.data = filepath.Join(dir, "disk")
				disk := func(n int) {
					held := filepath.Join(wiped.broker.data, "jetstream")
					_ = os.Rename(held, fmt.Sprint(held, n))
					if err := os.MkdirAll(held, 0o700); err != nil {
						t.Fatal(err)
					}
				}
				disk(0)
				for i, n := range f.nodes {
					key := f.keys.Assignment(n.id, f.topic(i))
					f.txn(key, false, put(key))
					n.broker.start()
					n.startSidecar()
				}
				time.Sleep(15 * time.Second)
				if probes.Scan(t.Context(), wiped.broker.data, nil, time.Time{}).Identity == "" {
					t.Log("no birth times here: nothing is to be seen")
				} else {
					is := func(mode recovery.Mode, reason recovery.Reason) {
						t.Helper()
						s, ok := wiped.status()
						if !ok || s.Mode != string(mode) || s.Reason != string(reason) || wiped.ready() != (mode == recovery.Active) {
							t.Errorf("%s (%s), ready %t; want %s (%s)", s.Mode, s.Reason, wiped.ready(), mode, reason)
						}
					}
					restart := func(meanwhile func()) {
						wiped.broker.kill()
						if both {
							wiped.crashSidecar(0)
						}
						meanwhile()
						wiped.broker.start()
						wiped.startSidecar()
						time.Sleep(15 * time.Second)
					}
					is(recovery.Active, recovery.ReasonBoot)
					restart(func() {})
					is(recovery.Active, recovery.ReasonFastRestart)
					restart(func() { disk(1) })
					is(recovery.Drained, recovery.ReasonDataMissing)
					wiped.steer("activate")
					restart(func() {})
					is(recovery.Active, recovery.ReasonFastRestart)
					aside := func(from, to string) {
						if err := os.Rename(from, to); err != nil {
							t.Fatal(err)
						}
					}
					data := wiped.broker.data
					restart(func() { aside(data, data+".away") })
					is(recovery.Drained, recovery.ReasonDataMissing)
					wiped.steer("activate")
					restart(func() {}) // once is enough
					is(recovery.Active, recovery.ReasonFastRestart)
					restart(func() { aside(data+".away", data) })
					is(recovery.Active, recovery.ReasonFastRestart)
					aside(data, data+".away") // while it runs
					time.Sleep(15 * time.Second)
					is(recovery.Active, recovery.ReasonFastRestart)
				}
				for _, n := range f.nodes {
					n.stopSidecar()
				}
				f.close(end)
				for _, v := range f.checks.found() {
					t.Error(v)
				}
			})
		})
	}
}
