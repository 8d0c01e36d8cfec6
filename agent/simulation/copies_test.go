package simulation

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster/memory"
	"holdfast/recovery"
)

// twins is a node that is registered and serves, and another one beside it of the same name,
// with a copy of its state directory. What the checks say of one node would be said of two, so
// this is no schedule.
func twins(t *testing.T, claim func(t *testing.T, f *fleet, older, newer *node)) {
	dir := scratch(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(schedule{Settings: settings{Nodes: 2, Topics: 1, TTL: 32 * time.Second, Policy: "drain", Latency: time.Millisecond}})
		end := f.build(dir)
		f.store.Observe(nil)
		older, newer := f.nodes[0], f.nodes[1]
		newer.broker.mu.Lock()
		newer.id, newer.broker.id = older.id, older.broker.id
		newer.broker.instance = 100 // its processes are others
		newer.broker.mu.Unlock()
		key := f.keys.Assignment(older.id, f.topic(0))
		f.txn(key, false, put(key))
		older.broker.start()
		older.startSidecar()
		time.Sleep(15 * time.Second)
		if !older.ready() || !older.broker.holds(f.topic(0)) {
			t.Errorf("before there is a copy: %s", older.why())
		}
		if err := os.CopyFS(newer.dir, os.DirFS(older.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(newer.dir, "lock")); err != nil {
			t.Fatal(err)
		}
		claim(t, f, older, newer)
		newer.stopSidecar()
		older.stopSidecar()
		f.close(end)
	})
}

// A volume was cloned, with the broker's data on it.
func TestOfTwoSidecarsWithOneStateDirectoryTheCopyServesNothing(t *testing.T) {
	twins(t, func(t *testing.T, f *fleet, older, newer *node) {
		newer.broker.mu.Lock()
		newer.broker.topics[f.topic(0)] = true
		newer.broker.mu.Unlock()
		newer.broker.start()
		newer.startSidecar()
		written, began := map[int64]bool{}, time.Now()
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			f.store.Inspect(func(v memory.View) {
				if kv, ok := v.Get(f.keys.Registration(older.id)); ok {
					written[kv.ModRevision] = true
				}
			})
			if !older.ready() || !older.broker.holds(f.topic(0)) || newer.ready() {
				t.Fatalf("after %v: older: %s; newer: %s", time.Since(began), older.why(), newer.why())
			}
			// A process that has just come up serves before anybody asked it.
			if newer.broker.holds(f.topic(0)) && time.Since(began) > soon {
				t.Fatalf("both have served for %v: newer: %s", time.Since(began), newer.why())
			}
		}
		if len(written) != 1 {
			t.Errorf("%d versions of the registration: want that nobody touches it", len(written))
		}
		if s, ok := newer.status(); !ok || s.Attachment != "detached" || s.Registration.Present && s.Epoch != 0 {
			t.Errorf("the copy is %s", s.Attachment)
		}
		// The older one goes, and with it the conflict.
		older.broker.kill()
		older.stopSidecar()
		time.Sleep(30 * time.Second)
		if !newer.ready() || !newer.broker.holds(f.topic(0)) {
			t.Errorf("alone: %s", newer.why())
		}
	})
}

// A pod is started on another node, with its volume.
func TestAStateDirectoryThatWasMovedIsTakenUpWithinTheTTL(t *testing.T) {
	twins(t, func(t *testing.T, f *fleet, older, newer *node) {
		older.broker.kill()
		older.crashSidecar(0)
		newer.broker.start()
		newer.startSidecar()
		time.Sleep(20 * time.Second)
		if s, ok := newer.status(); !ok || s.Mode != string(recovery.Active) || s.Reason != string(recovery.ReasonFastRestart) || !newer.ready() {
			t.Errorf("%s (%s), %s; want active, fast_restart, before the lease has run out", s.Mode, s.Reason, newer.why())
		}
	})
}
