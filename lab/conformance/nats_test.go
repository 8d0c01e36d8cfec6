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

	"holdfast/brokerapi"
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestQuiesceAndLoadChangeNothingButSubjects(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		b := opened(t, s.config())
		const topic = "/default/orders"
		if err := b.Serve(bound(t), topic, nil); err != nil {
			t.Fatal(err)
		}
		read := func() (cfg jetstream.StreamConfig) {
			t.Helper()
			if err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
				stream, err := js.Stream(ctx, streamOf(topic))
				if err != nil {
					return err
				}
				cfg = stream.CachedInfo().Config
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return cfg
		}
		if err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
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
		}); err != nil {
			t.Fatal(err)
		}
		before := read()
		if err := b.Withdraw(bound(t), topic); err != nil {
			t.Fatal(err)
		}
		parked := read()
		if want := []string{"_HOLDFAST.quiesced." + streamOf(topic)}; !slices.Equal(parked.Subjects, want) {
			t.Errorf("quiesced: subjects %q, want %q", parked.Subjects, want)
		}
		parked.Subjects = before.Subjects
		if got, want := fmt.Sprintf("%+v", parked), fmt.Sprintf("%+v", before); got != want {
			t.Errorf("quiescing changed more than the subjects:\n%s\nwas\n%s", got, want)
		}
		// The record asks for another storage by now: it is not changed under the data.
		if err := b.Serve(bound(t), topic, []byte(`{"storage":"memory","max_msgs":5}`)); err != nil {
			t.Fatal(err)
		}
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
		if err := b.Serve(bound(t), topic, nil); err != nil {
			t.Fatal(err)
		}
		filtered := jetstream.ConsumerConfig{Durable: "filtered", FilterSubject: subject}
		look := func(quiesced bool) {
			t.Helper()
			if err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
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
			}); err != nil {
				t.Fatal(err)
			}
		}
		look(false)
		if err := b.Withdraw(bound(t), topic); err != nil {
			t.Fatal(err)
		}
		look(true)
		if err := b.Serve(bound(t), topic, nil); err != nil {
			t.Fatal(err)
		}
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
			if err := b.Serve(bound(t), "/default/orders", record); err != nil {
				t.Fatal(err)
			}
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

func TestRefusalsNameTopicCauseAndRemedy(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		b := opened(t, s.config())
		if err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
			for _, cfg := range []jetstream.StreamConfig{
				{Name: "theirs", Subjects: []string{"default.taken"}},
				{Name: streamOf("/default/sealed"), Subjects: []string{"default.sealed"}},
				{Name: streamOf("/default/mirror"), Mirror: &jetstream.StreamSource{Name: "theirs"}},
			} {
				if _, err := js.CreateStream(ctx, cfg); err != nil {
					return err
				}
			}
			_, err := js.UpdateStream(ctx, jetstream.StreamConfig{Name: streamOf("/default/sealed"), Subjects: []string{"default.sealed"}, Sealed: true})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name string
			err  error
			want string
		}{
			{"subject taken", b.Serve(bound(t), "/default/taken", nil),
				`load /default/taken: JetStream refused: subjects overlap with an existing stream (err_code 10065): change the other stream, or give this topic other subjects than ["default.taken"] in its record, /topics/default/taken = {"subjects":["…"]}`},
			{"load sealed", b.Serve(bound(t), "/default/sealed", nil),
				`load /default/sealed: stream hf+default+sealed is sealed, which cannot be undone: it accepts no messages and its subjects cannot change`},
			{"quiesce sealed", b.Withdraw(bound(t), "/default/sealed"),
				`quiesce /default/sealed: stream hf+default+sealed is sealed, which cannot be undone: it accepts no messages and its subjects cannot change`},
			{"load mirror", b.Serve(bound(t), "/default/mirror", nil),
				`load /default/mirror: stream hf+default+mirror is a mirror, which has no subjects of its own: remove the mirror setting, or the stream`},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.err == nil || c.err.Error() != c.want {
					t.Errorf("got  %v\nwant %s", c.err, c.want)
				}
			})
		}
	})
}

func TestIdentityOfAnotherServerIsRefused(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s, other := launch(t, bin), launch(t, bin)
		t.Run("other name", func(t *testing.T) {
			cfg := s.config()
			cfg.BrokerID = "n2"
			_, err := opened(t, cfg).Probe(bound(t))
			want := fmt.Sprintf(`--broker-admin nats://%s: the broker there calls itself "n1", --broker-id says "n2": point --broker-admin at n2's own address, or set --broker-id to n1`, s.admin)
			if !errors.Is(err, brokerapi.ErrIdentity) || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
		t.Run("monitor of another", func(t *testing.T) {
			cfg := s.config()
			cfg.MonitorURL = other.config().MonitorURL
			b := opened(t, cfg)
			for name, call := range map[string]func(context.Context) error{
				"probe": func(ctx context.Context) error { _, err := b.Probe(ctx); return err },
			} {
				err := call(bound(t))
				if !errors.Is(err, brokerapi.ErrIdentity) || !strings.Contains(err.Error(), "--broker-admin "+cfg.AdminURL) ||
					!strings.Contains(err.Error(), "--nats-monitor "+cfg.MonitorURL) || !strings.HasSuffix(err.Error(), "set both to ports of the same server") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		t.Run("admin is the monitor", func(t *testing.T) {
			cfg := s.config()
			cfg.AdminURL = "nats://" + s.monitor
			_, err := opened(t, cfg).Probe(bound(t))
			if err == nil || !strings.HasPrefix(err.Error(), "--broker-admin nats://"+s.monitor+": not connected: ") {
				t.Error(err)
			}
		})
		t.Run("monitor is the admin", func(t *testing.T) {
			cfg := s.config()
			cfg.MonitorURL = "http://" + s.admin
			_, err := opened(t, cfg).Probe(bound(t))
			if err == nil || !strings.HasPrefix(err.Error(), "--nats-monitor http://"+s.admin) {
				t.Error(err)
			}
		})
	})
}

func TestAnUnnamedServerHasNoStableName(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin)
		s.Kill(t)
		s.name = ""
		s.Start(t)
		cfg := s.config()
		cfg.BrokerID = "n1"
		id, err := opened(t, cfg).Probe(bound(t))
		if err != nil {
			t.Fatal(err)
		}
		if id.Name != "" || id.Instance == "" || id.DataDir != s.dir {
			t.Errorf("got %+v, want no name and data directory %s", id, s.dir)
		}
	})
}

func TestAServerWithoutJetStreamIsUnwellAndSaysWhatToDo(t *testing.T) {
	onEachServer(t, func(t *testing.T, bin string) {
		s := launch(t, bin, "-l", "")
		b := opened(t, s.config())
		if who, err := b.Probe(bound(t)); err == nil || !strings.Contains(err.Error(), "start nats-server with -js") || who.Name != "n1" {
			t.Errorf("%+v, %v", who, err)
		}
	})
}
