package nats

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// parties are the drivers of a target, and the address of a source that has sealed /default/a with this
// configuration more. Both make consumers as they are told.
func parties(t *testing.T, config, atSource, atTarget string) (*Broker, brokerapi.Peer) {
	t.Helper()
	stream, err := streamName("/default/a")
	if err != nil {
		t.Fatal(err)
	}
	answering := func(made string) func(string, []byte) (string, bool) {
		return func(subject string, _ []byte) (string, bool) {
			switch {
			case strings.HasPrefix(subject, "$JS.API.STREAM.INFO."):
				return fmt.Sprintf(`{"config":{"name":%q,"retention":"limits","storage":"file","num_replicas":1,"subjects":[%q]%s}}`,
					stream, mark{isSealed, "m1"}.subject(stream), config), true
			case strings.HasPrefix(subject, "$JS.API.CONSUMER.CREATE."):
				return made, true
			}
			return "", false
		}
	}
	source := newFakeServer(t, `,"server_id":"NOTHER"`, answering(atSource))
	b := opened(t, Config{AdminURL: newFakeServer(t, "", answering(atTarget)).url, MonitorURL: "http://127.0.0.1:1"})
	return b, brokerapi.Peer{ID: "n1", URL: source.url}
}

func free(context.Context, int) error { return nil }

// What is observed only lets the source's data go: no other refusal may be taken for it.
func TestNoMessageIsReadOnlyWhereNoneCanBe(t *testing.T) {
	const made, full = `{"name":"c1"}`, `{"error":{"code":400,"err_code":10026,"description":"maximum consumers limit reached"}}`
	const gone = `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`
	for _, c := range []struct{ name, config, atSource, atTarget, observed, err string }{
		{"all can be read", "", made, made, "", ""},
		{"a work queue", `,"retention":"workqueue"`, made, made, "no message was read, as the stream's retention is not limits", ""},
		{"interest", `,"retention":"interest"`, made, made, "no message was read, as the stream's retention is not limits", ""},
		{"too many consumers at the source", "", full, made, "no message was read, as the stream has all the consumers", ""},
		{"too many consumers at the target", "", made, full, "no message was read, as the stream has all the consumers", ""},
		{"the stream is not at the source", "", gone, made, "", "stream not found"},
		{"the stream is not at the target", "", made, gone, "", "stream not found"},
		{"an answer without sense", "", made, "[]", "", "cannot unmarshal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, source := parties(t, c.config, c.atSource, c.atTarget)
			got, err := b.Compare(bound(t), "/default/a", source, moves.Extent{Last: 3, Count: 3, Bytes: 30}, free)
			if !strings.HasPrefix(got.Observed, c.observed) || got.Observed != "" && c.observed == "" {
				t.Errorf("observed %q, want %q", got.Observed, c.observed)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
		})
	}
}

// Our connection lives on, and a subscription with its queue would with it.
func TestAComparisonEndsItsSubscriptions(t *testing.T) {
	b, source := parties(t, "", `{"name":"c1"}`, `{"name":"c1"}`)
	count := func() int {
		if _, err := b.Compare(bound(t), "/default/a", source, moves.Extent{Empty: true}, free); err != nil {
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

func TestWhoWaitsForItsTurnLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn, calls := make(chan struct{}, 1), 0
		meter := func(context.Context, int) error { calls++; return nil }
		made, err := patiently(t.Context(), turn, meter)
		if err != nil {
			t.Fatal(err)
		}
		begun := make(chan struct{})
		go func() {
			defer close(begun)
			if _, err := patiently(t.Context(), turn, meter); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(3 * chunkWait)
		synctest.Wait()
		select {
		case <-begun:
			t.Error("the second begins before the stream of the first is made")
		default:
		}
		if calls < 3 {
			t.Errorf("who waits for its turn said %d times that it lives, want each %s", calls, chunkWait/3)
		}
		made()
		made() // again changes nothing
		<-begun
	})
}
