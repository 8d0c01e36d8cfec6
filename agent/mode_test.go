package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
)

// An etcd that is full goes on to renew leases.
func TestAStateKeyThatEtcdRefusesIsWrittenAgainAtAPace(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		store := etcd.New(etcd.Config{})
		var writes atomic.Int32
		store.SetFault(func(string) error {
			writes.Add(1)
			return etcd.ErrNoSpace
		})
		way := etcd.NewLink()
		way.SetDelay(func(etcd.Direction) time.Duration { return 5 * time.Millisecond })
		l.inLoop(func() {
			l.main = cluster.Over(cluster.Config{}, store.Conn(way), nil)
			l.stateSeen(nil, "", 1_000_000, 0, 1_000_000)
		})
		l.until(l.age() + time.Minute)
		if n := writes.Load(); n < 10 || n > 61 {
			t.Errorf("%d writes in a minute, want at most one each %v", n, assertAgain)
		}
		store.SetFault(nil)
		l.until(l.age() + 3*time.Second)
		l.inLoop(func() {
			if l.reassert {
				t.Error("not written although etcd takes it")
			}
		})
	})
}
