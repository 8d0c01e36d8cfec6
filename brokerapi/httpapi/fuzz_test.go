package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/internal/fakenet"
	"holdfast/recovery/moves"
)

// everything calls all there is; an error of any is fine, a panic or a delay is not.
func everything(t *testing.T, b *Broker) (healthy bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	healthy = health(ctx, b) == nil
	if id, err := b.Probe(ctx); err == nil && (id.Instance == "" || id.Version == "") {
		t.Fatalf("identity %+v", id)
	}
	held, err := b.Topics(ctx)
	if err == nil {
		all := slices.Concat(held.Serving, held.Withdrawn)
		slices.Sort(all)
		if len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("a topic twice: %q", all)
		}
		for _, topic := range all {
			if _, _, err := brokerapi.SplitTopic(topic); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps := movesAll(t, b)
	for _, err := range append(steps,
		b.Serve(ctx, "/a/b", nil), b.Withdraw(ctx, "/a/b"),
		b.SetMode(ctx, brokerapi.Drained, ""),
	) {
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b") {
			t.Fatalf("not one line: %q", err)
		}
	}
	if ctx.Err() != nil {
		t.Fatal("the calls lasted longer than the answers")
	}
	return healthy
}

// movesAll makes all calls of a move. One that is answered 202 for ever ends with its context.
func movesAll(t *testing.T, b *Broker) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	peer, told := brokerapi.Peer{ID: "n2", URL: "http://n2"}, 0
	meter := func(_ context.Context, n int) error {
		if told++; n <= 0 {
			t.Fatalf("the meter is told of %d bytes", n)
		}
		return nil
	}
	stands, err := b.Extent(ctx, "/a/b")
	if stands.Empty && (stands.First != 0 || stands.Last != 0 || stands.Count != 0 || stands.Bytes != 0) || stands.Active < 0 {
		t.Fatalf("%+v", stands)
	}
	if err == nil {
		if again, err := json.Marshal(stands); err != nil || len(again) > maxRequest {
			t.Fatalf("%+v cannot be sent back: %v", stands, err)
		}
	}
	errs := []error{err, b.Accept(ctx, "/a/b", nil, stands, peer), b.Remove(ctx, "/a/b", "m1")}
	_, sealed := b.Seal(ctx, "/a/b", "m1", true)
	_, copied := b.Copy(ctx, "/a/b", "m1", peer, moves.Extent{Last: 7, Count: 8, Bytes: 3 << 20}, meter)
	_, open := b.Copy(ctx, "/a/b", "m1", peer, moves.Extent{Last: 7}, meter)
	_, resumed := b.Resume(ctx, "/a/b", "m1", nil, &stands)
	content, compared := b.Compare(ctx, "/a/b", peer, stands, meter)
	if strings.ContainsAny(content.Differs+content.Hash+content.Observed, "\n\r\x1b") {
		t.Fatalf("%+v", content)
	}
	return append(errs, sealed, copied, open, resumed, compared)
}

// maxRequest is how large a request may be, by the contract.
const maxRequest = 2 << 20

// well says whether an answer could be one of a healthy broker, read in another way.
func well(status int, body []byte) bool {
	var said map[string]any
	if status != 200 || json.Unmarshal(body, &said) != nil {
		return false
	}
	for name, value := range said {
		if strings.EqualFold(name, "status") && value == "ok" {
			return true
		}
	}
	return false
}

const all = `{"status":"ok","instance":"i","version":"1","name":"n","capabilities":["steer"],"topics":[{"name":"/a/b","state":"serving"}],"state":"serving","mode":"drained",` +
	`"first":3,"last":7,"count":5,"bytes":50,"floors":{"c":4},"compared":5}`

func FuzzAnswersNeverMakeHealthy(f *testing.F) {
	f.Add(200, "application/json", []byte(all))
	f.Add(200, "application/json", []byte(`{"status":"ok"}`))
	f.Add(200, "application/json", []byte(`{"topics":[],"next":"x","state":"absent"}`))
	f.Add(200, "application/json", []byte(`{"topics":[{"name":"/../..","state":"odd"}],"next":"/../.."}`))
	f.Add(200, "application/json", []byte(`{"empty":true,"last":1,"compared":-1,"state":"absent"}`))
	f.Add(200, "application/json", []byte(`{"last":18446744073709551614,"active":4294967295,"compared":0,"differs":"\u001b[31m"}`))
	f.Add(202, "application/json", []byte(`{"bytes":9223372036854775807}`))
	f.Add(202, "application/json", []byte(`{"bytes":2097152}`))
	f.Add(200, "text/html", []byte(all))
	f.Add(202, "application/json", []byte(all))
	f.Add(409, "application/json", []byte(`{"error":{"code":"elsewhere","message":"\u001b[31m"}}`))
	var answer atomic.Pointer[[]byte]
	url := "http://" + fakenet.Answer(f, func() []byte { return *answer.Load() })
	f.Fuzz(func(t *testing.T, status int, kind string, body []byte) {
		if status < 200 || status > 599 || strings.ContainsAny(kind, "\r\n") {
			return
		}
		says := append(fmt.Appendf(nil, "HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, kind, len(body)), body...)
		answer.Store(&says)
		b, err := New(Config{AdminURL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if everything(t, b) && !well(status, body) {
			t.Fatalf("healthy by %d %s %q", status, kind, body)
		}
	})
}

// health is what the broker is asked for each second.
func health(ctx context.Context, b brokerapi.Broker) error {
	_, err := b.Probe(ctx)
	return err
}
