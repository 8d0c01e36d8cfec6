package nats

import (
	"context"
	"errors"
	"holdfast/brokerapi"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A nats-server that creates streams keeps the question for the account's state
// waiting; see jetStreamAnswers.
func TestHealthTakesAnyAnswerSinceTheQuestion(t *testing.T) {
	for _, c := range []struct {
		name    string
		other   string // answer to another request
		late    bool   // asked after Health asked, not before
		healthy bool
	}{
		{"another answer since", `{}`, true, true},
		{"another answer before", `{}`, false, false},
		{"a refusal since", `{"error":{"code":500,"err_code":1,"description":"no"}}`, true, false},
		{"no other answer", "", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 1)
			server := newFakeServer(t, "", func(subject string, _ []byte) (string, bool) {
				if strings.HasSuffix(subject, ".INFO") && !strings.Contains(subject, "STREAM") {
					asked <- struct{}{}
					return "", false
				}
				return c.other, c.other != ""
			})
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, goodVarz)
			}))
			defer web.Close()
			// Only when the question was not answered in that time do other answers count.
			b := opened(t, Config{AdminURL: server.url, MonitorURL: web.URL, Timeout: 2 * time.Second})
			patience := time.Second
			if c.healthy {
				patience = time.Minute
			}
			ctx, cancel := context.WithTimeout(bound(t), patience)
			defer cancel()
			other := func() { _ = b.api(ctx, "STREAM.INFO.x", nil, nil) } // its error is the case's
			done := make(chan struct{})
			if !c.late {
				other()
			}
			go func() {
				defer close(done)
				<-asked
				if c.late {
					other()
				}
			}()
			err := health(ctx, b)
			if c.healthy && err != nil {
				t.Errorf("unhealthy: %v", err)
			}
			if !c.healthy && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want that the deadline was exceeded", err)
			}
			cancel()
			<-done
		})
	}
}

// health is what the broker is asked for each second.
func health(ctx context.Context, b brokerapi.Broker) error {
	_, err := b.Probe(ctx)
	return err
}
