//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast/lab/harness"
)

func etcdDown(t *testing.T, a *harness.Apache, all []*couple, topics []string) {
	f := startTraffic(t, topics, all)
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
	f.stop(t, 10*time.Second)
}
