//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// One cluster for all, since it takes long to start: what needs it as it was goes first.
func TestRealBrokersWithHoldfast(t *testing.T) {
	a, all := couples(t, 3)
	for i, one := range []struct {
		claim string
		test  func(*testing.T, *harness.Apache, []*couple, []string)
	}{
		{"OneIsRegisteredDrainedAndActivated", drainedAndActivated},
		{"AreRolledBySIGTERM", rolled},
		{"OneThatIsKilledIsReplacedAfterItsGrace", killed},
	} {
		if !t.Run(one.claim, func(t *testing.T) {
			for _, c := range all {
				c.t = t
			}
			// Topics in bundles of their own, which nobody had before.
			one.test(t, a, all, Topics((i + 1) * harness.PulsarBundles)[i*harness.PulsarBundles:])
		}) {
			return // the next would begin with what it left
		}
	}
}

func drainedAndActivated(t *testing.T, a *harness.Apache, all []*couple, topics []string) {
	c := all[0]
	key := "/loadbalance/brokers/" + c.broker.Advertised()
	before, err := a.Etcd.Client().Get(soon(t), key)
	ok(t, err)
	st := c.active()
	if len(before.Kvs) != 1 || st.Registration.Adopted || st.Lease.ID == fmt.Sprintf("%x", before.Kvs[0].Lease) {
		t.Fatalf("%v, and its sidecar says %s", before.Kvs, st)
	}
	if st.Broker.Version != harness.PulsarVersion || st.BrokerID != c.broker.Advertised() {
		t.Errorf("it is taken for %s", st)
	}
	bin, err := harness.Build(harness.Holdfast)
	ok(t, err)
	res, err := harness.RunHoldfast(soon(t), bin, append([]string{"check"}, c.Args()[1:]...)...)
	if err != nil || res.Exit != 0 {
		t.Errorf("check: %+v, %v", res, err)
	}

	f := startTraffic(t, topics, all)
	for _, topic := range topics { // it has something to give up
		leadBundle(t, c.broker, topic)
	}
	c.verb("drain", "--reason", "lab")
	_, err = c.Await(t.Context(), harness.Patience, "drained", func(st harness.Status) bool { return st.Mode == "drained" })
	ok(t, err)
	ok(t, harness.Await(t.Context(), harness.Patience, "all bundles to be gone", func(ctx context.Context) (bool, string) {
		left := c.owned(ctx)
		return len(left) == 0, fmt.Sprint(left)
	}))
	code, err := c.broker.StatusPage(soon(t))
	if err != nil || code != http.StatusNotFound || c.hasStatusFile() || c.Ready(soon(t)) {
		t.Errorf("drained: the status page answers %d, %v; ready: %v", code, err, c.Ready(soon(t)))
	}
	f.flowing(t)
	c.verb("activate", "--reason", "lab")
	c.active()
	if !c.hasStatusFile() {
		t.Error("active, and its status file is away")
	}
	f.flowing(t)
	f.stop(t, 10*time.Second)

	after, err := a.Etcd.Client().Get(soon(t), key)
	ok(t, err)
	if len(after.Kvs) != 1 || after.Kvs[0].ModRevision != before.Kvs[0].ModRevision || after.Kvs[0].Lease != before.Kvs[0].Lease {
		t.Errorf("its registration was %v and is %v", before.Kvs, after.Kvs)
	}
}
