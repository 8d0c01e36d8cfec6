package nats

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// monitored is what the monitoring port says to everything.
type monitored struct {
	status int
	kind   string
	body   []byte
}

func FuzzMonitorAnswersNeverMakeHealthy(f *testing.F) {
	f.Add(200, "application/json", []byte(goodVarz))
	f.Add(200, "application/json", []byte(`{"status":"ok","server_id":"NFAKE"}`))
	f.Add(200, "application/json", []byte(`{"server_id":"NFAKE","start":"never"}`))
	f.Add(503, "text/html", []byte("<html>"))
	var says atomic.Pointer[monitored]
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		m := says.Load()
		w.Header().Set("Content-Type", m.kind)
		w.WriteHeader(m.status)
		_, _ = w.Write(m.body) // a status without a body refuses one
	}))
	f.Cleanup(web.Close)
	fake := newFakeServer(f, "", jetStreamOK)
	b := opened(f, Config{AdminURL: fake.url, MonitorURL: web.URL, BrokerID: "n1"})
	f.Fuzz(func(t *testing.T, status int, kind string, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		says.Store(&monitored{status, kind, body})
		b.known.Store(nil)
		id, err := b.Probe(within(t))
		if err == nil && id.Instance != fakeID {
			t.Fatalf("took %q for %+v", body, id)
		}
		var said struct {
			Status string `json:"status"`
		}
		if health(within(t), b) == nil && (status != 200 || json.Unmarshal(body, &said) != nil || said.Status != "ok") {
			t.Fatalf("healthy by %d %q", status, body)
		}
	})
}

func FuzzJetStreamAnswers(f *testing.F) {
	f.Add(`{"config":{"name":"hf+a+b","subjects":["a.b"]},"state":{}}`)
	f.Add(`{"total":1,"streams":["hf+a+b"]}`)
	f.Add(`{"total":2,"offset":7,"streams":["hf+a+b","hf+a+b"]}`)
	f.Add(`{"error":{"code":400,"err_code":10058,"description":"stream name already in use"}}`)
	f.Add(`{"config":{"subjects":7}}`)
	f.Add("<html>")
	var says atomic.Pointer[string]
	fake := newFakeServer(f, "", func(string, []byte) (string, bool) { return *says.Load(), true })
	b := opened(f, Config{AdminURL: fake.url, MonitorURL: "http://127.0.0.1:1", Timeout: 3 * time.Second})
	f.Fuzz(func(t *testing.T, answer string) {
		if strings.Contains(answer, "\r\n") {
			return // the fake would not send one message
		}
		says.Store(&answer)
		held, err := b.Topics(within(t))
		for _, topic := range append(held.Serving, held.Withdrawn...) {
			if _, _, wrong := brokerapi.SplitTopic(topic); err != nil || wrong != nil {
				t.Fatalf("%q is listed: %v, %v", topic, err, wrong)
			}
		}
		errs := []error{b.Serve(within(t), "/a/b", nil), b.Withdraw(within(t), "/a/b")}
		for _, err := range errs {
			if err == nil && !json.Valid([]byte(answer)) {
				t.Fatalf("done by %q", answer)
			}
		}
	})
}
