package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/recovery"
)

// A backup is restored after minutes in which only others wrote, and every sidecar is
// restarted: what each knows then is what it wrote down in time.
func TestARestoredBackupDrainsEverySidecarThatIsRestarted(t *testing.T) {
	for name, stop := range map[string]func(n *node){
		"killed":           func(n *node) { n.crashSidecar(0) },
		"stopped in order": (*node).stopSidecar,
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(schedule{Settings: settings{Nodes: 2, Topics: 2, TTL: 8 * time.Second, Policy: "drain", Latency: time.Millisecond}})
				end := f.build(dir)
				for i, n := range f.nodes {
					key := f.keys.Assignment(n.id, f.topic(i))
					f.txn(key, false, put(key))
					n.broker.start()
					n.startSidecar()
				}
				time.Sleep(15 * time.Second)
				goesOn := func(d time.Duration) {
					for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(10 * time.Second) {
						f.admin(func() { _, _ = f.store.Put(f.life, &pb.PutRequest{Key: []byte("/life")}) })
					}
				}
				backup := f.store.Content()
				goesOn(3 * time.Minute)
				for _, n := range f.nodes {
					stop(n)
				}
				f.checks.elected()
				f.store.Rewind(backup)
				for _, n := range f.nodes {
					n.startSidecar()
				}
				time.Sleep(20 * time.Second)
				for i, n := range f.nodes {
					if s, ok := n.status(); !ok || s.Mode != string(recovery.Drained) || s.Reason != string(recovery.ReasonRestoredBackup) {
						t.Errorf("%s is %s (%s), want drained, restored_backup", n.id, s.Mode, s.Reason)
					}
					if n.ready() || n.broker.holds(f.topic(i)) {
						t.Errorf("%s serves what may have another owner by now", n.id)
					}
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
