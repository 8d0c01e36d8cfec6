package clustertest

import (
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

func TestOutlivedFindsWhatNothingWillEnd(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		keys := c.Keys()
		expect := func(asks string, want ...string) {
			t.Helper()
			var ids []string
			for _, r := range must[[]cluster.Registration](t)(c.Outlived(bounded(t), asks)) {
				ids = append(ids, r.BrokerID)
				if r.LeaseID != 0 || r.ModRevision == 0 {
					t.Errorf("%+v", r)
				}
			}
			if !slices.Equal(ids, want) {
				t.Errorf("%s found %q, want %q", asks, ids, want)
			}
		}
		expect("b")
		for _, id := range []string{"a", "b", "d"} {
			e.put(t, keys.Registration(id), "{}", clientv3.WithLease(clientv3.LeaseID(lease(t, c, time.Minute))))
		}
		expect("b")
		e.put(t, keys.Registrations()+"a0", "{}")
		e.put(t, keys.Registration("c"), "{}")
		expect("a", "a0")
		expect("a0", "a0")
		expect("b", "c")
		expect("c", "c")
		expect("d")
		e.remove(t, keys.Registration("c"))
		expect("b")
	})
}
