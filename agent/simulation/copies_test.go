package simulation

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster/memory"
)

// A volume was cloned: two sidecars have one state directory, and brokers of one name. What
// the checks say of one node would be said of two, so this is no schedule.
func TestOfTwoSidecarsWithOneStateDirectoryTheOlderServesNothing(t *testing.T) {
	dir := scratch(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(schedule{Settings: settings{Nodes: 2, Topics: 1, TTL: 8 * time.Second, Policy: "drain", Latency: time.Millisecond}})
		end := f.build(dir)
		f.store.Observe(nil)
		older, newer := f.nodes[0], f.nodes[1]
		newer.id, newer.broker.id = older.id, older.broker.id
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
		newer.broker.start()
		newer.startSidecar()
		// The older one finds out by the proof of its next renewal, and fences.
		bound := f.settings.TTL/8 + obeyed
		epochs, both := map[int64]bool{}, time.Time{}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			f.store.Inspect(func(v memory.View) {
				if kv, ok := v.Get(f.keys.Registration(older.id)); ok {
					epochs[kv.ModRevision] = true
				}
			})
			switch served := older.broker.holds(f.topic(0)) && newer.broker.holds(f.topic(0)); {
			case !served:
				both = time.Time{}
			case both.IsZero():
				both = time.Now()
			case time.Since(both) > bound:
				t.Fatalf("both have served for %v: older: %s; newer: %s", time.Since(both), older.why(), newer.why())
			}
		}
		if older.ready() || older.broker.holds(f.topic(0)) || !newer.ready() {
			t.Errorf("after a minute: older: %s; newer: %s", older.why(), newer.why())
		}
		if len(epochs) > 3 {
			t.Errorf("the registration went to and fro: %d versions of it", len(epochs))
		}
		newer.stopSidecar()
		older.stopSidecar()
		f.close(end)
	})
}
