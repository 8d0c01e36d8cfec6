package conformance

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/httpapi"
	"holdfast/lab/harness"
)

// httpServer is the reference broker as a process.
type httpServer struct {
	*harness.Reference
}

func launchHTTP(t *testing.T, name string) *httpServer {
	t.Helper()
	r, err := harness.ForTest(t).StartReference(t.Context(), harness.ReferenceOptions{Name: name})
	do(t, err)
	return &httpServer{r}
}

func (s *httpServer) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	b, err := httpapi.New(httpapi.Config{AdminURL: s.URL(), BrokerID: s.Name})
	do(t, err)
	return b
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *httpServer) Kill(t *testing.T)   { do(t, s.Reference.Kill()) }
func (s *httpServer) Start(t *testing.T)  { do(t, s.Reference.Start(bound(t))) }
func (s *httpServer) Freeze(t *testing.T) { do(t, s.Reference.Freeze()) }
func (s *httpServer) Thaw(t *testing.T)   { do(t, s.Reference.Thaw()) }

func (s *httpServer) Publish(topic string, data []byte) error {
	return s.Reference.Publish(context.Background(), topic, string(data))
}
func (s *httpServer) Count(topic string) (int, error) {
	return s.Reference.Count(context.Background(), topic)
}

func (s *httpServer) Beside(t *testing.T) brokertest.Server { t.Helper(); return launchHTTP(t, "n2") }
func (s *httpServer) Peer() brokerapi.Peer                  { return brokerapi.Peer{ID: s.Name, URL: s.URL()} }
func (s *httpServer) Consume(topic, subscription string, n int) ([]string, error) {
	return s.Reference.Consume(context.Background(), topic, subscription, n)
}

func (s *httpServer) Attach(t *testing.T, topic, subscription string) func() {
	t.Helper()
	do(t, s.Reference.Attach(bound(t), topic, subscription))
	return func() { do(t, s.Reference.Detach(context.Background(), topic, subscription)) }
}

func (s *httpServer) Spoil(t *testing.T, _, old, data string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.DataDir, "topics", "*", "messages"))
	if do(t, err); len(files) != 1 {
		t.Fatalf("want one topic: %q", files)
	}
	text, err := os.ReadFile(files[0])
	do(t, err)
	do(t, os.WriteFile(files[0], bytes.Replace(text, []byte(old), []byte(data), 1), 0o600))
}

func (s *httpServer) GiveAway(t *testing.T, topic string) {
	do(t, s.Reference.GiveAway(bound(t), topic))
}

func (s *httpServer) Litter(t *testing.T) { t.Helper(); do(t, s.Reference.Litter(bound(t), "orders")) }

func (s *httpServer) AddForeign(t *testing.T) func() error {
	t.Helper()
	names := []string{"orders", "/orders", "/default/orders/", "/default//orders", "/default/theirs", "default/orders", " /default/orders"}
	for _, name := range names {
		do(t, s.MakeForeign(bound(t), name))
		do(t, s.Reference.Publish(bound(t), name, "theirs"))
	}
	return func() error {
		for _, name := range names {
			if err := s.Reference.Publish(context.Background(), name, "more"); err != nil {
				return err
			}
			if n, err := s.Count(name); err != nil || n != 2 {
				return errors.Join(err, errors.New(name+" has changed"))
			}
		}
		return nil
	}
}

var oddHTTP = []brokertest.OddTopic{
	{Name: "dots", Topic: "/default/orders.eu"},
	{Name: "only dots", Topic: "/../.."},
	{Name: "one dot", Topic: "/./."},
	{Name: "escaped dots", Topic: "/default/%2e%2e"},
	{Name: "percent", Topic: "/default/100%"},
	{Name: "escaped slash", Topic: "/default/a%2Fb"},
	{Name: "question and hash", Topic: "/default/a?b=c#d"},
	{Name: "backslash", Topic: `/default/a\..\b`},
	{Name: "quotes and tags", Topic: `/default/"<b>&'`},
	{Name: "unicode", Topic: "/größe/日本語"},
	{Name: "spaces", Topic: "/my space/ my topic "},
	{Name: "upper case", Topic: "/Default/ORDERS"},
	{Name: "control characters", Topic: "/default/a\x00\n\x1b"},
	{Name: "a verb's name", Topic: "/topics/load"},
	{Name: "state", Topic: "/default/state", Record: []byte("null")},
	{Name: "a record", Topic: "/default/record", Record: []byte(`{"schema":{"type":"avro"},"big":12345678901234567890}`)},
	{Name: "long", Topic: "/n/" + strings.Repeat("x", 4000)},
}

func TestHTTPConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Traits:    httpapi.Traits([]string{"local-data"}),
		Parks:     true,
		Launch:    func(t *testing.T) brokertest.Server { return launchHTTP(t, "n1") },
		Odd:       oddHTTP,
		Retriable: func(err error) bool { return errors.Is(err, harness.ErrNotServed) },
	})
}
