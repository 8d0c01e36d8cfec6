package nats

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// Our connection lives on, and a subscription with its queue would with it.
func TestAComparisonEndsItsSubscriptions(t *testing.T) {
	stream, err := streamName("/default/a")
	if err != nil {
		t.Fatal(err)
	}
	answer := func(subject string, _ []byte) (string, bool) {
		if strings.HasPrefix(subject, "$JS.API.STREAM.INFO.") {
			return fmt.Sprintf(`{"config":{"name":%q,"retention":"limits","storage":"file","num_replicas":1,"subjects":[%q]}}`,
				stream, mark{isSealed, "m1"}.subject(stream)), true
		}
		return `{"name":"c1"}`, true
	}
	source := newFakeServer(t, `,"server_id":"NOTHER"`, answer)
	b := opened(t, Config{AdminURL: newFakeServer(t, "", answer).url, MonitorURL: "http://127.0.0.1:1"})
	count := func() int {
		_, err := b.Compare(bound(t), "/default/a", brokerapi.Peer{ID: "n1", URL: source.url}, moves.Extent{Empty: true},
			func(context.Context, int) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		nc, _, err := b.connected(bound(t))
		if err != nil {
			t.Fatal(err)
		}
		return nc.NumSubscriptions()
	}
	if first, second := count(), count(); second != first { // one stays: for the answers to all requests
		t.Errorf("%d subscriptions after a comparison, %d after the next", first, second)
	}
}
