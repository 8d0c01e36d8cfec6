//go:build pulsar

package pulsar

import (
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// A connected broker whose lease ends makes no other session: it renews the one that it had, in
// vain. Granted again it goes on.
func TestALostSessionOfARealBrokerGoesOn(t *testing.T) {
	a, all := couples(t, 2)
	topics := Topics(harness.PulsarBundles)
	f := startTraffic(t, topics, all)
	c := all[0]
	leadBundle(t, c.broker, topics[0])
	f.flowing(t)
	before := c.active()
	ok(t, c.Freeze())
	id, err := strconv.ParseInt(before.Lease.ID, 16, 64)
	ok(t, err)
	_, err = a.Etcd.Client().Revoke(t.Context(), clientv3.LeaseID(id))
	ok(t, err)
	time.Sleep(2 * time.Second) // for the broker to look at its keys, in vain
	ok(t, c.Thaw())
	after, err := c.Await(t.Context(), harness.Patience, "the registration to be written again", func(st harness.Status) bool {
		return st.Epoch > before.Epoch && st.Mode == "active" && st.Attachment == "attached" && st.Ready.OK
	})
	ok(t, err)
	if after.Lease.ID != before.Lease.ID {
		t.Errorf("under lease %s, want %s", after.Lease.ID, before.Lease.ID)
	}
	f.flowing(t)
	leadBundle(t, c.broker, topics[1]) // it takes bundles, as any other
	f.flowing(t)

	// The broker alone renews it now.
	ok(t, c.Kill())
	time.Sleep(35 * time.Second) // longer than the session: what is shown is that it does
	keys, err := a.Etcd.Client().Get(t.Context(), "/loadbalance/brokers/"+c.broker.Advertised())
	ok(t, err)
	if len(keys.Kvs) != 1 || keys.Kvs[0].Lease != id || keys.Kvs[0].CreateRevision != after.Epoch {
		t.Errorf("its registration is %v, want it at epoch %d under lease %x", keys.Kvs, after.Epoch, id)
	}
	f.flowing(t)
	f.stop(t, 10*time.Second)
}
