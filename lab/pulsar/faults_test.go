//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast/lab/harness"
)

func TestRealBrokersOutliveAnOutageOfEtcd(t *testing.T) {
	a, all := couples(t, 2)
	f := startTraffic(t, apart(), all[0].broker, all[1].broker)
	ok(t, a.Etcd.Kill())
	time.Sleep(40 * time.Second) // longer than the brokers' sessions: what is shown is that nothing happens
	for _, c := range all {
		if !c.broker.Running() {
			t.Errorf("%s was stopped", c.broker.Name)
		}
	}
	ok(t, a.Etcd.Start(t.Context()))
	for _, c := range all {
		ok(t, harness.Await(t.Context(), harness.Patience, "ready", func(ctx context.Context) (bool, string) {
			st, err := c.Status(ctx)
			return err == nil && st.Mode == "active" && st.Ready.OK, fmt.Sprint(st, err)
		}))
	}
	f.flowing(t)
	nothingLost(t, f.stop(t), 10*time.Second)
}
