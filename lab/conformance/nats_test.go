// Package conformance runs the broker conformance suite, and what only this
// driver promises, against real servers: this module's nats-server and, where it
// is installed, 2.9, the oldest that is supported.
package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
)

// The suites of the drivers run side by side: each waits for its own server most of the
// time. An explicit -parallel wins.
const parallel = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "test.parallel" })
	if !explicit {
		if err := flag.Set("test.parallel", parallel); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if code == 0 {
		// The lab's thread that starts processes never ends.
		if err := harness.AwaitNone(func() error {
			return goleak.Find(goleak.IgnoreAnyFunction("holdfast/lab/harness.forkForever"))
		}); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// onEachServer runs test with this module's server and with 2.9, one after the other; the
// fast tests have no time for 2.9.
func onEachServer(t *testing.T, test func(t *testing.T, bin string)) {
	t.Run("current", func(t *testing.T) {
		bin, err := harness.Build(harness.NATSServer)
		do(t, err)
		test(t, bin)
	})
	t.Run("2.9", func(t *testing.T) {
		if testing.Short() {
			t.Skip("the same again with an older server")
		}
		bin, err := exec.LookPath("nats-server")
		if err != nil {
			t.Skip("no nats-server on PATH; wanted 2.9")
		}
		out, err := exec.Command(bin, "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "v2.9.") {
			t.Skipf("the nats-server on PATH is %q; wanted 2.9", strings.TrimSpace(string(out)))
		}
		test(t, bin)
	})
}

type oddTopic struct {
	name, topic, subject, record string
}

var oddTopics = []oddTopic{
	{"dots", "/default/orders.eu.west", "default.orders.eu.west", ""},
	{"dots in the namespace", "/de.fault/orders2", "de.fault.orders2", ""},
	{"unicode", "/größe/日本語", "größe.日本語", ""},
	{"upper case", "/Default/ORDERS", "Default.ORDERS", ""},
	{"lower case of the same", "/default/orders", "default.orders", ""},
	{"plus", "/a+b/c+d", "a+b.c+d", ""},
	{"equals, looks encoded", "/default/a=2E", "default.a=2E", ""},
	{"what that would decode to", "/default/a.", "odd.dot.at.the.end", `{"subjects":["odd.dot.at.the.end"]}`},
	{"spaces", "/my space/my topic", "odd.spaces", `{"subjects":["odd.spaces","odd.spaces.>"]}`},
	{"wildcards", "/default/*.>", "odd.wildcards", `{"subjects":["odd.wildcards"],"schema":{"type":"avro"}}`},
	{"state", "/default/state", "default.state", "null"},
	{"longest", "/n/" + strings.Repeat("x", 255-len("hf+n+")), "n." + strings.Repeat("x", 255-len("hf+n+")), ""},
	{"in memory with limits", "/default/limits", "default.limits", `{"storage":"memory","max_msgs":10,"max_bytes":100000,"max_age_seconds":3600}`},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	subjects := map[string]string{}
	var odd []brokertest.OddTopic
	for _, o := range oddTopics {
		subjects[o.topic] = o.subject
		odd = append(odd, brokertest.OddTopic{Name: o.name, Topic: o.topic, Record: []byte(o.record)})
	}
	onEachServer(t, func(t *testing.T, bin string) {
		brokertest.Run(t, brokertest.Harness{
			Traits: nats.Traits,
			Parks:  true,
			Launch: func(t *testing.T) brokertest.Server {
				s := launch(t, bin)
				s.subjects = subjects
				return s
			},
			Odd:      odd,
			Alone:    true,
			NoHalves: true,
			Retriable: func(err error) bool {
				// What jetstream.Publish itself retries.
				return errors.Is(err, client.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
			},
		})
	})
}

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	t.Cleanup(cancel)
	return ctx
}

// opened is a driver with settings of its own, closed with the test.
func opened(t *testing.T, cfg nats.Config) *nats.Broker {
	t.Helper()
	b, err := nats.New(cfg)
	do(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestQuiesceAndLoadChangeNothingButSubjects(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		b := opened(t, s.config())
		const topic = "/default/orders"
		do(t, b.Serve(bound(t), topic, nil))
		read := func() (cfg jetstream.StreamConfig) {
			t.Helper()
			do(t, s.with(func(ctx context.Context, js jetstream.JetStream) error {
				stream, err := js.Stream(ctx, streamOf(topic))
				if err != nil {
					return err
				}
				cfg = stream.CachedInfo().Config
				return nil
			}))
			return cfg
		}
		do(t, s.with(func(ctx context.Context, js jetstream.JetStream) error {
			cfg := read()
			cfg.Description, cfg.MaxMsgs, cfg.Duplicates, cfg.AllowDirect = "an operator's", 77, 5*time.Second, true
			_, err := js.UpdateStream(ctx, cfg)
			if err != nil {
				return err
			}
			stream, err := js.Stream(ctx, cfg.Name)
			if err != nil {
				return err
			}
			_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "reader"})
			return err
		}))
		before := read()
		do(t, b.Withdraw(bound(t), topic))
		parked := read()
		if want := []string{"_HOLDFAST.quiesced." + streamOf(topic)}; !slices.Equal(parked.Subjects, want) {
			t.Errorf("quiesced: subjects %q, want %q", parked.Subjects, want)
		}
		parked.Subjects = before.Subjects
		if got, want := fmt.Sprintf("%+v", parked), fmt.Sprintf("%+v", before); got != want {
			t.Errorf("quiescing changed more than the subjects:\n%s\nwas\n%s", got, want)
		}
		// The record asks for another storage by now: it is not changed under the data.
		do(t, b.Serve(bound(t), topic, []byte(`{"storage":"memory","max_msgs":5}`)))
		if got, want := fmt.Sprintf("%+v", read()), fmt.Sprintf("%+v", before); got != want {
			t.Errorf("loading again left\n%s\nwant\n%s", got, want)
		}
		if err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
			_, err := js.Consumer(ctx, streamOf(topic), "reader")
			return err
		}); err != nil {
			t.Errorf("the consumer is gone: %v", err)
		}
	})
}

// What docs/brokers/nats.md says of clients while a stream is quiesced.
func TestClientsFindAQuiescedStreamByItsName(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		b := opened(t, s.config())
		const topic, subject = "/shop/orders", "shop.orders"
		do(t, b.Serve(bound(t), topic, nil))
		filtered := jetstream.ConsumerConfig{Durable: "filtered", FilterSubject: subject}
		look := func(quiesced bool) {
			t.Helper()
			do(t, s.with(func(ctx context.Context, js jetstream.JetStream) error {
				stream, err := js.Stream(ctx, streamOf(topic))
				if err != nil {
					return err
				}
				if _, err := js.StreamNameBySubject(ctx, subject); errors.Is(err, jetstream.ErrStreamNotFound) != quiesced {
					t.Errorf("quiesced %v: found by subject: %v", quiesced, err)
				}
				if _, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "plain"}); err != nil {
					t.Errorf("quiesced %v: a consumer without a filter: %v", quiesced, err)
				}
				_, err = stream.CreateOrUpdateConsumer(ctx, filtered)
				var refused *jetstream.APIError
				old := strings.HasPrefix(js.Conn().ConnectedServerVersion(), "2.9.")
				if got := errors.As(err, &refused) && refused.ErrorCode == 10093; got != (quiesced && old) || err != nil && !got {
					t.Errorf("quiesced %v: a consumer with a filter: %v", quiesced, err)
				}
				return nil
			}))
		}
		look(false)
		do(t, b.Withdraw(bound(t), topic))
		look(true)
		do(t, b.Serve(bound(t), topic, nil))
		look(false)
	})
}

func TestLoadFollowsTheRecordsSubjects(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		s.subjects = map[string]string{}
		b := opened(t, s.config())
		for _, subject := range []string{"default.orders", "shop.orders.eu"} {
			record := []byte("null")
			if subject != "default.orders" {
				record = []byte(`{"subjects":["shop.orders.*"]}`)
			}
			do(t, b.Serve(bound(t), "/default/orders", record))
			s.subjects["/default/orders"] = subject
			if err := s.Publish("/default/orders", nil); err != nil {
				t.Errorf("publish to %s: %v", subject, err)
			}
		}
		s.subjects["/default/orders"] = "default.orders"
		if err := s.Publish("/default/orders", nil); err == nil {
			t.Error("the old subject still serves")
		}
	})
}
