package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/brokerapi"
	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
)

// startBound is how long a server may take until it answers.
const startBound = harness.Patience

// server is one nats-server process and an ordinary client of it.
type server struct {
	*harness.NATS
	bin      string
	subjects map[string]string // topic to subject, where it is not ns.name
}

// launch starts a server that ends with the test.
func launch(t *testing.T, bin string) *server { t.Helper(); return launchNamed(t, bin, "n1") }

func launchNamed(t *testing.T, bin, name string) *server {
	t.Helper()
	n, err := harness.ForTest(t).NewNATS(harness.NATSOptions{Name: name, Binary: bin})
	do(t, err)
	s := &server{NATS: n, bin: bin}
	s.Start(t)
	return s
}

func (s *server) Start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	do(t, s.NATS.Start(ctx))
}

func (s *server) Kill(t *testing.T)   { t.Helper(); do(t, s.NATS.Kill()) }
func (s *server) Freeze(t *testing.T) { t.Helper(); do(t, s.NATS.Freeze()) }
func (s *server) Thaw(t *testing.T)   { t.Helper(); do(t, s.NATS.Thaw()) }

func (s *server) config() nats.Config {
	return nats.Config{AdminURL: s.URL(), MonitorURL: s.MonitorURL(), BrokerID: s.Name, Logger: slog.New(slog.DiscardHandler)}
}

func (s *server) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	b, err := nats.New(s.config())
	do(t, err)
	return b
}

// with runs use with a JetStream client of its own.
func (s *server) with(use func(context.Context, jetstream.JetStream) error) error {
	nc, err := client.Connect(s.URL(), client.NoReconnect())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	return use(ctx, js)
}

func (s *server) subject(topic string) string {
	if subject, ok := s.subjects[topic]; ok {
		return subject
	}
	return strings.ReplaceAll(topic[1:], "/", ".")
}

func (s *server) Publish(topic string, data []byte) error {
	return s.with(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.Publish(ctx, s.subject(topic), data, jetstream.WithRetryAttempts(0))
		return err
	})
}

func (s *server) Count(topic string) (n int, err error) {
	err = s.with(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, streamOf(topic))
		if err != nil {
			return err
		}
		n = int(stream.CachedInfo().State.Msgs)
		return nil
	})
	return n, err
}

// streamOf says again, in other words, how the driver names streams.
func streamOf(topic string) string {
	ns, name, _ := strings.Cut(topic[1:], "/")
	var out strings.Builder
	out.WriteString("hf")
	for _, part := range []string{ns, name} {
		out.WriteByte('+')
		for _, c := range []byte(part) {
			if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", c) >= 0 {
				out.WriteByte(c)
			} else {
				fmt.Fprintf(&out, "=%02X", c)
			}
		}
	}
	return out.String()
}

func (s *server) AddForeign(t *testing.T) func() error {
	t.Helper()
	names := []string{
		"orders",              // an ordinary one
		"hf+orders",           // no namespace
		"hf+a+b+c",            // one part too many
		"hf+default+a=2e",     // lower-case hex
		"hf+default+=61",      // a letter written as hex
		"hf+default+a=2Fb",    // a slash in the name
		"hf++a",               // empty namespace
		"HF+default+a",        // other prefix
		"foreign-and-parked",  // its subject is under ours
		"hf+default+b=0",      // cut short
		"hf+default+orders=",  // cut short
		"hf+default+orders=+", // both
	}
	read := func() (map[string]string, error) {
		got := map[string]string{}
		err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
			for _, name := range names {
				stream, err := js.Stream(ctx, name)
				if err != nil {
					return fmt.Errorf("read %s: %w", name, err)
				}
				info := stream.CachedInfo()
				text, err := json.Marshal([]any{info.Config, info.Created, info.State.Msgs})
				if err != nil {
					return err
				}
				got[name] = string(text)
			}
			return nil
		})
		return got, err
	}
	err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
		for i, name := range names {
			subject := fmt.Sprintf("foreign.%d", i)
			if name == "foreign-and-parked" {
				subject = "_HOLDFAST.quiesced." + name
			}
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
				return fmt.Errorf("make %s: %w", name, err)
			}
			if _, err := js.Publish(ctx, subject, []byte("theirs")); err != nil {
				return fmt.Errorf("publish to %s: %w", name, err)
			}
		}
		return nil
	})
	do(t, err)
	before, err := read()
	do(t, err)
	return func() error {
		after, err := read()
		if err != nil {
			return err
		}
		for name := range before {
			if after[name] != before[name] {
				return fmt.Errorf("stream %s changed from %s to %s", name, before[name], after[name])
			}
		}
		return nil
	}
}
