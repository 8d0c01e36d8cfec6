//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// asked waits until the broker has been asked who owns the topic's bundle.
func (c *couple) asked(topic string) {
	c.t.Helper()
	_, namespace := harness.PulsarTopic(topic)
	path := "/admin/v2/non-persistent/" + namespace + "/" + harness.PulsarBundle(topic)
	ok(c.t, harness.Await(c.t.Context(), harness.Patience, path+" to be asked for at "+c.broker.Name, func(context.Context) (bool, string) {
		text, err := os.ReadFile(c.broker.LogPath())
		return strings.Contains(string(text), path), fmt.Sprint(err)
	}))
}

// stale says whether the sidecar calls its broker's view stale.
func (c *couple) stale(ctx context.Context) (bool, string) {
	text, err := c.Metrics(ctx)
	return strings.Contains(text, `holdfast_broker_zombie{kind="stale_view"} 1`), fmt.Sprint(err)
}

// move has bundles go from one broker to the other, as far as the brokers know of each other.
func move(t *testing.T, topics []string, all []*couple, to int) {
	t.Helper()
	for i, topic := range topics {
		ok(t, Unload(soon(t), all[(i+to+1)%2].broker, topic, all[(i+to)%2].broker.Advertised()))
	}
}

// The watches of 4.0.7 do not outlive a restart of etcd: the brokers never learn of what moves
// after it. While they live, moves make nobody stale.
func TestARealBrokerWhoseWatchesDiedIsReportedUntilItIsRestarted(t *testing.T) {
	a, all := couples(t, 2, "--audit-interval", "1s")
	topics := Topics(harness.PulsarBundles)
	for i, topic := range topics {
		leadBundle(t, all[i%2].broker, topic)
		all[(i+1)%2].asked(topic)
	}
	for n := range 13 { // 10 s is what makes a view stale
		move(t, topics, all, n%2+1)
		time.Sleep(time.Second) // a pace
	}
	for i, topic := range topics {
		leadBundle(t, all[i%2].broker, topic)
	}
	ok(t, a.Etcd.Kill())
	ok(t, a.Etcd.Start(t.Context()))
	for _, c := range all {
		_, err := c.Await(t.Context(), harness.Patience, "attached", func(st harness.Status) bool {
			return st.Attachment == "attached" && st.Lease.FailureStreak == 0
		})
		ok(t, err)
	}
	time.Sleep(12 * time.Second) // what is shown is that nothing is called stale before something moves
	for _, c := range all {
		if stale, _ := c.stale(soon(t)); stale {
			t.Errorf("%s is called stale before anything moved: %s", c.broker.Name, c.verb("events").Stdout)
		}
		if events := c.verb("events").Stdout; strings.Contains(events, "stale_view") {
			t.Error(events)
		}
	}
	move(t, topics, all, 1)
	for _, c := range all {
		ok(t, harness.Await(t.Context(), harness.Patience, c.broker.Name+" to be called stale", c.stale))
		c.active() // and nothing else
		t.Log(c.verb("status").Stdout)
	}
	for _, c := range all {
		ok(t, c.broker.Kill())
		ok(t, c.broker.Start(t.Context()))
		c.active()
		ok(t, harness.Await(t.Context(), bootBound, c.broker.Name+" to see again", func(ctx context.Context) (bool, string) {
			stale, text := c.stale(ctx)
			return !stale, text
		}))
	}
	for i, topic := range topics {
		leadBundle(t, all[i%2].broker, topic)
	}
	move(t, topics, all, 1)
	time.Sleep(12 * time.Second) // what is shown is that nobody is stale any more
	for _, c := range all {
		if stale, _ := c.stale(soon(t)); stale {
			t.Error(c.verb("status").Stdout)
		}
	}
}
